"""Counts since the daemon started: rounds, commits, waits, ends, restarts. Pure. Each count is a
new value, so any thread may read the latest while the loop makes the next."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpq.core.model.events import Launched, Profiled
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import Seconds
from gpq.core.rounds.rounds import Decision
from gpq.core.state import learn_profile

K = TypeVar("K")
N = TypeVar("N", int, float)

# seconds that gpq's own steps take
MOMENTS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WAITS = (
    1.0,
    10.0,
    60.0,
    300.0,
    900.0,
    3600.0,
    4 * 3600.0,
    12 * 3600.0,
    86400.0,
    3 * 86400.0,
    7 * 86400.0,
)


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts[i]` values are above `bounds[i - 1]` and at or below `bounds[i]`. The last count is
    above all bounds. Seconds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...] = ()
    total: Seconds = 0.0

    def having(self, value: Seconds) -> Histogram:
        """With one more value."""
        counts = list(self.counts or (0,) * (len(self.bounds) + 1))
        counts[bisect_left(self.bounds, value)] += 1
        return Histogram(self.bounds, tuple(counts), self.total + value)

    @property
    def cumulated(self) -> list[tuple[float, int]]:
        """(bound, how many values are at or below it), ending with infinity and the total."""
        pairs, running_total = list[tuple[float, int]](), 0
        counts = self.counts or (0,) * (len(self.bounds) + 1)
        for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
            running_total += count
            pairs.append((bound, running_total))
        return pairs


@dataclass(frozen=True, slots=True)
class Counters:
    """By user, if there is a user."""

    rounds: Histogram = field(default_factory=lambda: Histogram(MOMENTS))
    commits: Histogram = field(default_factory=lambda: Histogram(MOMENTS))
    # from the submission to the first launch
    waits: Histogram = field(default_factory=lambda: Histogram(WAITS))
    ended: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by user and state
    restarts: Mapping[str, int] = field(default_factory=dict)
    # of restarts whose first step was seen
    restart_seconds: Mapping[str, Seconds] = field(default_factory=dict)
    gpu_seconds: Mapping[str, float] = field(default_factory=dict)  # of ended jobs

    def after(
        self,
        before: Snapshot,
        decision: Decision,
        decision_seconds: Seconds | None,
        commit_seconds: Seconds | None,
    ) -> Counters:
        """With one more pass of the loop. `decision_seconds` is the time of its round and
        `commit_seconds` that of its commit. None means that there was none."""
        tally = self
        if decision_seconds is not None:
            tally = replace(tally, rounds=tally.rounds.having(decision_seconds))
        if commit_seconds is not None:
            tally = replace(tally, commits=tally.commits.having(commit_seconds))
        for event in decision.journal:
            if isinstance(event, Launched):
                tally = _count_launch(tally, before, decision, event)
            elif isinstance(event, Profiled) and event.ready:
                tally = _ready(tally, before, event)
        for job in decision.ended:
            user = job.spec.user
            tally = replace(
                tally,
                ended=_more(tally.ended, (user, str(job.state)), 1),
                gpu_seconds=_more(tally.gpu_seconds, user, job.service),
            )
        return tally


def _count_launch(
    tally: Counters, before: Snapshot, decision: Decision, event: Launched
) -> Counters:
    job = decision.snapshot.jobs.get(event.job)
    if job is None:
        return tally
    previous = before.jobs.get(event.job)
    if previous is None or previous.attempt == 0:
        return replace(tally, waits=tally.waits.having(max(event.at - job.submitted_at, 0.0)))
    return replace(tally, restarts=_more(tally.restarts, job.spec.user, 1))


def _ready(tally: Counters, before: Snapshot, event: Profiled) -> Counters:
    """With the time that a restart took, if the job has made its first step since."""
    job = before.jobs.get(event.job)
    if job is None:
        return tally
    seconds = learn_profile.restart_took(job, event)
    if seconds is None or job.attempt != event.attempt:
        return tally
    return replace(tally, restart_seconds=_more(tally.restart_seconds, job.spec.user, seconds))


def _more(counts: Mapping[K, N], key: K, amount: N) -> dict[K, N]:
    return {**counts, key: counts.get(key, 0) + amount}
