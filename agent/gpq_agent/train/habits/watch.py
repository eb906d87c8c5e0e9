"""Notices the habits of a loop over `job.loader()` that show only over time, or in what the script
made.

What shows in one call, such as a closure, is reported where it is seen.
"""

import functools
import weakref
from typing import TYPE_CHECKING, Any, Callable, List, Optional, TypeVar, cast

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gpq_agent.train.checkpoints.state_parts import unwrap
from gpq_agent.train.data.batches import Micro
from gpq_agent.train.gradients.batch_norm import GroupedLayer
from gpq_agent.train.gradients.step_gate import BodyFacts, inner_optimizers
from gpq_agent.train.internals import BatchNorm, foreach_norm, gradient_hooks, has_scheduler

if TYPE_CHECKING:
    from gpq_agent.train.loop.engine import Engine
    from gpq_agent.train.loop.setup import TrainingSetup

Method = TypeVar("Method", bound=Callable[..., None])

HOOK_STEPS = 5  # steps of an attempt after which new hooks are looked for
WEIGHT_STEPS = 3  # steps of an attempt in which a change of weights is looked for


def _guard(method: Method) -> Method:
    """It reads objects of the script, which may raise. Training continues, and nobody watches."""

    @functools.wraps(method)
    def guarded(self: "LoopWatch", *args: Any, **kwargs: Any) -> None:
        if self.is_off:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.fail(error)

    return cast(Method, guarded)


