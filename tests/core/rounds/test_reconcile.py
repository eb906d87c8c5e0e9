"""Whose attempt a server has, and what a missing one means."""

from __future__ import annotations

from dataclasses import replace

from gpq.core.model.actions import Stop
from gpq.core.model.jobs import Job, JobState, StopReason
from gpq.core.model.placements import Exit, Placement
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.rounds.reconcile import (
    AttemptVerdict,
    is_doomed,
    is_lost,
    leftovers,
    not_from_the_future,
    standing,
    verdict_on,
)
from tests.support.builders import job, on, snapshot

A, B = NodeId("a"), NodeId("b")


def running(number: int = 3, attempt: int = 2, **more: object) -> Job:
    return job(number, state=JobState.RUNNING, attempt=attempt, placement=on("a", 0), started_nodes=(A,), **more)


def state(*jobs: Job) -> Snapshot:
    return Snapshot(jobs={one.id: one for one in jobs}, next_id=10)


def test_the_present_attempt_on_its_node_is_live() -> None:
    assert verdict_on(state(running()), A, JobId(3), 2) is AttemptVerdict.LIVE


def test_an_older_attempt_or_one_of_a_job_that_ended_is_over() -> None:
    assert verdict_on(state(running()), A, JobId(3), 1) is AttemptVerdict.OVER
    assert verdict_on(state(), A, JobId(3), 1) is AttemptVerdict.OVER
    assert verdict_on(state(job(3, attempt=1)), A, JobId(3), 1) is AttemptVerdict.OVER


def test_an_attempt_that_the_database_cannot_know_is_a_stranger() -> None:
    assert verdict_on(state(running()), A, JobId(10), 1) is AttemptVerdict.STRANGER
    assert verdict_on(state(running()), A, JobId(3), 3) is AttemptVerdict.STRANGER
    assert verdict_on(state(running()), B, JobId(3), 2) is AttemptVerdict.STRANGER


def test_an_attempt_of_a_lost_database_is_a_stranger_and_no_more() -> None:
    held = replace(running(attempt=17), lost_attempts=(2, 16))
    lost = replace(state(held), next_id=50, lost_ids=((10, 19), (30, 39)))
    ids = [name for name in range(4, 50) if verdict_on(lost, A, JobId(name), 1) is AttemptVerdict.STRANGER]
    assert ids == [*range(10, 20), *range(30, 40)]
    verdicts = [verdict_on(lost, A, JobId(3), attempt) for attempt in (1, 2, 16, 17, 18)]
    assert verdicts == [
        AttemptVerdict.OVER,
        AttemptVerdict.STRANGER,
        AttemptVerdict.STRANGER,
        AttemptVerdict.LIVE,
        AttemptVerdict.STRANGER,
    ]
    assert verdict_on(replace(lost, jobs={}), A, JobId(3), 5) is AttemptVerdict.OVER, "its job is over"


def test_an_attempt_is_expected_until_its_end_on_the_node_is_known() -> None:
    one = running()
    assert state(one).expected_on(A) == [one]
    assert state(one).expected_on(B) == []
    assert state(replace(one, exits=((A, Exit(code=0)),))).expected_on(A) == []
    assert state(job(4)).expected_on(A) == []


def test_only_an_attempt_that_ran_or_can_never_start_is_lost() -> None:
    fresh = replace(running(), state=JobState.STARTING, started_nodes=())
    stopping = replace(fresh, state=JobState.STOPPING, stop=StopReason.CANCEL)
    assert is_lost(running(), A, start_possible=True)
    assert not is_lost(fresh, A, start_possible=False)
    assert not is_lost(stopping, A, start_possible=True)
    assert is_lost(stopping, A, start_possible=False)


def test_the_other_parts_of_an_attempt_that_failed_on_one_node_are_ended() -> None:
    both = replace(running(), placement=Placement((*on("a", 0).parts, *on("b", 0).parts)), started_nodes=(A, B))
    failed = replace(both, exits=((B, Exit(code=1)),))
    assert leftovers(state(both), A) == []
    assert leftovers(state(failed), B) == []
    [stop] = leftovers(state(failed), A)
    assert (stop.job, stop.attempt, stop.nodes, stop.mode) == (3, 2, (A,), "kill")
    for fine in (Exit(code=0), Exit(code=143, stopped=True)):
        assert not is_doomed(replace(both, exits=((B, fine),)))


def test_a_part_that_never_started_is_given_up_once_another_was_refused() -> None:
    both = replace(running(), placement=Placement((*on("a", 0).parts, *on("b", 0).parts)), started_nodes=())
    refused = replace(both, exits=((B, Exit(code=None, lost=True)),))
    assert not is_lost(refused, A, start_possible=True)
    assert is_lost(refused, A, start_possible=False)


def test_a_part_of_a_failed_attempt_is_ended_even_while_it_checkpoints() -> None:
    both = replace(
        running(),
        placement=Placement((*on("a", 0).parts, *on("b", 0).parts)),
        started_nodes=(A, B),
        stop=StopReason.RESIZE,
    )
    assert [order.why for order in standing(state(both), A) if isinstance(order, Stop)] == ["repeated"]
    failed = replace(both, exits=((B, Exit(code=1)),))
    assert [order.why for order in standing(state(failed), A) if isinstance(order, Stop)] == [
        "it failed on another server"
    ]


def test_a_clock_that_was_set_back_between_two_daemons_stops_no_job() -> None:
    ahead = replace(running(), submitted_at=90.0, launched_at=9e9, started_at=9e9)
    waiting = job(4, not_before=9e9)
    soon = job(5, not_before=103.0)
    old = snapshot(ahead, waiting, soon, now=100.0)
    healed = not_from_the_future(replace(old, round_at=9e9))
    assert healed.round_at == 100.0
    mine = healed.jobs[ahead.id]
    assert (mine.submitted_at, mine.launched_at, mine.started_at) == (90.0, 100.0, 100.0)
    assert healed.jobs[waiting.id].not_before <= 100.0 + 3600.0
    assert healed.jobs[soon.id].not_before == 103.0
