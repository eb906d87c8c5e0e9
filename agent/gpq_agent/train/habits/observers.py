"""All observers of a job: calls them for each event, and drops one that fails."""

from typing import Any, Callable, Dict, List, Sequence, Type

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

from .observer import Habits, JobView, Observer
from .table import Habit

EVENTS = tuple(name for name in vars(Observer) if not name.startswith("_") and name != "codes")


class Observers:
    """Calls the observers that override a method. Closes one that raises, and names it in a line to
    the user. `is_attentive`: one wants to hear of the end of this micro-batch."""

    def __init__(self, report: Callable[[Habit], None], notice: Callable[[str], None]) -> None:
        self.is_attentive = False
        self._report, self._notice = report, notice
        self._observers: List[Observer] = []
        self._methods: Dict[str, List[Callable[..., Any]]] = {}
        self._choose()

    def watch(self, kinds: Sequence[Type[Observer]], job: JobView) -> None:
        """From now on there is something to watch."""
        for kind in kinds:
            try:
                self._observers.append(kind(job))
            except Exception as error:
                self._tell(kind, error)
        self._choose()

    def attend(self) -> None:
        """Hear of the end of the current micro-batch, however usual it is."""
        self.is_attentive = True

    def attempt_begins(self) -> None:
        """As for an observer. So are all others."""
        self._emit("attempt_begins")

    def training_begins(self) -> None:
        self._emit("training_begins")

    def loop_trains(self, event: LoopBegin) -> None:
        self._emit("loop_trains", event)

    def batch_begins(self, event: BatchBegin) -> None:
        self._emit("batch_begins", event)

    def backward_after_step(self) -> None:
        self._emit("backward_after_step")

    def step_called(self, event: StepCall) -> None:
        self._emit("step_called", event)

    def settings_changed(self, event: SettingsChange) -> None:
        self._emit("settings_changed", event)

    def scheduler_called(self, event: SchedulerCall) -> None:
        self._emit("scheduler_called", event)

    def batch_ends(self, event: BatchEnd) -> None:
        self.is_attentive = False
        self._emit("batch_ends", event)

    def first_part_ends(self, event: FirstPartEnd) -> None:
        self._emit("first_part_ends", event)

    def boundary(self) -> None:
        self._emit("boundary")

    def epoch_ends(self) -> None:
        self._emit("epoch_ends")

    def failed(self, event: Failure) -> List[Habit]:
        """Returns the habits, because no other replica can be asked any more."""
        habits: List[Habit] = []
        for method in self._methods["failed"]:
            try:
                habits += method(event)
            except Exception as error:
                self._drop(method, error)
        return habits

    def close(self) -> None:
        """Of all."""
        for observer in self._observers:
            observer.close()
        self._observers = []
        self._choose()

    # -- inside ------------------------------------------------------------------------------------

    def _emit(self, name: str, *event: Any) -> None:
        for method in self._methods[name]:  # called several times per step, so most calls end here
            try:
                habits = method(*event)
            except Exception as error:
                self._drop(method, error)
            else:
                if habits:
                    self._report_all(habits)

    def _report_all(self, habits: Habits) -> None:
        for habit in habits:
            self._report(habit)

    def _choose(self) -> None:
        self._methods = {
            name: [
                getattr(observer, name)
                for observer in self._observers
                if _overrides(observer, name)
            ]
            for name in EVENTS
        }

    def _drop(self, method: Any, error: Exception) -> None:
        observer = method.__self__
        self._observers = [survivor for survivor in self._observers if survivor is not observer]
        self._choose()
        self._tell(type(observer), error)
        try:
            observer.close()
        except Exception as second:
            self._tell(type(observer), second)

    def _tell(self, kind: Type[Observer], error: Exception) -> None:
        text = " ".join("{}: {}".format(type(error).__name__, error).split())[:200]
        message = "gpq no longer watches for {}, and training continues ({})"
        self._notice(message.format(", ".join(kind.codes), text))


def _overrides(observer: Observer, name: str) -> bool:
    return getattr(type(observer), name) is not getattr(Observer, name)
