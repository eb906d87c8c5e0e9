"""Step times of this replica by configuration: measures them, drops outliers, and sums them up for
reports.

On a GPU times are taken between CUDA events on the training stream and read later, so measuring
never waits for it.
"""

import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

if TYPE_CHECKING:
    from gpq_agent.train.data.batches import Configuration

WARM_UP = 5  # steps dropped after a start or a change: autotuning, caches, prefetched data
OUTLIER_DEVIATIONS = 5.0  # of the median absolute deviation, scaled to a standard deviation
MOST_STEPS = 1 << 16  # values kept for one window
OUTLIER_FLOOR = 0.1  # never trim values within 10 % of the median


class Sums(NamedTuple):
    """Their number and sum, in seconds."""

    number: int
    total: float


class StepClock:
    """Marks on the device's own time line. A mark is a float on the CPU, and an event on CUDA."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

        def event() -> Any:
            mark: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            mark.record()
            return mark

        self.mark: Callable[[], Any] = event if self._cuda else time.perf_counter

    def ready(self, mark: Any) -> bool:
        return not self._cuda or bool(mark.query())

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two marks that are ready."""
        return float(begin.elapsed_time(end)) / 1000.0 if self._cuda else float(end - begin)


def trim(values: List[float]) -> List[float]:
    """`values` without those far from their median. A burst of a neighbour says nothing about this
    configuration."""
    if len(values) < 5:
        return values
    ascending = sorted(values)
    middle = ascending[len(ascending) // 2]
    deviation = sorted(abs(value - middle) for value in ascending)[len(ascending) // 2]
    reach = max(OUTLIER_DEVIATIONS * 1.4826 * deviation, OUTLIER_FLOOR * middle)
    return [value for value in values if abs(value - middle) <= reach]


def sums(values: List[float]) -> Sums:
    inliers = trim(values)
    return Sums(len(inliers), sum(inliers))


class Entry(NamedTuple):
    """One micro-batch whose marks have not been read yet."""

    key: Tuple[int, int]
    first: bool  # of its step
    synchronised: bool
    begin: Any
    end: Any
    tail: Optional[Tuple[Any, ...]]
    fetch: float  # seconds that this thread waited for its data


class StepTimes:
    """Collects the micro-batches of one replica. A step with anything unusual in it is discarded
    and not counted."""

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock
        self._entries: List[Entry] = []
        self._accum: Dict[Tuple[int, int], List[float]] = {}
        self._step: Dict[Tuple[int, int], List[float]] = {}
        self._rank_rows: List[Tuple[float, float, float]] = []
        # (seconds, of which fetching) of a step that accumulates.
        self._open_step: Optional[Tuple[float, float]] = None
        self._key: Tuple[int, int] = (0, 0)
        self._warm_steps = 0
        self._is_spoiled = False
        self._first = True
        self._start: Any = None
        self._fetch_begin = 0.0
        self._fetch = 0.0

    def begin(self, configuration: "Configuration", *, first: bool, usable: bool) -> None:
        """A micro-batch was fetched. `first`: in its step."""
        self._fetch = time.perf_counter() - self._fetch_begin
        self._first = first
        if first:
            key = (configuration.atomic_batch, configuration.accum_steps)
            self._warm_steps = 0 if key != self._key else self._warm_steps + 1
            self._key = key
            self._is_spoiled = not usable or self._warm_steps < WARM_UP
        self._is_spoiled = self._is_spoiled or not usable

    def start(self) -> None:
        """A micro-batch is about to be fetched."""
        self._start = self.clock.mark()
        self._fetch_begin = time.perf_counter()

    def discard(self) -> None:
        """Something other than training happened in this step."""
        self._is_spoiled = True

    def end(self, *, synchronised: bool, tail: Optional[Tuple[Any, ...]]) -> None:
        """The micro-batch is done. `tail`: marks of the last local gradient and of the end of its
        synchronisation. Empty if there was nothing to wait for, None if not measured."""
        if not self._is_spoiled and self._start is not None:
            start, mark, fetch = self._start, self.clock.mark(), self._fetch
            entry = Entry(self._key, self._first, synchronised, start, mark, tail, fetch)
            self._entries.append(entry)

    def flush(self) -> List[Tuple[Tuple[int, int], Sums, Sums]]:
        """Sums per (atomic, accum) since the last flush, the gradient part first. Marks that are
        not ready wait for the next one."""
        self._read()
        accum, step, self._accum, self._step = self._accum, self._step, {}, {}
        keys = sorted(accum.keys() | step.keys())
        return [(key, sums(accum.get(key, [])), sums(step.get(key, []))) for key in keys]

    def window(self) -> List[float]:
        """Figures since the last window, zeros if nothing was measured. The first is the number of
        steps. Then come the median and 95th percentile of the seconds of a step without waiting for
        other replicas. The last are the mean seconds of a whole step, of waiting, and of fetching
        data."""
        self._read()
        rows, self._rank_rows = self._rank_rows, []
        if not rows:
            return [0.0] * 6
        computes = sorted(total - wait for total, wait, _ in rows)
        percentile = computes[min(int(0.95 * len(computes)), len(computes) - 1)]
        means = [sum(row[place] for row in rows) / len(rows) for place in range(3)]
        return [float(len(rows)), computes[len(computes) // 2], percentile, *means]

    def _read(self) -> None:
        unread: List[Entry] = []
        for entry in self._entries:
            if unread or not (self.clock.ready(entry.begin) and self.clock.ready(entry.end)):
                # and everything after it, so that the parts of a step stay together
                unread.append(entry)
                continue
            seconds = self.clock.seconds(entry.begin, entry.end)
            times = self._step if entry.synchronised else self._accum
            times.setdefault(entry.key, []).append(seconds)
            wait = None
            if entry.synchronised and entry.tail is not None:
                wait = self.clock.seconds(*entry.tail) if entry.tail else 0.0
                if entry.key[1] == 0:
                    self._accum.setdefault(entry.key, []).append(max(seconds - wait, 0.0))
            # Add the micro-batch to its step.
            previous = (0.0, 0.0) if entry.first else self._open_step
            self._open_step = None
            if previous is None:  # the start of its step was spoiled
                continue
            total, fetch_seconds = previous[0] + seconds, previous[1] + entry.fetch
            if not entry.synchronised:
                self._open_step = (total, fetch_seconds)
            elif wait is not None and len(self._rank_rows) < MOST_STEPS:
                self._rank_rows.append((total, min(wait, total), fetch_seconds))
        self._entries = unread
