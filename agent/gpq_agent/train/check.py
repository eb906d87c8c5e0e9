"""The training process's part of `gpq check`: runs in the shape that it is told, writes down what each step came to, ends.

Only where the environment holds a CheckOrder; else there is no recorder, and nothing of this file runs.
"""

import json
import os
import signal
import threading
from typing import Any, Dict, List, Mapping, NoReturn, Optional, Set

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gpq_agent import wire

from .agreement import Proposal
from .batches import Limits, ceil_div
from .environment import Environment
from .full_precision import HALF, FullPrecision
from .internals import BatchNorm, is_compiled
from .keyed import Keyed
from .leaving import end_at_once
from .proof import Program
from .sampler import GlobalSampler, Issued
from .sketch import MOST, Fingerprint, Sketcher, flattened, named_optimizer, named_parameters
from .steady import Dropout, Placed, SeededData, arranged, copies, plain_attention, still
from .stepping import inner_optimizers
from .stopping import STOP_ORDERED

INTERNAL = ("cursor", "data", "progress", "ledger", "noise", "trained")  # parts of a checkpoint that are gpq's own
UNASKED = 4  # times the steps of the order, after which a loop that never asks gpq anything is ended

recorder: "Optional[Recorder]" = None  # of this process


def begin(environ: Mapping[str, str], environment: Environment) -> "Optional[Recorder]":
    """The recorder of this process, if `gpq check` runs it."""
    global recorder
    text = environ.get(wire.ENV_CHECK)
    recorder = Recorder(wire.CheckOrder(**json.loads(text)), environment) if text else None
    return recorder


