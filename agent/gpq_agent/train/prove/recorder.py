"""The part of `gpq check` in the training process: records the result of each step, and ends.

The result is every tensor and number that a job trains or keeps, by the same name in any shape.
Exists only if the environment has a CheckOrder.
"""

import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NoReturn, Optional, Set, Tuple

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gpq_agent import wire
from gpq_agent.train.data.batches import Limits, Micro, Step, ceil_div
from gpq_agent.train.data.sampler import GlobalSampler
from gpq_agent.train.gradients.step_gate import inner_optimizers
from gpq_agent.train.internals import is_compiled
from gpq_agent.train.process.agreement import Proposal
from gpq_agent.train.process.environment import Environment
from gpq_agent.train.process.shutdown import STOP_ORDERED, end_at_once
from gpq_agent.train.program import Program
from gpq_agent.train.prove.determinism import (
    HALF,
    Dropout,
    EpochIndexSampler,
    FullPrecision,
    SeededData,
    copies,
    plain_attention,
    still,
)
from gpq_agent.train.prove.keyed import Keyed
from gpq_agent.train.prove.sketch import (
    MOST,
    Fingerprint,
    Sketcher,
    flatten,
    named_optimizer,
    named_parameters,
)

if TYPE_CHECKING:
    from gpq_agent.train.loop.engine import Engine

# gpq's own parts of a checkpoint.
INTERNAL = ("cursor", "data", "progress", "ledger", "noise", "trained", "factors")
OUTSIDE = "outside the model"

UNASKED = 4  # times the steps of the order, then end a loop that never asks gpq


class JobState:
    """`is_lead`: only this replica reads anything. `optimizers`: all that have stepped. `sketch`:
    tensor -> fingerprint."""

    def __init__(self, *, is_lead: bool) -> None:
        self.sketch = Sketcher()
        self.optimizers: List[Any] = []
        self._is_lead = is_lead
        self._names: Dict[int, str] = {}  # names of the model's parameters, by id

    def gradients(self, optimizer: Any) -> Dict[str, Fingerprint]:
        """Its current parameters."""
        sketches: Dict[str, Fingerprint] = {}
        if self._is_lead:
            for name, parameter in named_parameters(optimizer, self._names):
                gradient = parameter.grad
                if gradient is not None and gradient.layout is torch.strided:
                    sketches["gradient of {}".format(name)] = self.sketch(gradient)
        return sketches

    def of(self, parts: Mapping[str, Any], *, is_last: bool) -> Dict[str, Any]:
        """`parts`: of checkpoints, by name. `is_last`: also look for copies of the models, which
        takes a walk through all objects."""
        if not self._is_lead:
            return {}
        parts = {name: part for name, part in parts.items() if name not in INTERNAL}
        models = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
        named_parameters = [pair for model in models.values() for pair in model.named_parameters()]
        self._names = {id(parameter): name for name, parameter in named_parameters}
        state: Dict[str, Any] = {}
        registered = []
        for name, part in parts.items():
            if hasattr(part, "param_groups"):
                registered.append(part)
                content = named_optimizer(part, self._names)
            else:
                content = part.state_dict()
            state.update(flatten("" if name == "model" else name, content))
        # What is trained but not in a model. For registered optimizers also before their first step
        # in this process, because restored state is compared.
        for number, optimizer in enumerate(registered):
            place = "{}, optimizer {}".format(OUTSIDE, number + 1) if number else OUTSIDE
            self._add_outside(state, place, optimizer)
        inner = [part for optimizer in registered for part in inner_optimizers(optimizer)]
        for number, part in enumerate(inner):
            name = "inner optimizer {}".format(number + 1)
            state.update(flatten(name, named_optimizer(part, self._names)))
        for number, optimizer in enumerate(self.optimizers):
            if all(optimizer is not known_optimizer for known_optimizer in (*registered, *inner)):
                name = "another optimizer ({} {})".format(type(optimizer).__name__, number + 1)
                self._add_outside(state, name, optimizer)
                state.update(flatten(name, named_optimizer(optimizer, self._names)))
        originals = list(models.values()) if is_last else []
        for model in originals:
            for number, copy in enumerate(copies(model, originals)):
                name = "copy {} of the model".format(number + 1)
                state.update(flatten(name, copy.state_dict()))
        return state

    def _add_outside(self, state: Dict[str, Any], place: str, optimizer: Any) -> None:
        for key, parameter in named_parameters(optimizer, self._names):
            if id(parameter) not in self._names:
                state["{}: {}".format(place, key)] = parameter.detach()


