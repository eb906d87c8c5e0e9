"""Facts become state, and stale facts change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.goodput import fitting, goodput
from gpq.core.model import events as facts
from gpq.core.model.accounts import RestartTimes
from gpq.core.model.events import TimingSums
from gpq.core.model.jobs import Dependency, DesiredState, Job, JobState, Seat, StopReason
from gpq.core.model.placements import BatchOrder, Exit, Placement
from gpq.core.model.units import JobId, NodeId
from gpq.core.rounds.rounds import settle
from gpq.core.state.apply_events import fold
from gpq.core.state.job_events import apply
from tests.support.builders import DECLARED, black_box, job, node, on, running, snapshot, spec

A, B = NodeId("a"), NodeId("b")


def test_a_submitted_job_waits_and_ids_are_never_reused() -> None:
    folded = fold(snapshot(), [facts.Submitted(1.0, JobId(7), spec())])
    assert folded.snapshot.jobs[JobId(7)].state is JobState.PENDING
    assert folded.snapshot.next_id == 8


def test_news_of_an_older_attempt_changes_nothing() -> None:
    now = running(1, on("a", 0), attempt=3)
    for event in (
        facts.Exited(5.0, now.id, 2, A, Exit(1)),
        facts.StopSent(5.0, now.id, 2, StopReason.RESIZE),
        facts.Profiled(5.0, now.id, 2, 100),
        facts.Started(5.0, now.id, 2, A),
    ):
        assert apply(now, event) is now


def test_news_of_a_job_that_ended_changes_nothing() -> None:
    before = snapshot(node("a"))
    folded = fold(before, [facts.Exited(5.0, JobId(9), 1, A, Exit(0))])
    assert folded.snapshot.jobs == before.jobs
    assert not folded.ended


def waiting(number: int, *after: int, **more: object) -> Job:
    conditions = tuple(Dependency(JobId(name)) for name in after)
    return job(number, spec_=black_box(after=conditions), awaits=conditions, **more)  # type: ignore[arg-type]


def test_a_job_that_ended_comes_back_as_it_was_and_counts_anew() -> None:
    seat = Seat(JobId(6), 1, 5, 2)
    before = snapshot(running(7, on("a", 0), spec_=spec(seat=seat, retries=1), since=10.0, attempt=3, failures=1))
    over = fold(before, [facts.Exited(20.0, JobId(7), 3, A, Exit(1, note="no data"))])
    [past] = over.ended
    assert past.state is JobState.FAILED
    back = fold(over.snapshot, [facts.RequeueAsked(30.0, JobId(7), "ada", past)]).snapshot.jobs[JobId(7)]
    assert (back.state, back.spec, back.next_attempt, back.profile) == (JobState.PENDING, past.spec, 4, past.profile)
    assert (back.submitted_at, back.run_seconds, back.failures, back.ended_at) == (30.0, 0.0, 0, None)
    assert (past.notices, back.notices) == (("no data",), ("attempt 3: no data",))
    afresh = fold(over.snapshot, [facts.RequeueAsked(30.0, JobId(7), "ada", past, fresh=True)]).snapshot.jobs[JobId(7)]
    assert (afresh.fresh, afresh.profile.declared, afresh.files) == (True, None, None)
    launch = facts.Launched(31.0, JobId(7), 4, on("a", 0), BatchOrder())
    started = apply(apply(afresh, launch), facts.Started(32.0, JobId(7), 4, A))
    assert not started.fresh  # a later attempt goes on from its checkpoints


def test_jobs_wait_again_for_one_that_comes_back_but_only_for_that_one() -> None:
    before = snapshot(
        running(1, on("a", 0)), running(2, on("a", 1)), waiting(3, 1, 2), waiting(4, 1),
        waiting(5, 1, state=JobState.HELD, wish=DesiredState.HOLD),
    )  # fmt: skip
    over = fold(before, [facts.Exited(1.0, JobId(name), 1, A, Exit(1)) for name in (1, 2)])
    held = fold(over.snapshot, settle(over.snapshot)).snapshot
    assert [held.jobs[JobId(name)].state for name in (3, 4, 5)] == [JobState.HELD] * 3
    back = fold(held, [facts.RequeueAsked(2.0, JobId(1), "ada", over.ended[0])]).snapshot
    settled = fold(back, settle(back)).snapshot
    assert [settled.jobs[JobId(name)].state for name in (3, 4, 5)] == [JobState.HELD, JobState.PENDING, JobState.HELD]
    assert all(settled.jobs[JobId(name)].awaits for name in (3, 4, 5))
    assert "job 2 failed" in settled.jobs[JobId(3)].unmet  # which nothing has cured
    assert [bool(settled.jobs[JobId(name)].notices) for name in (3, 4)] == [True, False]
    assert not settled.jobs[JobId(5)].unmet  # its user holds it, whatever the others do
    both = fold(settled, [facts.RequeueAsked(3.0, JobId(2), "ada", over.ended[1])]).snapshot
    assert fold(both, settle(both)).snapshot.jobs[JobId(3)].state is JobState.PENDING


def test_an_edit_of_a_job_that_ended_changes_its_record_and_ends_nothing() -> None:
    past = job(7, state=JobState.FAILED, ended_at=5.0)
    folded = fold(snapshot(), [facts.Edited(9.0, JobId(7), past.spec.having(name="new"), past=past)])
    assert ([one.spec.name for one in folded.amended], folded.ended) == (["new"], ())
    assert not folded.snapshot.jobs


def test_the_end_on_every_node_ends_the_job_and_gives_its_devices_back() -> None:
    spread = Placement(((A, on("a", 0).parts[0][1]), (B, on("b", 0).parts[0][1])))
    before = snapshot(running(1, spread, since=10.0))
    first = fold(before, [facts.Exited(20.0, JobId(1), 1, A, Exit(0))])
    assert first.snapshot.jobs[JobId(1)].state is JobState.RUNNING
    again = fold(first.snapshot, [facts.Exited(21.0, JobId(1), 1, A, Exit(0))])
    assert again.snapshot.jobs[JobId(1)] is first.snapshot.jobs[JobId(1)]
    last = fold(again.snapshot, [facts.Exited(30.0, JobId(1), 1, B, Exit(0))])
    assert JobId(1) not in last.snapshot.jobs
    [ended] = last.ended
    assert (ended.state, ended.placement, ended.ended_at) == (JobState.COMPLETED, None, 30.0)
    assert ended.service == 40.0  # two GPUs for 20 s
    assert [type(event) for event in last.journal] == [facts.Exited, facts.Succeeded]


def test_a_job_runs_once_all_its_nodes_started_it() -> None:
    spread = Placement(((A, on("a", 0).parts[0][1]), (B, on("b", 0).parts[0][1])))
    before = snapshot(job(1, state=JobState.STARTING, attempt=1, placement=spread, launched_at=0.0))
    one = fold(before, [facts.Started(1.0, JobId(1), 1, A)]).snapshot
    assert one.jobs[JobId(1)].state is JobState.STARTING
    two = fold(one, [facts.Started(2.0, JobId(1), 1, B)]).snapshot
    assert (two.jobs[JobId(1)].state, two.jobs[JobId(1)].started_at) == (JobState.RUNNING, 2.0)


def test_a_late_report_of_an_end_ends_the_job_at_its_real_time() -> None:
    before = snapshot(running(1, on("a", 0, 1), since=10.0))
    for ended_at, ended in (
        (22.0, 22.0),
        (5.0, 10.0),
        (99.0, 60.0),
        (0.0, 60.0),
    ):  # not before its start, and not after now
        folded = fold(before, [facts.Exited(60.0, JobId(1), 1, A, Exit(7, ended_at=ended_at))])
        [over] = folded.ended
        assert (over.ended_at, over.run_seconds, over.service) == (ended, ended - 10.0, 2 * (ended - 10.0))
        assert isinstance(folded.journal[-1], facts.Failed)
        assert (folded.journal[-1].at, folded.journal[-1].exit.ended_at) == (60.0, ended)


def test_a_time_limit_does_not_apply_to_a_job_that_ended_earlier_unheard() -> None:
    before = snapshot(running(1, on("a", 0), since=10.0))
    before = fold(before, [facts.StopSent(70.0, JobId(1), 1, StopReason.TIME)]).snapshot
    for end, state in (
        (Exit(7, ended_at=22.0), JobState.FAILED),
        (Exit(0, ended_at=22.0), JobState.COMPLETED),
        (Exit(7, ended_at=80.0), JobState.TIMEOUT),
        (Exit(143, asked="kill", ended_at=80.0), JobState.TIMEOUT),
    ):
        [over] = fold(before, [facts.Exited(90.0, JobId(1), 1, A, end)]).ended
        assert over.state is state


def test_with_several_servers_the_last_end_counts_even_if_another_report_is_late() -> None:
    spread = Placement(((A, on("a", 0).parts[0][1]), (B, on("b", 0).parts[0][1])))
    ends = [
        facts.Exited(30.0, JobId(1), 1, A, Exit(0, ended_at=29.0)),
        facts.Exited(90.0, JobId(1), 1, B, Exit(0, ended_at=28.0)),
    ]
    [over] = fold(snapshot(running(1, spread, since=10.0)), ends).ended
    assert (over.ended_at, over.service) == (29.0, 38.0)


def test_an_attempt_that_was_queued_again_is_charged_until_its_end() -> None:
    before = snapshot(running(1, on("a", 0, 1), since=10.0, spec_=spec(retries=1)), now=60.0)
    after = fold(before, [facts.Exited(60.0, JobId(1), 1, A, Exit(7, ended_at=22.0))]).snapshot.jobs[JobId(1)]
    assert (after.state, after.run_seconds, after.service_at(60.0)) == (JobState.PENDING, 12.0, 24.0)


def test_a_late_report_of_a_start_keeps_its_real_time() -> None:
    before = snapshot(job(1, state=JobState.STARTING, attempt=1, placement=on("a", 0), launched_at=10.0))
    for since, began in ((12.0, 12.0), (3.0, 10.0), (70.0, 60.0), (0.0, 60.0)):
        now = fold(before, [facts.Started(60.0, JobId(1), 1, A, since=since)]).snapshot.jobs[JobId(1)]
        assert (now.started_at, now.first_started_at) == (began, began)


def test_a_report_is_counted_once() -> None:
    sums = TimingSums(1, 1, 32, 0, accum_count=10, accum_sum=1.0, step_count=10, step_sum=2.0)
    report = facts.Profiled(5.0, JobId(1), 1, 400, declared=DECLARED, timings=(sums,))
    once = apply(running(1, on("a", 0)), report)
    assert apply(once, report) is once
    [row] = once.profile.rows
    assert (row.grad_time, row.step_time, row.weight) == (0.1, 0.2, 10.0)
    assert once.profile.samples_per_second == 160.0


def test_steps_without_a_gradient_time_are_kept_and_fitted() -> None:
    now = running(1, on("a", 0))
    alone = TimingSums(1, 1, 32, 0, accum_count=50, accum_sum=5.0, step_count=50, step_sum=5.0)
    unseen = TimingSums(1, 2, 32, 0, accum_count=0, accum_sum=0.0, step_count=50, step_sum=6.0)
    now = apply(now, facts.Profiled(5.0, now.id, 1, 400, timings=(alone, unseen)))
    [_, pair] = now.profile.rows
    assert (pair.grad_time, pair.step_time, pair.weight) == (0.0, 0.12, 50.0)
    params = fitting.fit_many([now.profile.rows])[0]
    assert params is not None
    assert float(goodput.step_time(params, 1, 2, 32)) == pytest.approx(0.12, rel=0.05)
    seen = TimingSums(1, 2, 32, 0, accum_count=50, accum_sum=4.5, step_count=50, step_sum=6.0)
    now = apply(now, facts.Profiled(6.0, now.id, 1, 500, timings=(seen,)))
    now = apply(now, facts.Profiled(7.0, now.id, 1, 600, timings=(unseen,)))
    assert now.profile.rows[1].grad_time == 0.09, "what is not known is not averaged in"


def test_new_times_outweigh_old_ones_in_the_end() -> None:
    now = running(1, on("a", 0))
    for number, seconds in enumerate([1.0] * 20 + [2.0] * 60, 1):
        sums = TimingSums(1, 1, 32, 0, 100, seconds * 100, 100, seconds * 100)
        now = apply(now, facts.Profiled(number, now.id, 1, number, timings=(sums,)))
    assert abs(now.profile.rows[0].step_time - 2.0) < 0.02


def test_the_restart_cost_is_stopping_and_starting_without_the_wait_between() -> None:
    now = running(1, on("a", 0))
    now = apply(now, facts.StopSent(100.0, now.id, 1, StopReason.RESIZE))
    now = apply(now, facts.Stopped(103.0, now.id, Exit(0, stopped=True)))
    now = apply(now, facts.Launched(5000.0, now.id, 2, on("a", 0, 1), BatchOrder(1, 32, 0)))
    now = apply(now, facts.Started(5001.0, now.id, 2, A))
    now = apply(now, facts.Profiled(5008.0, now.id, 2, 10, ready=True))
    assert now.restart_seconds == 11.0
    assert (now.restarts, now.resizes) == (1, 1)


def test_each_restart_has_its_phases_and_says_whether_a_standby_ran_it() -> None:
    now = running(1, on("a", 0))
    now = apply(now, facts.Profiled(50.0, now.id, 1, 5, ready=True, warm=True))
    assert now.restart_times == (), "the first start is no restart"
    now = apply(now, facts.Profiled(101.0, now.id, 1, 10, checkpoint_seconds=0.5))
    now = apply(now, facts.StopSent(100.0, now.id, 1, StopReason.RESIZE))
    now = apply(now, facts.Stopped(103.0, now.id, Exit(0, stopped=True)))
    now = apply(now, facts.Launched(110.0, now.id, 2, on("a", 0, 1), BatchOrder(1, 32, 0)))
    now = apply(now, facts.Profiled(112.0, now.id, 2, 10, ready=True, warm=True, restore_seconds=0.25))
    now = apply(now, facts.Stopped(200.0, now.id, Exit(1), failed=True))
    now = apply(now, facts.Launched(210.0, now.id, 3, on("a", 0, 1), BatchOrder(1, 32, 0)))
    now = apply(now, facts.Profiled(219.0, now.id, 3, 10, ready=True))
    assert now.restart_times == (
        RestartTimes(2, True, start=2.0, restore=0.25, stop=3.0, save=0.5),
        RestartTimes(3, False, start=9.0, restore=0.0),
    )


def test_a_new_attempt_starts_without_the_batch_size_and_throughput_of_the_last() -> None:
    sums = TimingSums(1, 1, 32, 0, accum_count=10, accum_sum=1.0, step_count=10, step_sum=2.0)
    now = job(1)
    for attempt, batch in ((1, 32), (2, 16)):
        now = apply(now, facts.Launched(1.0, now.id, attempt, on("a", 0), BatchOrder(attempt, batch, 0)))
        assert (now.profile.atomic_batch, now.profile.samples_per_second) == (0, 0.0)
        now = apply(now, facts.Started(2.0, now.id, attempt, A))
        report = facts.Profiled(3.0, now.id, attempt, 10, timings=(sums,), retuned=BatchOrder(attempt, batch, 0))
        now = apply(now, report)
        assert now.profile.batch_changes == 0, "the first batch of an attempt is no change"
        now = apply(now, facts.Stopped(4.0, now.id, Exit(0, stopped=True)))
    assert now.profile.atomic_batch == 16
    live = apply(now, facts.Launched(5.0, now.id, 3, on("a", 0), BatchOrder(3, 16, 0)))
    for offset, seq, batch in ((1, 3, 16), (2, 4, 64)):
        live = apply(live, facts.Profiled(6.0, now.id, 3, offset, retuned=BatchOrder(seq, batch, 0)))
    assert live.profile.batch_changes == 1


def test_a_cancel_cannot_be_taken_back() -> None:
    now = apply(job(1), facts.CancelAsked(0, JobId(1)))
    assert apply(apply(now, facts.HoldAsked(1, now.id)), facts.ReleaseAsked(2, now.id)).wish is DesiredState.CANCEL


def test_ends_and_jobs_that_wait_for_them_may_share_a_commit() -> None:
    def waits(number: int, *others: int) -> facts.Submitted:
        return facts.Submitted(1.0, JobId(number), spec(), tuple(Dependency(JobId(other)) for other in others))

    def succeeds(number: int) -> facts.Succeeded:
        return facts.Succeeded(2.0, JobId(number), Exit(0))

    here = snapshot(
        running(1, on("a", 0), attempt=1), running(2, on("a", 1), attempt=1), job(3, awaits=(Dependency(JobId(1)),))
    )
    edited = facts.Edited(2.0, JobId(3), spec(), (Dependency(JobId(2)),))
    jobs = fold(here, [succeeds(1), waits(4, 2), edited, succeeds(2)]).snapshot.jobs
    assert {name: each.awaits for name, each in jobs.items()} == {3: (), 4: ()}


def test_jobs_changed_in_place_are_those_in_the_answer() -> None:
    here = snapshot(job(1))
    own = dict(here.jobs)
    folded = fold(replace(here, jobs=own), [facts.Submitted(1.0, JobId(2), spec())], into=own)
    assert folded.snapshot.jobs is own
    assert sorted(own) == [1, 2]
    assert sorted(here.jobs) == [1]


def test_a_note_that_comes_again_is_kept_once_as_the_newest() -> None:
    """Two notes that alternate would soon push out all others."""
    one = running(1, on("a", 0), attempt=1)
    reports = [
        facts.Profiled(float(at), JobId(1), 1, at, notices=(line,))
        for at, line in enumerate(["first", *["x", "y"] * 9], 1)
    ]
    assert fold(snapshot(node("a"), one), reports).snapshot.jobs[JobId(1)].notices == ("first", "x", "y")