class LoopWatch:
    """One per job with a loader, from `job.prepare()` on. Changes nothing, and nothing that it does
    is collective. is_off: it watches no longer."""

    def __init__(self, engine: "Engine", setup: "TrainingSetup") -> None:
        self.is_off = False
        self._engine, self._report = engine, engine.lose
        self._noticed = engine.shape.freedoms.noticed
        self._models, self._optimizers = setup.training.models, setup.training.optimizers
        self._schedulers, self._parts = setup.training.schedulers, engine.checkpointer.parts
        self._gradients = setup.gradients
        self.foreign_steps: List[str] = []  # classes of other optimizers that stepped in the body
        self._norms: Optional[List[float]] = None  # of parameters, at the start of a step
        self._epoch = -1  # of the newest watched micro-batch
        self._trained: List[bool] = []  # which parameters it trained
        self._lacks_schedule = False  # a micro-batch ended without a call of a scheduler
        # torch reports every step in the process. Inner optimizers of the job's own ones belong to
        # them.
        own = set(map(id, self._optimizers))
        for optimizer in self._optimizers:
            own.update(map(id, inner_optimizers(optimizer)))
        reference = weakref.ref(self)

        def stepping(optimizer: Any, args: Any, kwargs: Any) -> None:
            watch = reference()
            if watch is not None and id(optimizer) not in own:
                loop = watch._engine.loop
                if loop is not None and loop.in_body:
                    watch.foreign_steps.append(type(optimizer).__name__)

        handle = register_optimizer_step_pre_hook(stepping)
        self._remove_hook = weakref.finalize(self, handle.remove)

    @_guard
    def training_begins(self) -> None:
        """The first micro-batch of the attempt has arrived, so models are as they are trained."""
        self._look_for_hooks()
        self._look_for_schedulers()
        self._look_for_norms()

    @_guard
    def step_begins(self, step: int) -> None:
        """Before the first body of a watched step. `step`: steps of this attempt so far."""
        self._norms = self._parameter_norms() if step < WEIGHT_STEPS else None

    @_guard
    def batch_ends(
        self, micro: Micro, facts: BodyFacts, step: int, *, is_watched: bool, left_early: bool
    ) -> None:
        """After the body of the loop. `left_early`: by a break or an error."""
        if step < HOOK_STEPS:
            self._look_for_hooks()
        if is_watched:  # does the set of trained parameters change within an epoch?
            epoch = self._engine.runtime.meter.epoch
            is_same_epoch, before = epoch == self._epoch, self._trained
            trained = [item.requires_grad for item in self._gradients.parameters()]
            self._epoch, self._trained = epoch, trained
            if is_same_epoch and before != trained[: len(before)] and not facts.asked_step:
                self._report("own-freezing")
            if not is_same_epoch:  # a layer may have been frozen until now
                self._look_for_norms()
        if self.foreign_steps:
            self._report("other-optimizer", self.foreign_steps[0])
            self.foreign_steps = []
        if facts.groups_added or self._gradients.lost_some:
            self._report("late-group")
        if left_early:
            if not facts.asked_step:
                self._report("own-break")
            return
        # A loop that asked job.at_step in a micro-batch that only accumulates may skip steps.
        if micro.last or not facts.asked_sync:
            self._judge_steps(facts)
        # A scheduler that is called only in some passes of the loop is called by a count of them.
        # In many loops, a step that a GradScaler skips does not count for a schedule either.
        if not (facts.asked_sync or facts.asked_step):
            if facts.scheduled and self._lacks_schedule:
                self.rate_set()
            self._lacks_schedule |= not (facts.scheduled or facts.skipped)

    @_guard
    def boundary(self) -> None:
        """Between two steps, after a watched one."""
        self._look_for_schedulers()

    @_guard
    def epoch_ends(self) -> None:
        """After the last step of an epoch."""
        self._look_for_hooks()

    @_guard
    def rate_set(self) -> None:
        """The loop sets a learning rate by its own count. If the optimizer has a scheduler that the
        job was not given, that is the habit."""
        if self._noticed("own-rate") or self._noticed("forgotten-scheduler"):
            return
        if not self._look_for_schedulers():
            self._report("own-rate")

    def stop(self) -> None:
        """Watch no longer."""
        self.is_off = True
        self._remove_hook()

    def fail(self, error: Exception) -> None:
        """An object of the script raised, so watch no longer."""
        self.stop()
        text = " ".join("{}: {}".format(type(error).__name__, error).split())[:200]
        self._engine.runtime.notice(
            "gpq no longer watches what the loop does, and training continues ({}). gpq check "
            "compares what it trains".format(text)
        )

    def _look_for_hooks(self) -> None:
        """A hook of a parameter may change its gradient before a batch is complete. Those of wandb
        only read. Hooks of modules and activations are covered by gpq check."""
        for item in self._gradients.parameters():
            for hooks in gradient_hooks(item):
                for hook in hooks.values():
                    module = getattr(hook, "__module__", None) or ""
                    if module.partition(".")[0] != "wandb":
                        self._report("grad-hook", getattr(hook, "__qualname__", repr(hook)))
                        return

    def _look_for_norms(self) -> None:
        """Batch norm computes statistics over the part on one device, or over all replicas with
        SyncBatchNorm. A layer in eval mode computes none, and groups do not depend on the parts."""
        synchronised = ""
        for model in self._models:
            for name, layer in unwrap(model).inner.named_modules():
                is_free = isinstance(layer, GroupedLayer) or not isinstance(layer, BatchNorm)
                if is_free or not layer.training:
                    continue
                if not isinstance(layer, torch.nn.SyncBatchNorm):
                    self._report("batch-norm", name)
                    return
                synchronised = synchronised or name or type(layer).__name__
        if synchronised:
            self._report("sync-batch-norm", synchronised)

    def _look_for_schedulers(self) -> bool:
        """Has an optimizer a scheduler that the job was not given? Every scheduler of torch leaves
        a mark on its optimizer. A second one leaves no second mark, so an optimizer with one given
        scheduler counts as complete."""
        of_torch = torch.optim.lr_scheduler.LRScheduler
        registered = [part for part in self._parts.by_name().values() if isinstance(part, of_torch)]
        owners = [getattr(item, "optimizer", None) for item in (*self._schedulers, *registered)]
        if any(owner is None for owner in owners):
            return False  # a scheduler of another kind may belong to any optimizer
        for optimizer in self._optimizers:
            if has_scheduler(optimizer) and not any(optimizer is owner for owner in owners):
                self._report("forgotten-scheduler", type(optimizer).__name__)
                return True
        return False

    def _judge_steps(self, facts: BodyFacts) -> None:
        """A body without a step changes weights itself, accumulates or skips the batch: did
        parameters change anyway, and was there a backward pass? Waits for the device in the first
        steps, later only if a step is missing."""
        if facts.stepped:
            if facts.idle:
                self._report("uneven-steps", ", ".join(facts.idle))
            return
        is_changed = self._norms is not None and self._norms != self._parameter_norms()
        if is_changed or self._noticed("hand-step"):
            self._report("hand-step")
        else:
            self._report("hand-accumulation" if facts.has_gradients else "skipped-batch")

    def _parameter_norms(self) -> List[float]:
        parameters = self._gradients.parameters()
        dense = [item.detach() for item in parameters if not item.is_sparse]
        return [float(norm) for norm in foreach_norm(dense)] if dense else []
