"""What the job keeps in checkpoints by itself: the parts, their names, and how they return in the
next attempt."""

import functools
import math
import time
import types
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
import torch.distributed as dist

from gpq_agent.train.checkpoints.state_parts import unwrap
from gpq_agent.train.checkpoints.store import CheckpointStore
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.progress import ScheduleClock
from gpq_agent.train.gradients.step_gate import inner_optimizers
from gpq_agent.train.internals import inner_schedulers
from gpq_agent.train.loop.engine import Engine
from gpq_agent.train.loop.runtime import BatchSource
from gpq_agent.train.loop.setup import Training, outside
from gpq_agent.train.process.agreement import broadcast_value
from gpq_agent.train.process.environment import Environment
from gpq_agent.train.process.process_group import finish

FUNCTIONS = types.FunctionType, types.MethodType, functools.partial
FACTORS = (
    "let it depend on len(loader), not on the number of GPUs that an attempt has. If you changed "
    "the script on purpose, submit a new job"
)


class Resumption:
    """Reads the newest checkpoint once, and restores from it what the job trains."""

    def __init__(self, engine: Engine) -> None:
        """Offers the newest checkpoint to the parts of the job. Collective. The script may register
        a part on one replica alone, which must then wait for no other."""
        self._engine = engine
        begin = time.perf_counter()
        runtime = engine.runtime
        # Until it is restored.
        store, environment = engine.checkpointer.store, runtime.environment
        self._state = choose_state(store, runtime.group, environment, runtime.notice)
        if self._state is not None:
            engine.checkpointer.parts.offer(self._state)
        self._seconds = time.perf_counter() - begin

    def resume(self, training: Training) -> None:
        """Register what trains as parts of checkpoints, and restore it. Collective. Raises
        GpqTrainError for data that differ between replicas or from the previous attempt, for a part
        that cannot be saved, and for a checkpoint that does not fit the script."""
        engine = self._engine
        if engine.runtime.agreement.unlike(engine.checkpointer.parts.kinds()) is not None:
            raise GpqTrainError(
                "job.state() keeps other objects on one replica than on replica 0",
                'call it in the same order on every replica, or give names: job.state(part, "ema")',
            )
        parts, data = engine.checkpointer.parts, engine.shape.data
        engine.runtime.meter.schedules = [ScheduleClock() for _ in training.schedulers]
        parts.add("progress", engine.runtime.meter)
        if data is not None:
            parts.add("cursor", data.sampler)
            parts.add("ledger", engine.boundaries.ledger)
            parts.add("noise", data.noise)
        if data is not None and data.fingerprint is not None:
            data.fingerprint.compare(engine.runtime.agreement, engine.runtime.notice)
            parts.add("data", data.fingerprint)
        optimizers = training.optimizers
        models = [unwrap(model).inner for model in training.models]
        for name, items in (("model", models), ("optimizer", optimizers)):
            for index, item in enumerate(items):
                parts.add("{}:{}".format(name, index) if index else name, item)
        parts.add("trained", Trained(optimizers))
        outsiders = outside(models, optimizers)
        if outsiders:
            parts.add("outside", Outside(outsiders))
        for index, optimizer in enumerate(optimizers):
            for place, inner in enumerate(inner_optimizers(optimizer)):
                name = "optimizer:{}.{}".format(index, place)
                parts.add(name, InnerOptimizer(optimizer, inner))
        for index, scheduler in enumerate(training.schedulers):
            parts.add("scheduler:{}".format(index), scheduler)
        functions = schedule_functions(training.schedulers)
        if functions:
            replicas = engine.runtime.replicas
            parts.add("factors", ScheduleFunctions(functions, replicas))
        if training.scaler is not None:
            parts.add("scaler", training.scaler)
        self._restore(data)

    def _restore(self, data: Optional[BatchSource]) -> None:
        begin = time.perf_counter()
        engine = self._engine
        if engine.runtime.environment.checkpoint_dir:
            engine.checkpointer.parts.refuse_unsavable()
        state, self._state = self._state, None
        if state is None:
            return
        try:
            engine.checkpointer.parts.restore(state)
            if data is not None:
                cursor, meter = data.sampler.cursor, engine.runtime.meter
                engine.boundaries.ledger.resume(cursor.consumed)
                if meter.epoch < 0:  # written when an epoch was a pass
                    meter.epoch, meter.samples = cursor
                    meter.position = cursor.consumed / data.limits.base_batch
        except GpqTrainError:
            raise
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            words = " ".join(str(error).split())
            problem = "the checkpoint does not fit this script: {}".format(words)
            hint = "use the script that wrote it, or submit a new job"
            raise GpqTrainError(problem, hint) from error
        engine.statistics.restore_seconds = self._seconds + time.perf_counter() - begin


