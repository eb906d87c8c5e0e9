"""The base class of observers, which watch a training loop for a habit: their events, and what they
may read.

An observer reads events and changes nothing. It does not know other observers. Nothing that
it does is collective.
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
    Failure,
    FirstPartEnd,
    LoopBegin,
    SchedulerCall,
    SettingsChange,
    StepCall,
)

from .table import Habit

Habits = Sequence[Habit]


class JobView(NamedTuple):
    """What an observer may read.

    parameters: those of all optimizers, each once. parts: the contents of checkpoints.
    noticed: is this habit already known? in_batch: is the script in a micro-batch?
    attend: an observer calls it to learn of the end of the current micro-batch.
    """

    models: Sequence[torch.nn.Module]
    optimizers: Sequence[Any]
    parameters: Callable[[], Sequence[torch.nn.Parameter]]
    parts: Sequence[Any] = ()
    schedulers: Sequence[Any] = ()
    noticed: Callable[[str], bool] = lambda code: False
    in_batch: Callable[[], bool] = lambda: False
    attend: Callable[[], None] = lambda: None
    own_comm_hook: bool = False


class Observer:
    """Notices one habit. Every method returns the habits that it noticed, by default none.

    codes: every code that it can return.
    """

    codes: ClassVar[Tuple[str, ...]] = ()

    def __init__(self, job: JobView) -> None:
        self.job = job

    def attempt_begins(self) -> Habits:
        """The script has prepared its training."""
        return ()

    def training_begins(self) -> Habits:
        """The first micro-batch of the attempt has arrived, so models are as they are trained."""
        return ()

    def loop_trains(self, event: LoopBegin) -> Habits:
        """A loop over the loader has started, not only for a look."""
        return ()

    def batch_begins(self, event: BatchBegin) -> Habits:
        """Before the body of the loop, in a watched step."""
        return ()

    def backward_after_step(self) -> Habits:
        """A backward pass left gradients to parameters of the job after an optimizer stepped in the
        same body."""
        return ()

    def step_called(self, event: StepCall) -> Habits:
        """Before an optimizer of the job steps, other than once and after a backward pass."""
        return ()

    def settings_changed(self, event: SettingsChange) -> Habits:
        """Seen at the next step, or at the end of the body."""
        return ()

    def scheduler_called(self, event: SchedulerCall) -> Habits:
        """A scheduler of the job is called in the loop, with its place."""
        return ()

    def batch_ends(self, event: BatchEnd) -> Habits:
        """After the body of the loop, in a watched step or if it differs from the one before."""
        return ()

    def first_part_ends(self, event: FirstPartEnd) -> Habits:
        """After the first micro-batch of a step that can still be taken back."""
        return ()

    def boundary(self) -> Habits:
        """Between two steps, after a watched one."""
        return ()

    def epoch_ends(self) -> Habits:
        """After the last step of an epoch."""
        return ()

    def failed(self, event: Failure) -> Habits:
        """The process is about to end."""
        return ()

    def close(self) -> None:
        """Remove what it added."""
