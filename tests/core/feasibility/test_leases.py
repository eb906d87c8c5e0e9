"""Silence ends no job without a lease. With a lease, the ends that follow are certain, and a job that crashes servers
is held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpq.core.feasibility.leases import LEAST, given_up, margin, patience, silence, span
from gpq.core.model import events as facts
from gpq.core.model.jobs import DesiredState, Job, JobState, Level, StopReason
from gpq.core.model.nodes import NodeState
from gpq.core.model.placements import Exit, Placement
from gpq.core.model.policy import shape_of
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.rounds.reconcile import leftovers
from gpq.core.rounds.rounds import decide, settle
from gpq.core.state.apply_events import fold
from gpq.core.state.attempt_end import conclude, joint_exit
from gpq.policies.registry import policy
from tests.support.builders import black_box, node, on, running, snapshot, spec
from tests.support.explanations import explain

A, B = NodeId("a"), NodeId("b")
ONE = JobId(1)
HERE = on("a", 0)
BOTH = Placement((*on("a", 0).parts, *on("b", 0).parts))


def leased(placement: Placement = HERE, lease: float = 600.0, **more: Any) -> Job:
    return running(1, placement, spec_=black_box(requeue_on_lost=lease), declared=False, **more)


def silent(*jobs: Job, since: float = 100.0, now: float = 140.0) -> Snapshot:
    """Server a does not answer, server b does."""
    state = snapshot(node("a"), node("b"), *jobs, now=now)
    return fold(state, [facts.NodeSilent(now, A, "no answer", since)]).snapshot


def test_the_daemon_waits_longer_than_term_kill_and_drift_need() -> None:
    for lease in (LEAST, 600.0, 86400.0, 30 * 86400.0):
        assert margin(lease) >= 15.0
        drift, kill = lease * 1e-3, margin(lease) / 3
        assert margin(lease) - kill - drift > 3.0


def test_a_part_is_given_up_after_lease_and_margin_and_not_before() -> None:
    job = leased(BOTH)
    state = silent(job)
    assert patience(job) == 633.0
    assert given_up(state, A, patience(job) - 0.001, 900.0) == []
    [end] = given_up(state, A, patience(job), 900.0)
    assert (end.job, end.attempt, end.node, end.exit.lost, end.exit.fenced) == (1, 1, A, True, True)
    assert end.exit.note == "ended by its lease: no contact with a for 10 m"
    assert given_up(fold(state, [end]).snapshot, A, 1e9, 901.0) == []


def test_without_a_lease_no_silence_is_long_enough() -> None:
    state = silent(running(1, on("a", 0)))
    assert given_up(state, A, 1e12, 1e12) == []


def test_a_given_up_attempt_is_queued_again_and_news_of_it_change_nothing_but_the_journal() -> None:
    state = silent(leased(since=0.0), now=700.0)
    first = fold(state, given_up(state, A, 1e3, 700.0))
    job = first.snapshot.jobs[ONE]
    assert (job.state, job.failures, job.quick_failures, job.attempt) == (JobState.PENDING, 0, 0, 1)
    again = decide(replace(first.snapshot, now=800.0), [], policy("fifo"), allocate=True).snapshot
    assert again.jobs[ONE].attempt == 2
    assert again.jobs[ONE].placement == on("b", 0)
    late = facts.Exited(900.0, ONE, 1, A, Exit(0))
    after = fold(again, [late])
    assert after.snapshot.jobs[ONE] is again.jobs[ONE]
    assert after.journal == (late,)


def test_a_job_on_two_servers_continues_when_both_parts_are_over() -> None:
    state = silent(leased(BOTH))
    one = fold(state, given_up(state, A, 1e3, 700.0)).snapshot
    assert one.jobs[ONE].state is JobState.RUNNING
    [stop] = leftovers(one, B)
    assert (stop.nodes, stop.mode) == ((B,), "kill")
    both = fold(one, [facts.Exited(710.0, ONE, 1, B, Exit(None, signal=15, asked="kill"))]).snapshot
    assert (both.jobs[ONE].state, both.jobs[ONE].failures) == (JobState.PENDING, 0)


@pytest.mark.parametrize("end", [Exit(0, fenced=True), Exit(None, signal=15, fenced=True), Exit(1, fenced=True)])
def test_a_fenced_job_has_neither_succeeded_nor_failed(end: Exit) -> None:
    job = leased(exits=((A, end),))
    event = conclude(job, 100.0, Config())
    assert isinstance(event, facts.Stopped)
    assert (event.failed, event.quick, event.crashed) == (False, False, False)
    assert isinstance(conclude(replace(job, stop=StopReason.CANCEL), 100.0, Config()), facts.Cancelled)
    assert isinstance(conclude(replace(job, stop=StopReason.TIME), 100.0, Config()), facts.TimeLimitReached)
    assert joint_exit([Exit(1), end]) is end


@pytest.mark.parametrize(
    ("what", "goes_on"),
    [
        (spec(level=Level.SIGNAL), True),  # it checkpoints on a signal
        (spec(), True),  # it declared itself, so it checkpoints
        (black_box(), False),  # it would start from the beginning, and nobody allowed that
        (black_box(requeue_on_lost=600.0), True),
        (black_box(retries=1), True),
        (spec(rigid=True), True),
    ],
)
def test_after_a_reboot_a_job_with_checkpoints_resumes_and_a_black_box_if_allowed(what: Any, goes_on: bool) -> None:
    job = running(1, on("a", 0), spec_=what, since=0.0, exits=((A, Exit(None, lost=True, note="rebooted")),))
    event = conclude(job, 100.0, Config())
    assert type(event) is (facts.Stopped if goes_on else facts.Failed)
    assert event.exit.note == "rebooted"
    assert not getattr(event, "failed", False)


def test_a_job_that_takes_its_server_down_each_time_is_held_and_release_forgets_that() -> None:
    def lose(job: Job, ran: float) -> Job:
        begun = running(1, on("a", 0), spec_=job.spec, since=0.0, crashes=job.crashes)
        return fold(snapshot(begun, now=ran), [facts.Exited(ran, ONE, 1, A, Exit(None, lost=True))]).snapshot.jobs[ONE]

    job = leased()
    for count in (1, 2, 3):
        job = lose(job, 600.0)
        assert (job.state, job.crashes, job.failures) == (JobState.PENDING, count, 0)
        [*held] = settle(snapshot(job, now=600.0))
        assert [type(event) for event in held] == ([facts.Held] if count == 3 else [])
    assert "3 times in a row" in held[0].why  # type: ignore[union-attr]
    freed = fold(snapshot(job), [facts.ReleaseAsked(0.0, ONE)]).snapshot.jobs[ONE]
    assert (freed.crashes, freed.wish) == (0, DesiredState.RUN)
    assert lose(replace(job, crashes=2), 7200.0).crashes == 0  # two hours of work are not a crash


def test_jobs_on_an_unreachable_server_are_unknown_and_keep_their_gpus() -> None:
    state = silent(running(1, on("a", 0)))
    job = state.jobs[ONE]
    found = silence(state, job, 140.0)
    assert found is not None
    assert (str(found), found.requeue_in) == ("unknown for 40 s: server a does not answer", None)
    told = explain(state, None, job)
    assert told.headline == str(found)
    assert any("gpq does not start it again" in reason for reason in told.reasons)
    later = decide(replace(state, now=9e5), [], policy("fifo"), allocate=True)
    assert later.actions == ()
    assert later.snapshot.jobs[ONE].placement == on("a", 0)
    assert shape_of(later.snapshot.jobs[ONE].placement.shape).replicas == 1  # type: ignore[union-attr]


def test_silence_names_the_servers_the_lease_and_the_waiting_order() -> None:
    state = silent(leased(BOTH, wish=DesiredState.CANCEL, stop=StopReason.CANCEL))
    told = explain(state, None, state.jobs[ONE])
    assert any("the order to cancel it waits until a answers" in reason for reason in told.reasons)
    assert any("queues it again in 9 m at the earliest" in reason for reason in told.reasons)
    over = replace(state.jobs[ONE], exits=((A, Exit(0)),))
    assert silence(state, over, 140.0) is None
    assert silence(state, replace(over, exits=(), placement=on("b", 0)), 140.0) is None


def test_a_server_that_answers_again_ends_the_silence() -> None:
    state = silent(running(1, on("a", 0)))
    back = fold(state, [facts.NodeSeen(150.0, node("a", state=NodeState.UP))]).snapshot
    assert silence(back, back.jobs[ONE], 150.0) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (40.0, "40 s"), (119.0, "119 s"), (600.0, "10 m"), (7200.0, "2 h"), (2e5, "2 d")],
)
def test_spans_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert span(seconds) == text