class Trained:
    """A part of checkpoints: which parameters of the optimizers are trained. A loop that unfreezes
    some in one epoch does not do so again in the next attempt."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers

    def state_dict(self) -> Dict[str, Any]:
        return {"trained": [item.requires_grad for item in _parameters(self._optimizers)]}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        for item, is_trained in zip(_parameters(self._optimizers), state["trained"]):
            item.requires_grad_(bool(is_trained))


def schedule_functions(schedulers: Sequence[Any]) -> List[Callable[[int], float]]:
    """Those of LambdaLR and MultiplicativeLR, also in SequentialLR and ChainedScheduler.

    Torch keeps the attributes of other callables in the state of the scheduler.
    """
    functions: List[Callable[[int], float]] = []
    for scheduler in schedulers:
        lambdas = getattr(scheduler, "lr_lambdas", None) or []
        functions += [item for item in lambdas if isinstance(item, FUNCTIONS)]
        functions += schedule_functions(inner_schedulers(scheduler))
    return functions


class ScheduleFunctions:
    """A part of checkpoints: what functions of schedulers return. No state of a scheduler has the
    functions themselves, and they may ask for the number of replicas. They are asked at the time
    of the checkpoint and after a resize, because they may read values that the job keeps."""

    STEPS = (0, *(2**power for power in range(21)))

    def __init__(self, functions: List[Callable[[int], float]], replicas: int) -> None:
        self._functions = functions
        self._replicas = replicas

    def state_dict(self) -> Dict[str, Any]:
        return {"replicas": self._replicas, "factors": self._factors()}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        if state["replicas"] == self._replicas:
            return  # if it differs, the script was changed on purpose
        saved, own = (torch.tensor(factors) for factors in (state["factors"], self._factors()))
        if saved.shape != own.shape or not torch.allclose(saved, own, equal_nan=True):
            words = (
                "the function of a schedule gives other factors on {} replicas than on {} before"
            )
            raise GpqTrainError(words.format(self._replicas, state["replicas"]), FACTORS)

    def _factors(self) -> List[float]:
        return [factor(function, step) for function in self._functions for step in self.STEPS]


def factor(function: Callable[[int], float], step: int) -> float:
    """NaN if the function raises, as it may beyond the end of the schedule."""
    try:
        return float(function(step))
    except Exception:
        return math.nan


class Outside:
    """A part of checkpoints: parameters of optimizers that no model holds, such as those of a
    criterion. They are in the order of the groups."""

    def __init__(self, parameters: List[torch.nn.Parameter]) -> None:
        self.parameters = parameters

    def state_dict(self) -> Dict[str, Any]:
        return {"parameters": [item.detach() for item in self.parameters]}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        saved_parameters = state["parameters"]
        if [item.shape for item in saved_parameters] != [item.shape for item in self.parameters]:
            raise ValueError(
                "the parameters that an optimizer has outside the model differ from those in "
                "the checkpoint"
            )
        with torch.no_grad():
            for item, value in zip(self.parameters, saved_parameters):
                item.copy_(value)


class InnerOptimizer:
    """A part of checkpoints: the state of an inner optimizer. Groups that it shares with the outer
    optimizer stay shared after a restore."""

    def __init__(self, outer: Any, inner: Any) -> None:
        self._outer, self._inner = outer, inner
        self._shares_groups = outer.param_groups is inner.param_groups

    def state_dict(self) -> Any:
        return self._inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._inner.load_state_dict(state)
        if self._shares_groups:
            self._inner.param_groups = self._outer.param_groups


def _parameters(optimizers: Sequence[Any]) -> List[torch.nn.Parameter]:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [item for group in groups for item in group["params"]]


def choose_state(
    store: Optional[CheckpointStore],
    group: Optional[dist.ProcessGroup],
    environment: Environment,
    notice: Callable[[str], None],
) -> Optional[Dict[str, Any]]:
    """The newest whole checkpoint that rank 0 can see, the same on every replica, or None. Every
    replica maps its file, so none holds a checkpoint in memory. Collective. Raises GpqTrainError if
    a server lacks it: gpq starts an attempt once all of its servers have it."""
    if store is None:
        return None
    name = (store.newest(notice) or "") if environment.rank == 0 else ""
    if group is None:
        return store.read(name) if name else None
    name, manifest = broadcast_value([name, store.manifest(name) if name else {}], group)
    if not name:
        return None
    # The manifest has the digest, because another server may have a checkpoint of the same step
    # from another attempt.
    has_file = torch.tensor([int(store.manifest(name) == manifest)])
    finish(dist.all_reduce(has_file, dist.ReduceOp.MIN, group=group, async_op=True))
    if not has_file:
        words = "a server of the job lacks the checkpoint {} that rank 0 resumes from"
        hint = "submit the job to gpq, which copies checkpoints, or share their folder"
        raise GpqTrainError(words.format(name), hint)
    return store.read(name)
