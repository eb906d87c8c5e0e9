"""Step times of this replica by configuration: what is measured, what is dropped, and the sums that go up.

On a GPU times are taken between CUDA events on the training stream and read later, so measuring never waits for it.
"""

import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from .batches import Configuration

WARM_UP = 5  # steps dropped after a start or a change: autotuning, caches, prefetched data
OUTLIER_DEVIATIONS = 5.0  # of the median absolute deviation, scaled to a standard deviation
MOST_STEPS = 1 << 16  # kept for one window
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


class Entry(NamedTuple):
    """One micro-batch, its marks not read yet."""

    key: Tuple[int, int]
    first: bool  # of its step
    synchronised: bool
    begin: Any
    end: Any
    tail: Optional[Tuple[Any, ...]]
    fetch: float  # seconds that this thread waited for its data


class StepTimes:
    """Collects the micro-batches of one replica. A step with anything unusual in it is `spoil`ed and not counted."""

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock
        self._waiting: List[Entry] = []
        self._accum: Dict[Tuple[int, int], List[float]] = {}
        self._step: Dict[Tuple[int, int], List[float]] = {}
        self._ranked: List[Tuple[float, float, float]] = []
        self._open: Optional[Tuple[float, float]] = None  # (seconds, of it fetching) of a step that accumulates
        self._current: Tuple[int, int] = (0, 0)
        self._warm = 0
        self._spoiled = False
        self._first = True
        self._begin: Any = None
        self._fetch_begin = 0.0
        self._fetch = 0.0

    def begin(self, configuration: Configuration, *, first: bool, usable: bool) -> None:
        """A micro-batch was fetched; `first` of its step."""
        self._fetch = time.perf_counter() - self._fetch_begin
        self._first = first
        if first:
            key = (configuration.atomic_batch, configuration.accum_steps)
            self._warm = 0 if key != self._current else self._warm + 1
            self._current = key
            self._spoiled = not usable or self._warm < WARM_UP
        self._spoiled = self._spoiled or not usable

    def start(self) -> None:
        """A micro-batch is about to be fetched."""
        self._begin = self.clock.mark()
        self._fetch_begin = time.perf_counter()

    def spoil(self) -> None:
        """Something that is not training happened within this step."""
        self._spoiled = True

    def end(self, *, synchronised: bool, tail: Optional[Tuple[Any, ...]]) -> None:
        """The micro-batch is done. `tail`: marks of the last local gradient and of the end of its synchronisation; empty
        if there was nothing to wait for, None if not measured."""
        if not self._spoiled and self._begin is not None:
            mark = self.clock.mark()
            self._waiting.append(Entry(self._current, self._first, synchronised, self._begin, mark, tail, self._fetch))

    def flush(self) -> List[Tuple[Tuple[int, int], Sums, Sums]]:
        """Sums per (atomic, accum) since the last flush, gradient part first. Marks not ready yet stay for the next."""
        self._read()
        keys = sorted(set(self._accum) | set(self._step))
        result = [(key, sums(self._accum.get(key, [])), sums(self._step.get(key, []))) for key in keys]
        self._accum, self._step = {}, {}
        return result

    def window(self) -> List[float]:
        """Since the last window: number of steps, median and 95th percentile of the seconds of a step without waiting for
        other replicas, mean seconds of a whole step, of the waiting, of fetching data. Zeros where nothing was measured."""
        self._read()
        rows, self._ranked = self._ranked, []
        if not rows:
            return [0.0] * 6
        computes = sorted(whole - waited for whole, waited, _ in rows)
        last = computes[min(int(0.95 * len(computes)), len(computes) - 1)]
        means = [sum(row[place] for row in rows) / len(rows) for place in range(3)]
        return [float(len(rows)), computes[len(computes) // 2], last, *means]

    def _read(self) -> None:
        left: List[Entry] = []
        for entry in self._waiting:
            if left or not (self.clock.ready(entry.begin) and self.clock.ready(entry.end)):
                left.append(entry)  # and all after it, so that the parts of a step stay together
                continue
            seconds = self.clock.seconds(entry.begin, entry.end)
            (self._step if entry.synchronised else self._accum).setdefault(entry.key, []).append(seconds)
            waited = None
            if entry.synchronised and entry.tail is not None:
                waited = self.clock.seconds(*entry.tail) if entry.tail else 0.0
                if entry.key[1] == 0:
                    self._accum.setdefault(entry.key, []).append(max(seconds - waited, 0.0))
            self._add(entry, seconds, waited)
        self._waiting = left

    def _add(self, entry: Entry, seconds: float, waited: Optional[float]) -> None:
        """One micro-batch to the step that it is of."""
        before = (0.0, 0.0) if entry.first else self._open
        self._open = None
        if before is None:  # the beginning of its step was spoiled
            return
        whole, fetch = before[0] + seconds, before[1] + entry.fetch
        if not entry.synchronised:
            self._open = (whole, fetch)
        elif waited is not None and len(self._ranked) < MOST_STEPS:
            self._ranked.append((whole, min(waited, whole), fetch))