def begin(environ: Mapping[str, str], environment: Environment) -> "Optional[Recorder]":
    """The recorder of this process, if `gpq check` runs it."""
    text = environ.get(wire.ENV_CHECK)
    return Recorder(wire.CheckOrder(**json.loads(text)), environment) if text else None


class StepRecord:
    """The results of the current step."""

    def __init__(self) -> None:
        self.indices: List[int] = []
        self.is_random = False
        self.metrics: List[Any] = []  # [name, value, examples]
        self.rates: List[List[float]] = []  # by call of an optimizer
        self.gradients: Dict[str, Fingerprint] = {}  # as optimizers found them


class Recorder:
    """One per process. Replicas do not need to agree here, because all have the same order.
    `program`: when the script prepared its training."""

    def __init__(self, order: wire.CheckOrder, environment: Environment) -> None:
        self.order = order
        self.program: Optional[Program] = None
        self._replicas = environment.replicas
        name = "{}.{}.jsonl".format(environment.attempt, environment.rank)
        path = os.path.join(order.folder, name)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._count = order.begin
        self._written = -1
        self._micro: Optional[Micro] = None
        self._batches: Optional[EpochIndexSampler] = None  # of job.loader()
        self._outside = 0  # optimizer steps outside a loop over job.loader()
        self._facts: Dict[str, Any] = {}
        self._suspicions: Set[str] = set()
        self._step = StepRecord()
        self._state = JobState(is_lead=environment.rank == 0)
        # Luck and low precision are removed: random numbers belong to examples, and attention and
        # matrix products are exact if possible.
        self._keyed, self._dropout = Keyed(), Dropout()
        self._precision = FullPrecision(order.exact)
        plain_attention()
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        if order.lifeline >= 0:
            threading.Thread(target=_follow, args=(order.lifeline,), daemon=True).start()

    # -- the shape ---------------------------------------------------------------------------------

    def size(self, size: int, batch: int) -> int:
        """Examples of an epoch: few enough that the check sees its end, and an incomplete batch."""
        self._facts.update(size=size, batch=batch)
        steps = self.order.epoch_steps
        return min(size, (steps - 1) * batch + batch // 2 + 1) if steps else size

    def limits(self, limits: Limits) -> Limits:
        """The bound on examples at once that gives a step this many micro-batches."""
        share = ceil_div(limits.base_batch, self._replicas)
        return limits._replace(max_local=ceil_div(share, self.order.micros))

    def sampler(self, data: Any, sampler: GlobalSampler) -> Tuple[Any, Any]:
        """(data set, batch sampler) for a DataLoader in which an example depends on nothing
        else."""
        self._batches = EpochIndexSampler(sampler, self.order.reverse, self.order.rotate)
        return SeededData(data), self._batches

    # -- what happens ------------------------------------------------------------------------------

    def enter(self, step: Step, micro: Micro) -> None:
        if micro.place == 0:
            self._step.indices = []  # a step that starts again keeps nothing of its first start
        self._micro = micro
        assert self._batches is not None
        rows = self._batches.rows(micro.indices)
        self._precision.renew()  # a script may set it in any line
        self._dropout.off = is_compiled()
        self._keyed.begin(step.epoch, step.start, rows)

    def taken_back(self) -> None:
        """The script only looked at the current micro-batch, or the step is repeated."""
        self._keyed.end()
        self._micro = None

    def left(self, micro: Micro) -> None:
        step = self._step
        step.is_random = self._keyed.end() or step.is_random
        step.indices += micro.indices
        self._micro = None
        if micro.last:
            self._count += 1

    def suspect(self, habit: wire.Habit) -> None:
        """In a job this would take freedoms. Here it is tested."""
        if habit.code not in self._suspicions:
            self._suspicions.add(habit.code)
            self._write({"suspected": habit._asdict()})

    def log(self, values: Mapping[str, Any]) -> None:
        micro = self._micro
        weight = len(micro.indices) if micro is not None else 0
        for name, value in values.items():
            if not isinstance(value, torch.Tensor) or value.numel() == 1:
                try:
                    plain = value.detach() if isinstance(value, torch.Tensor) else value
                    self._step.metrics.append([str(name), float(plain), weight])
                except (TypeError, ValueError, OverflowError, RuntimeError):
                    continue  # the library itself reports it, and better

    def boundary(self, engine: "Engine") -> Proposal:
        """Between two steps. Returns what rank 0 would propose, because all have the same order.
        Does not return once all steps are done."""
        if not engine.steps.in_midst:
            self._precision.renew()
            if engine.shape.data is None and self._state.optimizers:
                self._count += 1  # a loop of the script's own, which asks once per step
            self._write_step(engine)
            if self._count >= self.order.steps:
                self._end(engine)
        stop = STOP_ORDERED if self.order.stop and self._count == self.order.stop else 0
        return Proposal(stop=stop, sample_every=2 if self.order.sample else 0)

    def finish(self, engine: "Engine") -> NoReturn:
        """The script trained to its end before that."""
        self._write_step(engine)
        self._end(engine)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if all(optimizer is not registered for registered in self._state.optimizers):
            self._state.optimizers.append(optimizer)
        rates = [group.get("lr") for group in optimizer.param_groups]
        self._step.rates.append([float(rate) for rate in rates if rate is not None])
        if not _has_closure(args, kwargs):
            self._step.gradients.update(self._state.gradients(optimizer))

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if _has_closure(args, kwargs):  # earlier lines belong to an earlier step
            self._step.gradients.update(self._state.gradients(optimizer))
        if self._micro is not None:
            return
        self._outside += 1
        if self._outside >= UNASKED * self.order.steps:
            self._write({"outside": self._outside})
            end_at_once(0)

    # -- records -----------------------------------------------------------------------------------

    def _write_step(self, engine: "Engine") -> None:
        if self._count == self._written:
            return
        parts = engine.checkpointer.parts.by_name()
        if self._written < 0:  # say what the script is, now that there is something to train
            models = [part for part in parts.values() if isinstance(part, torch.nn.Module)]
            self._facts["recurrent"] = sum(map(still, models)) > 0  # calms each of them
            half = any(item.dtype in HALF for model in models for item in model.parameters())
            if half:
                self._precision.give_up()
            self._facts.update(loader=engine.shape.data is not None, half=half)
            self._facts["compiled"] = is_compiled()
            if self.program is not None:
                self._facts.update(self.program._asdict())
            self._write({"facts": self._facts})
        self._written = self._count
        step, self._step = self._step, StepRecord()
        state = self._state.of(parts, is_last=self._count >= self.order.steps)
        tensors = dict(step.gradients)
        numbers: Dict[str, Optional[float]] = {}
        for name, value in list(state.items())[:MOST]:
            if isinstance(value, float):
                numbers[name] = value if abs(value) < float("inf") else None
            else:
                tensors[name] = self._state.sketch(value)
        content = wire.CheckStep(
            step=self._count,
            indices=step.indices,
            random=step.is_random,
            metrics=[metric for metric in step.metrics if abs(metric[1]) < float("inf")],
            rates=step.rates,
            tensors=tensors,
            numbers=numbers,
        )
        self._write(content._asdict())

    def _write(self, content: Dict[str, Any]) -> None:
        data = wire.encode(content)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _end(self, engine: "Engine") -> NoReturn:
        self._write({"end": self._count, "epsilon": self._precision.epsilon})
        engine.runtime.pulse.phase("ended")
        end_at_once(0)


def _has_closure(args: Any, kwargs: Any) -> bool:
    """Does an optimizer compute its gradients itself? `args` and `kwargs` as torch's hooks get
    them: itself first."""
    closure = args[1] if len(args) > 1 else (kwargs or {}).get("closure")
    return callable(closure)


def _follow(descriptor: int) -> None:
    """Wait for the end of `gpq check`, for any reason, and end this process and its workers."""
    try:
        while os.read(descriptor, 1):
            pass
    except OSError:
        return
    os.killpg(os.getpgid(0), signal.SIGKILL)
