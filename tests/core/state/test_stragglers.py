"""Which replica makes the others wait, and where everybody is when nobody makes progress."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.model.events import Launched, Profiled, Pulsed
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.placements import BatchOrder, Placement
from gpq.core.model.profile import Profile, ProfileRow, RankPulse, RankTime
from gpq.core.model.units import JobId, NodeId
from gpq.core.state.apply_events import fold
from gpq.core.state.job_events import apply
from gpq.core.state.stragglers import HUNG, WINDOWS, Hang, describe, hang, judge, stragglers
from tests.support.builders import job, on, running, snapshot

BOTH = Placement((*on("a", 0, 1, 2).parts, *on("b", 0).parts))


def window(*compute: float, steps: int = 20, fetch: float = 0.0) -> tuple[RankTime, ...]:
    """`fetch` is that of the slowest rank."""
    slowest = max(compute)
    return tuple(
        RankTime(rank, steps, one, one, slowest, slowest - one, fetch if one == slowest else 0.0)
        for rank, one in enumerate(compute)
    )


def after(*windows: tuple[RankTime, ...]) -> Job:
    mine = running(1, BOTH)
    for number, each in enumerate(windows, 1):
        told = apply(mine, Profiled(float(number), JobId(1), mine.attempt, number, ranks=each))
        mine = told
    return mine


SLOW, EVEN = window(0.10, 0.10, 0.11, 0.18), window(0.10, 0.10, 0.11, 0.11)


@pytest.mark.parametrize(
    ("windows", "found"),
    [
        ([SLOW] * (WINDOWS - 1), ()),
        ([SLOW] * WINDOWS, (3,)),
        ([SLOW, SLOW, EVEN, SLOW, SLOW], ()),
        ([SLOW, SLOW, window(0.1, 0.1, 0.1, 0.1, steps=2), SLOW], (3,)),  # too short a window says nothing
        ([window(0.10, 0.118, 0.10, 0.10)] * WINDOWS, ()),  # within a fifth
        ([window(0.10, 0.13)] * WINDOWS, (1,)),  # two ranks: the median of the others is the other
    ],
)
def test_a_straggler_is_slower_in_several_consecutive_windows(
    windows: list[tuple[RankTime, ...]], found: tuple[int, ...]
) -> None:
    assert stragglers(after(*windows)) == found


def test_it_is_reported_once_with_a_likely_cause_and_forgotten_with_the_attempt() -> None:
    slow = after(*[SLOW] * (WINDOWS + 2))
    told = "rank 3 on b is a straggler: 1.8x the time of the others, probably because its GPU or its server is slower or shared"
    assert slow.notices == (told,)
    data = after(*[window(0.10, 0.10, 0.11, 0.18, fetch=0.07)] * WINDOWS)
    assert describe(data, 3).endswith("it waits for data")
    pending = replace(slow, state=JobState.PENDING, placement=None)
    again = fold(snapshot(pending), [Launched(9.0, JobId(1), slow.attempt + 1, BOTH, BatchOrder())])
    assert stragglers(again.snapshot.jobs[JobId(1)]) == ()


def test_times_of_zero_blame_nobody() -> None:
    assert [one.slow for one in judge((), window(0.0, 0.0))] == [0, 0]


def pulse(rank: int, phase: str, step: int = 57, since: float = 100.0) -> RankPulse:
    return RankPulse(rank, NodeId("b" if rank == 3 else "a"), step, phase, since)


ARRIVED = tuple(pulse(rank, "arrived") for rank in range(3))


@pytest.mark.parametrize(
    ("pulses", "line"),
    [
        ((*ARRIVED, pulse(3, "computing")), "the others wait for rank 3 on b"),
        ((*ARRIVED[:2], pulse(2, "arrived", 56), pulse(3, "computing")), "the others wait for ranks 2 on a, 3 on b"),
        (ARRIVED, "rank 3 on b reported nothing, and the others wait"),
        ((*ARRIVED, pulse(3, "arrived")), "all ranks wait for their network"),
        (tuple(pulse(rank, "computing") for rank in range(4)), "every rank is busy on its own"),
    ],
)
def test_a_hang_names_the_ranks_that_have_not_arrived(pulses: tuple[RankPulse, ...], line: str) -> None:
    mine = running(1, BOTH, pulses=pulses)
    found = hang(mine, 100.0 + HUNG)
    assert found is not None
    assert found.line.startswith(f"no step for 60 s: {line}")
    assert hang(mine, 99.0 + HUNG) is None


@pytest.mark.parametrize("phase", ["starting", "evaluating", "saving", "ended"])
def test_a_replica_with_a_reason_to_make_no_step_does_not_hang(phase: str) -> None:
    assert hang(running(1, BOTH, pulses=(*ARRIVED, pulse(3, phase))), 1000.0) is None


def test_a_long_step_may_be_long() -> None:
    long = Profile(rows=(ProfileRow(2, 4, 8, grad_time=20.0, step_time=30.0, weight=9.0),))
    mine = running(1, BOTH, profile=long, pulses=(*ARRIVED, pulse(3, "computing")))
    assert hang(mine, 650.0) is None
    assert hang(mine, 701.0) == Hang(601.0, "no step for 601 s: the others wait for rank 3 on b")
    assert hang(job(1), 701.0) is None


def test_pulses_belong_to_this_attempt_and_each_server_sends_its_own() -> None:
    mine = running(1, BOTH)
    for node, ranks in (("b", (pulse(3, "computing"),)), ("a", ARRIVED)):
        mine = apply(mine, Pulsed(1.0, JobId(1), mine.attempt, NodeId(node), ranks))
    assert [one.rank for one in mine.pulses] == [0, 1, 2, 3]
    assert apply(mine, Pulsed(2.0, JobId(1), mine.attempt - 1, NodeId("a"), ())) is mine
    mine = apply(mine, Pulsed(2.0, JobId(1), mine.attempt, NodeId("a"), ()))
    assert [one.rank for one in mine.pulses] == [3]
