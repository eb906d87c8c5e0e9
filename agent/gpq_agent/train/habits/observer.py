"""Who watches a training loop for a habit: what it is told, and what it may look at.

An observer reads events and changes nothing. It knows no other observer. Nothing that it does is
collective: replicas compare only the numbers that it shares.
"""

from typing import (
    Any,
    Callable,
    ClassVar,
    NamedTuple,
    Sequence,
    Tuple,
)

import torch

from gpq_agent.train.events import (
    BatchBegin,
    BatchEnd,
    Boundary,
    EpochBegin,
    Failure,
    FirstPartEnd,
    LoopBegin,
    SchedulerCall,
    SettingsChange,
    StepCall,
    StepOutside,
)

from .table import Habit

Habits = Sequence[Habit]


class JobView(NamedTuple):
    """What an observer may look at. `parameters`: of all optimizers, each once. `parts`: what
    checkpoints hold. `gradients`: what the library keeps of those between two steps. `noticed`: is
    this habit known already? `in_batch`: is the script at work on a micro-batch? `attend`: to be
    called by an observer that wants to hear of the end of the micro-batch in hand. `is_lead`: this
    is the replica that looks at what is alike on all."""

    models: Sequence[torch.nn.Module]
    optimizers: Sequence[Any]
    parameters: Callable[[], Sequence[torch.nn.Parameter]]
    parts: Sequence[Any] = ()
    gradients: Callable[[], Sequence[torch.Tensor]] = list
    noticed: Callable[[str], bool] = lambda code: False
    in_batch: Callable[[], bool] = lambda: False
    attend: Callable[[], None] = lambda: None
    is_lead: bool = True
    own_comm_hook: bool = False


class Observer:
    """Notices one habit. Every method returns what it has noticed, by default nothing.

    `codes`: all that it ever returns. `shares`: how many numbers it compares over replicas.
    """

    codes: ClassVar[Tuple[str, ...]] = ()
    shares: ClassVar[int] = 0

    def __init__(self, job: JobView) -> None:
        self.job = job

    def attempt_begins(self) -> Habits:
        """The script has prepared its training."""
        return ()

    def training_begins(self) -> Habits:
        """The first micro-batch of the attempt is there: models are as they are trained."""
        return ()

    def epoch_begins(self, event: EpochBegin) -> Habits:
        """At the head of `job.epochs()`."""
        return ()

    def place_asked(self) -> Habits:
        """The script has asked how far it is: what it does at the head of an epoch, it does by
        that."""
        return ()

    def loop_begins(self, event: LoopBegin) -> Habits:
        """The script begins a loop over the loader, perhaps for a look only."""
        return ()

    def loop_trains(self, event: LoopBegin) -> Habits:
        """The loop that has begun was none for a look only."""
        return ()

    def batch_begins(self, event: BatchBegin) -> Habits:
        """Before the body of the loop, in a watched step or one that can still be taken back."""
        return ()

    def backward_begins(self) -> Habits:
        """Before a backward pass, in a watched step or one that can still be taken back."""
        return ()

    def backward_after_step(self) -> Habits:
        """A backward pass has left gradients to parameters of the job, after an optimizer has
        stepped in the same body."""
        return ()

    def step_called(self, event: StepCall) -> Habits:
        """Before an optimizer that the job was given steps, otherwise than once and after a
        backward pass."""
        return ()

    def settings_changed(self, event: SettingsChange) -> Habits:
        """Seen at the next step, or at the end of the body."""
        return ()

    def scheduler_called(self, event: SchedulerCall) -> Habits:
        """Of a scheduler that the job was given, outside the loop or with its place."""
        return ()

    def step_outside(self, event: StepOutside) -> Habits:
        """Of an optimizer that the job was given."""
        return ()

    def batch_ends(self, event: BatchEnd) -> Habits:
        """After the body of the loop, in a watched step or where it is not as it was before."""
        return ()

    def first_part_ends(self, event: FirstPartEnd) -> Habits:
        """After the first micro-batch of a step that can still be taken back."""
        return ()

    def boundary(self, event: Boundary) -> Habits:
        """Between two steps, after a watched one."""
        return ()

    def epoch_ends(self) -> Habits:
        """After the last step of an epoch."""
        return ()

    def failed(self, event: Failure) -> Habits:
        """The process is about to end."""
        return ()

    def share(self) -> Sequence[float]:
        """`shares` numbers of this replica, after one of the first steps and after each epoch."""
        return ()

    def compare(self, rows: Sequence[Sequence[float]]) -> Habits:
        """What replicas have shared, all of it numbers. Called where two or more have something."""
        return ()

    def close(self) -> None:
        """Take off what it has put on."""