class Recorder:
    """One per process. Replicas need not agree on anything here: all have the same order."""

    def __init__(self, order: wire.CheckOrder, environment: Environment) -> None:
        self.order = order
        self._rank, self._replicas, self._attempt = environment.rank, environment.replicas, environment.attempt
        path = os.path.join(order.folder, "{}.{}.jsonl".format(self._attempt, self._rank))
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._sketch = Sketcher()
        self._count = order.begin
        self._written = -1
        self._micro: Optional[Issued] = None
        self._optimizers: List[Any] = []
        self._names: Dict[int, str] = {}  # of the model's parameters, by id
        self._outside = 0  # optimizer steps outside a loop over job.loader()
        self._facts: Dict[str, Any] = {}
        self.program: Optional[Program] = None  # as the script prepared its training
        self._told = False
        self._suspected: Set[str] = set()
        self._fresh()
        self._keyed = Keyed()
        self._dropout = Dropout()
        self._precision = FullPrecision(order.exact)
        plain_attention()
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        if order.lifeline >= 0:
            threading.Thread(target=_follow, args=(order.lifeline,), daemon=True).start()

    def _fresh(self) -> None:
        self._indices: List[int] = []
        self._random = False
        self._metrics: List[Any] = []
        self._rates: List[List[float]] = []
        self._gradients: Dict[str, Fingerprint] = {}

    # -- the shape -----------------------------------------------------------------------------------------------------

    def size(self, size: int, batch: int) -> int:
        """Examples of an epoch: so few that the steps of a check see its end, and a batch that is not full."""
        self._facts.update(size=size, batch=batch)
        steps = self.order.epoch_steps
        return min(size, (steps - 1) * batch + batch // 2 + 1) if steps else size

    def limits(self, limits: Limits) -> Limits:
        """A bound on what fits at once that makes a step so many micro-batches."""
        share = ceil_div(limits.base_batch, self._replicas)
        return limits._replace(max_local=ceil_div(share, self.order.micros))

    def sampler(self, data: Any, sampler: GlobalSampler) -> Any:
        """(data set, batch sampler) for a DataLoader, with which what an example is depends on nothing else."""
        return SeededData(data), Placed(sampler, self.order.reverse, self.order.rotate)

    def agreed(self) -> Proposal:
        """What rank 0 would propose, were it asked. Nothing is to be agreed on: the order is everybody's."""
        stop = STOP_ORDERED if self.order.stop and self._count == self.order.stop else 0
        return Proposal(stop=stop, sample_every=2 if self.order.sample else 0)

    # -- what happens --------------------------------------------------------------------------------------------------

    def entered(self, micro: Issued) -> None:
        if micro.place == 0:
            self._indices = []  # a step that is begun anew, cut otherwise, has none of what it was begun with
        self._micro = micro
        self._precision.renew()
        self._dropout.off = is_compiled()
        rows = arranged(micro.indices, self.order.reverse, self.order.rotate)
        self._keyed.begin(micro.step.epoch, micro.step.start, rows)

    def taken_back(self) -> None:
        """The script has only looked at the micro-batch in hand, or the step is made anew."""
        self._keyed.end()
        self._micro = None

    def left(self, micro: Issued) -> None:
        self._random = self._keyed.end() or self._random
        self._indices += micro.indices
        self._micro = None
        if micro.last:
            self._count += 1

    def suspect(self, habit: wire.Habit) -> None:
        """In a run this would take freedoms. Here it is put to the test."""
        if habit.code not in self._suspected:
            self._suspected.add(habit.code)
            self._say({"suspected": habit._asdict()})

    def log(self, values: Mapping[str, Any]) -> None:
        micro = self._micro
        weight = micro.step.counts[micro.place] if micro is not None else 0
        for name, value in values.items():
            if not isinstance(value, torch.Tensor) or value.numel() == 1:
                try:
                    plain = value.detach() if isinstance(value, torch.Tensor) else value
                    self._metrics.append([str(name), float(plain), weight])
                except (TypeError, ValueError, OverflowError, RuntimeError):
                    continue  # the library itself complains, and better

    def boundary(self, engine: Any) -> None:
        """Between two steps. Does not return once all are done."""
        self._precision.renew()
        if engine._sampler is None and self._optimizers:
            self._count += 1  # a loop of the script's own, which asks once a step
        self._write(engine)
        if self._count >= self.order.steps:
            self._end(engine)

    def finish(self, engine: Any) -> NoReturn:
        """The script has trained to its end before."""
        self._write(engine)
        self._end(engine)

    def _before_step(self, optimizer: Any, args: Any = (), kwargs: Any = None) -> None:
        if all(optimizer is not each for each in self._optimizers):
            self._optimizers.append(optimizer)
        rates = [group.get("lr") for group in optimizer.param_groups]
        self._rates.append([float(rate) for rate in rates if rate is not None])
        if not _has_closure(args, kwargs):
            self._keep_gradients(optimizer)

    def _keep_gradients(self, optimizer: Any) -> None:
        if self._rank == 0:
            for name, parameter in named_parameters(optimizer, self._names):
                if parameter.grad is not None and parameter.grad.layout is torch.strided:
                    self._gradients["gradient of {}".format(name)] = self._sketch(parameter.grad)

    def _after_step(self, optimizer: Any, args: Any = (), kwargs: Any = None) -> None:
        if _has_closure(args, kwargs):
            self._keep_gradients(optimizer)  # what it found before was left by the step before, if there was one
        if self._micro is not None:
            return
        self._outside += 1
        if self._outside >= UNASKED * self.order.steps:
            self._say({"outside": self._outside})
            end_at_once(0)

    # -- records -------------------------------------------------------------------------------------------------------

    def _write(self, engine: Any) -> None:
        if self._count == self._written:
            return
        self._written = self._count
        sampler = engine._sampler
        if not self._told:
            self._told = True
            self._tell(engine)
        state = self._state(engine) if self._rank == 0 else {}
        tensors: Dict[str, Fingerprint] = dict(self._gradients)
        numbers: Dict[str, Optional[float]] = {}
        for name, value in list(state.items())[:MOST]:
            if isinstance(value, float):
                numbers[name] = value if abs(value) < float("inf") else None
            else:
                tensors[name] = self._sketch(value)
        metrics = [[name, value, weight] for name, value, weight in self._metrics if abs(value) < float("inf")]
        content = wire.CheckStep(
            step=self._count,
            attempt=self._attempt,
            epoch=sampler.cursor.epoch if sampler is not None else 0,
            epochs=engine.meter.epochs,
            indices=self._indices,
            random=self._random,
            metrics=metrics,
            rates=self._rates,
            tensors=tensors,
            numbers=numbers,
        )
        self._say(content._asdict())
        self._fresh()

    def _tell(self, engine: Any) -> None:
        """What the script is, once there is something to train."""
        models = [part for part in engine.parts._parts.values() if isinstance(part, torch.nn.Module)]
        recurrent = [still(model) for model in models]
        half = any(item.dtype in HALF for model in models for item in model.parameters())
        if half:
            self._precision.give_up()
        norms = [
            name for model in models for name, each in model.named_modules()
            if isinstance(each, BatchNorm) and not isinstance(each, torch.nn.SyncBatchNorm)
        ]  # fmt: skip
        facts = dict(self._facts, loader=engine._sampler is not None, batch_norms=norms[:100])
        if self.program is not None:
            facts.update(self.program._asdict())
        self._say({"facts": dict(facts, half=half, recurrent=any(recurrent), compiled=is_compiled())})

    def _say(self, content: Dict[str, Any]) -> None:
        data = wire.encode(content)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _state(self, engine: Any) -> Dict[str, Any]:
        """Every tensor and number that this job trains or keeps, by name."""
        parts = {name: part for name, part in engine.parts._parts.items() if name not in INTERNAL}
        modules = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
        names = self._names = {
            id(each): key for model in modules.values() for key, each in model.named_parameters()
        }  # fmt: skip
        found: Dict[str, Any] = {}
        for name, part in parts.items():
            plain = named_optimizer(part, names) if hasattr(part, "param_groups") else part.state_dict()
            found.update(flattened("" if name == "model" else name, plain))
        kept = [part for part in parts.values() if hasattr(part, "param_groups")]
        # These also before their first step of this process: what is restored is compared.
        for number, optimizer in enumerate(kept):
            place = "outside the model, optimizer {}".format(number + 1) if number else "outside the model"
            self._strange(found, place, optimizer, names)
        within = [inner for each in kept for inner in inner_optimizers(each)]
        for number, inner in enumerate(within):
            found.update(flattened("inner optimizer {}".format(number + 1), named_optimizer(inner, names)))
        for number, optimizer in enumerate(self._optimizers):
            if all(optimizer is not each for each in (*kept, *within)):
                name = "another optimizer ({} {})".format(type(optimizer).__name__, number + 1)
                self._strange(found, name, optimizer, names)
        if self._count >= self.order.steps:
            for model in list(modules.values()):
                for number, copy in enumerate(copies(model, dict(enumerate(modules.values())))):
                    found.update(flattened("copy {} of the model".format(number + 1), copy.state_dict()))
        return found

    def _strange(self, found: Dict[str, Any], name: str, optimizer: Any, names: Dict[int, str]) -> None:
        """What an optimizer trains that is not in the model, and what one keeps that gpq was not given."""
        for key, parameter in named_parameters(optimizer, names):
            if id(parameter) not in names:
                found["{}: {}".format(name, key)] = parameter.detach()
        if name.startswith("another"):
            found.update(flattened(name, named_optimizer(optimizer, names)))

    def _end(self, engine: Any) -> NoReturn:
        self._say({"end": self._count, "epsilon": self._precision.epsilon})
        engine.pulse.phase("ended")
        end_at_once(0)


def _has_closure(args: Any, kwargs: Any) -> bool:
    """Does an optimizer compute its gradients itself? `args` and `kwargs` as torch's hooks are given them: itself first."""
    given = args[1] if len(args) > 1 else (kwargs or {}).get("closure")
    return callable(given)


def _follow(descriptor: int) -> None:
    """Wait for the end of `gpq check`, whatever ends it, and end this process and its workers with it."""
    try:
        while os.read(descriptor, 1):
            pass
    except OSError:
        return
    os.killpg(os.getpgid(0), signal.SIGKILL)
