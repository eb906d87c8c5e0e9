"""Counters grow by what happened, and a histogram says how many values are below each bound."""

from __future__ import annotations

import math
from dataclasses import replace

from gpq.control.counters import Counters, Histogram
from gpq.core.model.events import Event, Launched, Profiled
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.placements import BatchOrder
from gpq.core.model.units import JobId
from gpq.core.rounds.rounds import Decision
from tests.support.builders import job, on, running, snapshot


def decision(*events: Event, jobs: tuple[Job, ...] = (), ended: tuple[Job, ...] = ()) -> Decision:
    return Decision(snapshot(*jobs), events, (), ended, None)


def launched(number: int, attempt: int, at: float) -> Launched:
    return Launched(at, JobId(number), attempt, on("a", 0), BatchOrder())


def test_a_histogram_cumulates_and_keeps_the_sum() -> None:
    seen = Histogram((1.0, 2.0))
    assert seen.cumulated == [(1.0, 0), (2.0, 0), (math.inf, 0)]
    for value in (0.5, 1.0, 1.5, 99.0):
        seen = seen.having(value)
    assert seen.cumulated == [(1.0, 2), (2.0, 3), (math.inf, 4)]
    assert seen.total == 102.0


def test_rounds_and_commits_count_where_there_were_any() -> None:
    tally = Counters().after(snapshot(), decision(), 0.25, None).after(snapshot(), decision(), None, 0.5)
    assert (tally.rounds.total, tally.commits.total) == (0.25, 0.5)
    assert tally.after(snapshot(), decision(), None, None) == tally


def test_a_first_launch_is_a_wait_and_a_later_one_a_restart() -> None:
    waiting, going = job(1, at=10.0), running(2, on("a", 0))
    after = decision(launched(1, 1, 70.0), launched(2, 2, 80.0), jobs=(replace(waiting, attempt=1), going))
    tally = Counters().after(snapshot(waiting, going), after, None, None)
    assert (tally.waits.total, tally.restarts) == (60.0, {"ana": 1})


def test_the_first_step_gives_the_restart_time_and_counts_once() -> None:
    moved = running(3, on("a", 0), since=100.0, stop_seconds=4.0)
    ready = Profiled(130.0, JobId(3), 1, 10, ready=True)
    tally = Counters().after(snapshot(moved), decision(ready, jobs=(moved,)), None, None)
    assert tally.restart_seconds == {"ana": 34.0}
    later = snapshot(replace(moved, stop_seconds=None))
    assert tally.after(later, decision(ready), None, None) == tally
    assert tally.after(snapshot(moved), decision(replace(ready, attempt=7)), None, None) == tally


def test_ends_are_counted_by_user_and_state_with_their_gpu_time() -> None:
    over = job(4, state=JobState.FAILED, service=12.0)
    tally = Counters().after(snapshot(), decision(ended=(over, replace(over, id=JobId(5)))), None, None)
    assert (tally.ended, tally.gpu_seconds) == ({("ana", "failed"): 2}, {"ana": 24.0})
