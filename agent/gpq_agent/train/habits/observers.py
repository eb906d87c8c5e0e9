"""Those who watch a training loop for habits: what each is told, and what becomes of one that fails.

An observer reads events and changes nothing. It knows no other observer. Nothing that it does is
collective: replicas compare only the numbers that it shares.
"""

import math
from typing import Any, Callable, ClassVar, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Type

import torch

from gpq_agent.train.events import (
    BackwardBegin,
    BatchBegin,
    BatchEnd,
    Boundary,
    EpochBegin,
    Failure,
    FirstPartEnd,
    LoopBegin,
    Meeting,
    SchedulerCall,
    SettingsChange,
    StepCall,
    StepOutside,
)

from .table import Habit

Habits = Iterable[Habit]


class JobView(NamedTuple):
    """What an observer may look at. `parameters`: of all optimizers, each once. `parts`: what
    checkpoints hold. `gradients`: what the library keeps of those between two steps. `noticed`: is
    this habit known already? `in_batch`: is the script at work on a micro-batch?"""

    models: Sequence[torch.nn.Module]
    optimizers: Sequence[Any]
    parameters: Callable[[], Sequence[torch.nn.Parameter]]
    parts: Sequence[Any] = ()
    gradients: Callable[[], Sequence[torch.Tensor]] = list
    noticed: Callable[[str], bool] = lambda code: False
    in_batch: Callable[[], bool] = lambda: False
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
        """The script has asked how far it is: what it does at the head of an epoch, it does by that."""
        return ()

    def loop_begins(self, event: LoopBegin) -> Habits:
        """The script begins a loop over the loader, perhaps for a look only."""
        return ()

    def loop_trains(self, event: LoopBegin) -> Habits:
        """The loop that has begun was none for a look only."""
        return ()

    def batch_begins(self, event: BatchBegin) -> Habits:
        """Before the body of the loop."""
        return ()

    def backward_begins(self, event: BackwardBegin) -> bool:
        """Before a backward pass. True: `backward_reaches` is to be called after it."""
        return False

    def backward_reaches(self) -> Habits:
        """The backward pass has left gradients to parameters of the job."""
        return ()

    def step_called(self, event: StepCall) -> Habits:
        """Before an optimizer that the job was given steps."""
        return ()

    def settings_changed(self, event: SettingsChange) -> Habits:
        """Seen at the next step, or at the end of the body."""
        return ()

    def scheduler_called(self, event: SchedulerCall) -> Habits:
        """Of a scheduler that the job was given."""
        return ()

    def step_outside(self, event: StepOutside) -> Habits:
        """Of an optimizer that the job was given."""
        return ()

    def batch_ends(self, event: BatchEnd) -> Habits:
        """After the body of the loop."""
        return ()

    def first_part_ends(self, event: FirstPartEnd) -> Habits:
        """After the first micro-batch of a step that can still be taken back."""
        return ()

    def boundary(self, event: Boundary) -> Habits:
        """Between two steps."""
        return ()

    def epoch_ends(self) -> Habits:
        """After the last step of an epoch."""
        return ()

    def failed(self, event: Failure) -> Habits:
        """The process is about to end."""
        return ()

    def share(self, event: Meeting) -> Sequence[float]:
        """`shares` numbers of this replica; not a number where there is nothing to compare."""
        return ()

    def compare(self, rows: Sequence[Sequence[float]]) -> Habits:
        """What replicas have shared, all of it numbers. Called where two or more have something."""
        return ()

    def close(self) -> None:
        """Take off what it has put on."""


EVENTS = tuple(name for name in vars(Observer) if not name.startswith("_") and name not in ("codes", "shares"))


