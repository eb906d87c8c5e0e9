"""What happens in a training loop, as plain facts that the library gives to observers of habits."""

from typing import NamedTuple, Optional, Sequence, Tuple


class LoopBegin(NamedTuple):
    """A loop over the loader. `by_next`: the script calls `next()`. `epoch`: of `job.epochs()`,
    None outside it."""

    by_next: bool
    epoch: Optional[int]


class BatchBegin(NamedTuple):
    """The script is about to get a micro-batch. `step`: steps of this attempt so far."""

    step: int
    place: int


class StepCall(NamedTuple):
    """`optimizer.step()` in the loop. `last`: in the last micro-batch of a step. `repeated`: for
    the second time in a micro-batch. `value`: it got a tensor or a number. `without_backward`: no
    backward pass left the gradients."""

    last: bool
    repeated: bool = False
    closure: bool = False
    value: bool = False
    without_backward: bool = False


class SettingsChange(NamedTuple):
    """The script changed a learning rate. `in_pieces`: between two micro-batches of a
    step. `asked_step`: it asked for `job.step` in this micro-batch."""

    in_pieces: bool
    asked_step: bool


class SchedulerCall(NamedTuple):
    """`scheduler.step()` in a micro-batch, with its place."""

    asked_step: bool


class OptimizerFacts(NamedTuple):
    """Facts of a loop body: was a step called, and which optimizers did not step? Was there a
    backward pass? What did the script ask for? Was a scheduler called? Did a GradScaler skip the
    step? Are there more groups?"""

    stepped: bool
    idle: Tuple[str, ...]
    has_gradients: bool
    asked_step: bool
    asked_sync: bool
    scheduled: bool
    skipped: bool
    groups_added: bool


class GradientFacts(NamedTuple):
    """Gradients changed between two backward passes of a micro-batch that only accumulates, or
    belong to other parameters than before."""

    changed_between: bool
    replaced: bool


class BatchEnd(NamedTuple):
    """The script is done with a micro-batch. `last`: of its step. `left_early`: by a break or an
    error."""

    step: int
    epoch: int
    place: int
    last: bool
    left_early: bool
    optimizers: OptimizerFacts
    gradients: GradientFacts


class FirstPartEnd(NamedTuple):
    """What the first micro-batch of a step has already changed: parameters, a buffer of the models
    by name, parts that the script registered by name."""

    parameters: bool
    buffer: str
    parts: Sequence[str]


class Failure(NamedTuple):
    """This error is about to end the script, in micro-batch `place` of `micro_batches`, with
    `examples` of the `total` examples of its step."""

    place: int
    micro_batches: int
    examples: int
    total: int
    error: BaseException
