"""What happens in a training loop, as plain facts: what the library tells those who watch it for
habits."""

from typing import NamedTuple, Optional, Sequence, Tuple


class EpochBegin(NamedTuple):
    """`job.epochs()` is about to give this epoch. `whole`: from its beginning, not from the
    midst."""

    epoch: int
    whole: bool


class LoopBegin(NamedTuple):
    """A loop over the loader. `by_next`: the script asks for batches by `next()`. `epoch`: of
    `job.epochs()`, None outside it."""

    by_next: bool
    epoch: Optional[int]


class BatchBegin(NamedTuple):
    """A micro-batch is about to be given to the script. `step`: steps that this attempt has made.
    `trial`: of the first step in pieces of an epoch, which can still be taken back."""

    step: int
    place: int
    trial: bool


class StepCall(NamedTuple):
    """`optimizer.step()` in the loop. `last`: in the last micro-batch of a step. `repeated`: for
    the second time in a micro-batch. `value`: it was given a tensor or a number.
    `without_backward`: gradients are there, and no backward pass has left them."""

    last: bool
    repeated: bool = False
    closure: bool = False
    value: bool = False
    without_backward: bool = False


class SettingsChange(NamedTuple):
    """The script has set an optimizer otherwise. `in_pieces`: between two micro-batches of a step.
    `asked_step`: it has asked for `job.step` in this micro-batch."""

    in_pieces: bool
    asked_step: bool


class SchedulerCall(NamedTuple):
    """`scheduler.step()`. `in_loop`: in a micro-batch. `placed`: it was given its place."""

    in_loop: bool
    placed: bool
    asked_step: bool


class StepOutside(NamedTuple):
    """An optimizer steps outside the loop over the loader. `after_look`: with a batch that the
    script has taken by `next()` from an iterator that is gone."""

    in_epochs: bool
    after_look: bool


class OptimizerFacts(NamedTuple):
    """Of the body of a loop: was a step called, by which optimizers not, what has the script asked
    for, was a scheduler called, has a GradScaler left the step out, are there more groups."""

    stepped: bool
    idle: Tuple[str, ...]
    asked_step: bool
    asked_sync: bool
    scheduled: bool
    skipped: bool
    groups_added: bool


class GradientFacts(NamedTuple):
    """Gradients changed between two backward passes of a micro-batch that only accumulates, were
    not cleared after a step, or belong to other parameters than before."""

    changed_between: bool
    carried: bool
    replaced: bool


class BatchEnd(NamedTuple):
    """The script is done with a micro-batch. `last`: of its step. `left_early`: by a break, or an
    error."""

    step: int
    epoch: int
    place: int
    last: bool
    left_early: bool
    optimizers: OptimizerFacts
    gradients: GradientFacts


class FirstPartEnd(NamedTuple):
    """What the first micro-batch of a step in pieces has changed already: parameters, a buffer of
    the models by name, parts that the script has registered by name."""

    parameters: bool
    buffer: str
    parts: Sequence[str]


class Boundary(NamedTuple):
    """Between two steps. `steps`: that this attempt has made. `changed`: the newest has changed
    weights."""

    steps: int
    changed: bool


class Failure(NamedTuple):
    """This error is about to end the script, in micro-batch `place` of `micro_batches`, with so
    many of the `total` examples of its step."""

    place: int
    micro_batches: int
    examples: int
    total: int
    error: BaseException