class Observers:
    """Calls those that override a method. One that raises is closed and named in a line to the user."""

    def __init__(
        self,
        kinds: Sequence[Type[Observer]],
        job: JobView,
        report: Callable[[Habit], None],
        notice: Callable[[str], None],
    ) -> None:
        self._report, self._notice = report, notice
        self._observers: List[Observer] = []
        for kind in kinds:
            try:
                self._observers.append(kind(job))
            except Exception as error:
                self._tell(kind, error)
        # As replicas compare them: the same on each, whoever was dropped there.
        self._sharing = [kind for kind in kinds if kind.shares]
        self._methods: Dict[str, List[Callable[..., Any]]] = {}
        self._choose()

    def attempt_begins(self) -> None:
        """As for an observer, and so are all others."""
        self._emit("attempt_begins")

    def training_begins(self) -> None:
        self._emit("training_begins")

    def epoch_begins(self, event: EpochBegin) -> None:
        self._emit("epoch_begins", event)

    def place_asked(self) -> None:
        self._emit("place_asked")

    def loop_begins(self, event: LoopBegin) -> None:
        self._emit("loop_begins", event)

    def loop_trains(self, event: LoopBegin) -> None:
        self._emit("loop_trains", event)

    def batch_begins(self, event: BatchBegin) -> None:
        self._emit("batch_begins", event)

    def backward_begins(self, event: BackwardBegin) -> bool:
        """Does anybody ask whether the backward pass reaches parameters of the job?"""
        asked = False
        for method in self._methods["backward_begins"]:
            try:
                asked = method(event) or asked
            except Exception as error:
                self._drop(method, error)
        return asked

    def backward_reaches(self) -> None:
        self._emit("backward_reaches")

    def step_called(self, event: StepCall) -> None:
        self._emit("step_called", event)

    def settings_changed(self, event: SettingsChange) -> None:
        self._emit("settings_changed", event)

    def scheduler_called(self, event: SchedulerCall) -> None:
        self._emit("scheduler_called", event)

    def step_outside(self, event: StepOutside) -> None:
        self._emit("step_outside", event)

    def batch_ends(self, event: BatchEnd) -> None:
        self._emit("batch_ends", event)

    def first_part_ends(self, event: FirstPartEnd) -> None:
        self._emit("first_part_ends", event)

    def boundary(self, event: Boundary) -> None:
        self._emit("boundary", event)

    def epoch_ends(self) -> None:
        self._emit("epoch_ends")

    def failed(self, event: Failure) -> List[Habit]:
        """Returns the habits: nobody can be asked about them any more."""
        habits: List[Habit] = []
        for method in self._methods["failed"]:
            try:
                habits += method(event)
            except Exception as error:
                self._drop(method, error)
        return habits

    def meet(self, event: Meeting, gather: Callable[[List[float]], List[List[float]]]) -> None:
        """Let replicas compare what they share. `gather`: the values of all of them, by rank.
        Collective."""
        if not self._sharing:
            return
        rows = gather([value for kind in self._sharing for value in self._shared(kind, event)])
        begin = 0
        for kind in self._sharing:
            end = begin + kind.shares
            parts = [row[begin:end] for row in rows]
            parts = [part for part in parts if not any(map(math.isnan, part))]
            begin = end
            observer = self._find(kind)
            if observer is not None and len(parts) > 1:
                self._call(observer.compare, parts)

    def close(self) -> None:
        """Of all."""
        for observer in self._observers:
            observer.close()
        self._observers = []
        self._choose()

    # -- inside --------------------------------------------------------------------------------------

    def _emit(self, name: str, *event: Any) -> None:
        for method in self._methods[name]:
            self._call(method, *event)

    def _call(self, method: Callable[..., Habits], *event: Any) -> None:
        try:
            habits = method(*event)
        except Exception as error:
            self._drop(method, error)
            return
        for habit in habits:
            self._report(habit)

    def _shared(self, kind: Type[Observer], event: Meeting) -> Sequence[float]:
        observer = self._find(kind)
        if observer is not None:
            try:
                values = observer.share(event)
                if len(values) == kind.shares:
                    return values
            except Exception as error:
                self._drop(observer.share, error)
        return [math.nan] * kind.shares

    def _find(self, kind: Type[Observer]) -> Optional[Observer]:
        return next((observer for observer in self._observers if type(observer) is kind), None)

    def _choose(self) -> None:
        self._methods = {
            name: [getattr(one, name) for one in self._observers if _overrides(one, name)] for name in EVENTS
        }

    def _drop(self, method: Any, error: Exception) -> None:
        observer = method.__self__
        self._observers = [one for one in self._observers if one is not observer]
        self._choose()
        self._tell(type(observer), error)
        try:
            observer.close()
        except Exception as second:
            self._tell(type(observer), second)

    def _tell(self, kind: Type[Observer], error: Exception) -> None:
        text = " ".join("{}: {}".format(type(error).__name__, error).split())[:200]
        message = "gpq looks no longer for {}, and training goes on ({})"
        self._notice(message.format(", ".join(kind.codes), text))


def _overrides(observer: Observer, name: str) -> bool:
    return getattr(type(observer), name) is not getattr(Observer, name)
