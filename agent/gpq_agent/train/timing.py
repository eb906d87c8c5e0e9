"""Step times of this replica by configuration: what is measured, what is dropped, and the sums that go up.

On a GPU times are taken between CUDA events on the training stream and read later, so measuring never waits for it.
"""

import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from .batches import Configuration

WARM_UP = 5  # steps dropped after a start or a change: autotuning, caches, prefetched data
OUTLIER_DEVIATIONS = 5.0  # of the median absolute deviation, scaled to a standard deviation
OUTLIER_FLOOR = 0.1  # never trim what is within 10 % of the median


class Sums(NamedTuple):
    """How many, their sum and the sum of their squares, seconds."""

    number: int
    total: float
    squares: float


class StepClock:
    """Marks on the device's own time line. On the CPU a mark is a float, on CUDA an event."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def ready(self, mark: Any) -> bool:
        return not self._cuda or bool(mark.query())

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two marks that are ready."""
        return float(begin.elapsed_time(end)) / 1000.0 if self._cuda else float(end - begin)


def trim(values: List[float]) -> List[float]:
    """`values` without those far from their median: a neighbour's burst says nothing of this configuration."""
    if len(values) < 5:
        return values
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2]
    deviation = sorted(abs(value - middle) for value in ordered)[len(ordered) // 2]
    reach = max(OUTLIER_DEVIATIONS * 1.4826 * deviation, OUTLIER_FLOOR * middle)
    return [value for value in values if abs(value - middle) <= reach]


def sums(values: List[float]) -> Sums:
    kept = trim(values)
    return Sums(len(kept), sum(kept), sum(value * value for value in kept))


class StepTimes:
    """Collects the micro-batches of one replica. A step with anything unusual in it is `spoil`ed and not counted."""

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock
        self._waiting: List[Tuple[Tuple[int, int], bool, Any, Any, Optional[Tuple[Any, ...]]]] = []
        self._accum: Dict[Tuple[int, int], List[float]] = {}
        self._step: Dict[Tuple[int, int], List[float]] = {}
        self._current: Tuple[int, int] = (0, 0)
        self._warm = 0
        self._spoiled = False
        self._begin: Any = None

    def begin(self, configuration: Configuration, *, first: bool, usable: bool) -> None:
        """A micro-batch is about to be fetched; `first` of its step."""
        if first:
            key = (configuration.atomic_batch, configuration.accum_steps)
            self._warm = 0 if key != self._current else self._warm + 1
            self._current = key
            self._spoiled = not usable or self._warm < WARM_UP
        self._spoiled = self._spoiled or not usable

    def start(self) -> None:
        self._begin = self.clock.mark()

    def spoil(self) -> None:
        """Something that is not training happened within this step."""
        self._spoiled = True

    def end(self, *, synchronised: bool, tail: Optional[Tuple[Any, ...]]) -> None:
        """The micro-batch is done. `tail`: marks of the last local gradient and of the end of its synchronisation; empty
        if there was nothing to wait for, None if not measured."""
        if not self._spoiled and self._begin is not None:
            self._waiting.append((self._current, synchronised, self._begin, self.clock.mark(), tail))

    def flush(self) -> List[Tuple[Tuple[int, int], Sums, Sums]]:
        """Sums per (atomic, accum) since the last flush, gradient part first. Marks not ready yet stay for the next."""
        left = []
        for entry in self._waiting:
            key, synchronised, begin, end, tail = entry
            if not (self.clock.ready(begin) and self.clock.ready(end)):
                left.append(entry)
                continue
            seconds = self.clock.seconds(begin, end)
            (self._step if synchronised else self._accum).setdefault(key, []).append(seconds)
            if synchronised and key[1] == 0 and tail is not None:
                waited = self.clock.seconds(*tail) if tail else 0.0
                self._accum.setdefault(key, []).append(max(seconds - waited, 0.0))
        self._waiting = left
        keys = sorted(set(self._accum) | set(self._step))
        result = [(key, sums(self._accum.get(key, [])), sums(self._step.get(key, []))) for key in keys]
        self._accum, self._step = {}, {}
        return result
