"""Accounts against hand-computed lives of jobs: waits, worth, cost of restarts, failures, and fairness at the end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.core.accounting import accrual, fairness
from gpq.core.goodput import goodput as gp
from gpq.core.model import events as facts
from gpq.core.model.accounts import Account, AttemptAccount, MeanShare, restart_spans
from gpq.core.model.jobs import Dependency, Job, JobState, On, StopReason
from gpq.core.model.placements import BatchOrder, Exit
from gpq.core.model.profile import Noise, Profile, ProfileRow, Progress
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.rounds.rounds import decide
from gpq.core.state.apply_events import fold
from gpq.policies.registry import policy
from tests.support.builders import DECLARED, PARAMS, black_box, node, on, snapshot, spec

ONE, A = JobId(1), NodeId("a")
ROWS = tuple(
    ProfileRow(1, k, m, float(gp.grad_time(PARAMS, m)), float(gp.step_time(PARAMS, 1, k, m)), 100.0)
    for k in (1, 2, 4)
    for m in (16, 64)
)
KNOWN = Profile(declared=DECLARED, rows=ROWS, noise=Noise(1.0, 500.0, 1000))


def submit(at: float = 0.0, **more: object) -> Snapshot:
    return fold(snapshot(node("a")), [facts.Submitted(at, ONE, spec(**more))]).snapshot  # type: ignore[arg-type]


def launch(at: float, attempt: int = 1, *gpus: int) -> facts.Launched:
    return facts.Launched(at, ONE, attempt, on("a", *(gpus or (0,))), BatchOrder())


def started(at: float, attempt: int = 1) -> facts.Started:
    return facts.Started(at, ONE, attempt, A)


def exited(at: float, attempt: int = 1, **how: object) -> facts.Exited:
    return facts.Exited(at, ONE, attempt, A, Exit(**{"code": 0, **how}))  # type: ignore[arg-type]


def knows(state: Snapshot, base_steps: float, **more: object) -> Snapshot:
    """With what its reports have said until now."""
    job = state.jobs[ONE]
    profile = replace(KNOWN, progress=Progress(0, 10, 0, 0, base_steps, 0.5), **more)  # type: ignore[arg-type]
    return replace(state, jobs={ONE: replace(job, profile=profile)})


def test_a_wait_lasts_from_submission_to_first_launch_without_holds() -> None:
    state = fold(submit(10.0), [facts.Held(15.0, ONE), facts.Released(40.0, ONE)]).snapshot
    account = state.jobs[ONE].account
    assert (account.waited, account.held, account.mark) == (5.0, 25.0, 40.0)
    state = fold(state, [launch(47.0), started(48.0), facts.StopSent(60.0, ONE, 1, StopReason.PREEMPT)]).snapshot
    state = fold(state, [exited(61.0, stopped=True), facts.Held(70.0, ONE), facts.Released(80.0, ONE)]).snapshot
    account = fold(state, [launch(99.0, 2)]).snapshot.jobs[ONE].account
    assert (account.waited, account.held, account.mark) == (12.0, 35.0, None), (
        "it waited for its first launch only once"
    )


def test_other_waits_do_not_count_as_waits_for_gpus() -> None:
    state = submit(10.0, begin=50.0)
    assert accrual.so_far(state.jobs[ONE], 40.0).waited == 0.0
    assert fold(state, [launch(58.0)]).snapshot.jobs[ONE].account.waited == 8.0
    sooner = facts.Edited(30.0, ONE, spec(begin=0.0))
    assert fold(state, [sooner, launch(58.0)]).snapshot.jobs[ONE].account.waited == 28.0

    after = (Dependency(JobId(2), On.ANY),)
    both = [facts.Submitted(10.0, JobId(2), black_box()), facts.Submitted(10.0, ONE, spec(after=after), after)]
    state = fold(snapshot(node("a")), both).snapshot
    assert accrual.so_far(state.jobs[ONE], 25.0).waited == 0.0
    state = fold(state, [facts.Cancelled(30.0, JobId(2))]).snapshot
    assert fold(state, [launch(37.0)]).snapshot.jobs[ONE].account.waited == 7.0


def test_a_job_that_never_ran_waited_and_cost_nothing() -> None:
    [over] = fold(submit(10.0), [facts.CancelAsked(20.0, ONE), facts.Cancelled(20.0, ONE)]).ended
    assert over.account == Account(waited=10.0, restart_cost=0.0)
    [held] = fold(submit(10.0), [facts.Held(15.0, ONE), facts.Cancelled(35.0, ONE)]).ended
    assert (held.account.waited, held.account.held) == (5.0, 20.0)


def test_a_restart_costs_the_stop_and_the_start_that_follows_times_the_gpus_held() -> None:
    state = fold(submit(), [launch(10.0), started(11.0), facts.StopSent(100.0, ONE, 1, StopReason.RESIZE)]).snapshot
    state = fold(state, [exited(104.0, stopped=True)]).snapshot
    assert state.jobs[ONE].account.restart_cost == 4.0, "the stop; the first start is no restart"
    state = fold(state, [launch(105.0, 2, 0, 1), started(109.0, 2)]).snapshot
    state = fold(state, [facts.Profiled(125.0, ONE, 2, 9, declared=DECLARED, ready=True)]).snapshot
    [over] = fold(state, [exited(200.0, 2)]).ended
    assert over.account.restart_cost == 4.0 + 2 * 20.0
    assert over.service == 94.0 + 2 * 95.0
    assert over.account.working_at is None


def test_without_reported_steps_work_begins_with_the_processes() -> None:
    state = submit(level=black_box().level, retries=2)
    state = fold(state, [launch(10.0), started(12.0), exited(50.0, code=1)]).snapshot
    assert state.jobs[ONE].account.failed == 40.0
    state = fold(state, [launch(60.0, 2), started(63.0, 2), exited(90.0, 2, code=1)]).snapshot
    assert (state.jobs[ONE].account.restart_cost, state.jobs[ONE].account.failed) == (3.0, 70.0)
    refused = facts.StartRefused(108.0, ONE, 3, A, "no such file", transient=False, code=127)
    [over] = fold(state, [launch(100.0, 3), refused]).ended
    assert (over.account.restart_cost, over.account.failed) == (11.0, 78.0)
    assert over.account.worth is None, "it reports no progress"
    assert over.service == 78.0


def test_worth_is_useful_work_over_the_best_goodput_per_gpu() -> None:
    state = knows(fold(submit(), [launch(0.0), started(0.0)]).snapshot, 100.0)
    best = accrual.best_goodput(state.jobs[ONE])
    assert best is not None
    folded = fold(state, [exited(1000.0, stopped=True, ended_at=1000.0)])
    worth = 100.0 * DECLARED.batch_size / best
    assert 0 < worth < 1000.0
    assert folded.journal[-1].tally == AttemptAccount(None, pytest.approx(worth))  # type: ignore[union-attr]
    account = folded.snapshot.jobs[ONE].account
    assert (account.worth, account.peak) == (pytest.approx(worth), 100.0)
    # It resumes from a checkpoint of step 80 and gets to 90: nothing new. Then to 150: 50 new steps.
    state = knows(fold(folded.snapshot, [launch(1001.0, 2)]).snapshot, 90.0)
    state = fold(state, [exited(1100.0, 2, stopped=True)]).snapshot
    assert state.jobs[ONE].account.worth == pytest.approx(worth)
    [over] = fold(knows(fold(state, [launch(1101.0, 3)]).snapshot, 150.0), [exited(3000.0, 3)]).ended
    assert over.account.worth == pytest.approx(1.5 * worth)


def test_no_attempt_is_worth_more_than_it_held() -> None:
    state = knows(fold(submit(), [launch(0.0, 1, 0, 1), started(0.0)]).snapshot, 1e9)
    [over] = fold(state, [exited(30.0)]).ended
    assert over.account.worth == over.service == 60.0


def test_the_best_goodput_per_gpu_is_that_of_a_single_gpu_if_synchronising_costs() -> None:
    state = knows(fold(submit(), [launch(0.0)]).snapshot, 1.0)
    curve = fairness.estimates.curve(state.jobs[ONE], [fairness.Shape(1)])
    assert accrual.best_goodput(state.jobs[ONE]) == pytest.approx(curve[0].goodput, rel=0.02)


def test_a_job_from_before_accounts_were_kept_stays_unknown() -> None:
    state = fold(submit(), [launch(10.0), started(11.0)]).snapshot
    old = replace(state.jobs[ONE], account=Account())
    [over] = fold(replace(state, jobs={ONE: old}), [exited(50.0)]).ended
    assert (over.account.waited, over.account.restart_cost, over.account.worth) == (None, None, None)


@given(
    st.booleans(),
    st.floats(0, 100),
    st.none() | st.floats(-50, 150),
    st.none() | st.floats(-50, 150),
    st.floats(0, 100),
)
def test_spans_of_a_restart_are_inside_the_attempt_and_separate(
    again: bool, began: float, working: float | None, stopping: float | None, longer: float
) -> None:
    ended = began + longer
    spans = restart_spans(again, began, AttemptAccount(working), stopping, ended)
    assert sum(end - start for start, end in spans) <= longer + 1e-9
    assert all(began <= start < end <= ended for start, end in spans)
    assert list(spans) == sorted(spans)
    assert again or stopping is not None or not spans


def test_fairness_at_the_end_is_the_time_taken_over_the_time_alone_on_the_mean_share() -> None:
    """Two users share four GPUs, so each has a fair share of two. The job has two all its life, so rho is about 1."""
    choice = fairness.estimates.best_batch(Job(ONE, spec(), 0.0, profile=KNOWN), fairness.Shape(2))
    assert choice is not None
    seconds = DECLARED.dataset_size * 5 / choice.goodput
    state = fold(
        snapshot(node("a"), now=0.0),
        [facts.Submitted(0.0, ONE, spec()), facts.Submitted(0.0, JobId(2), spec(user="bo"))],
    ).snapshot
    state = fairness.count_shares(replace(state, now=1.0))
    state = fold(state, [launch(0.0, 1, 0, 1), started(0.0)]).snapshot
    other = state.jobs[JobId(2)]
    state = knows(state, 500.0)
    done = replace(KNOWN, progress=Progress(5, 10, 0, 0, 500.0, 0.5))
    state = replace(state, now=seconds, jobs={ONE: replace(state.jobs[ONE], profile=done), JobId(2): other})
    decision = decide(state, [exited(seconds)], policy("fifo"), allocate=True)
    [over] = decision.ended
    assert over.account.share == pytest.approx(2.0)
    assert over.account.rho == pytest.approx(1.0, rel=1e-6)
    assert ONE not in decision.snapshot.means or decision.snapshot.means[ONE].seconds == pytest.approx(seconds - 1.0)


def test_shares_are_counted_over_restarts_of_the_daemon_and_not_while_it_was_down() -> None:
    state = replace(snapshot(node("a", 4), now=100.0), jobs=submit().jobs)
    state = fairness.count_shares(state)
    assert state.means[ONE] == MeanShare(0.0, 0.0)
    state = fairness.count_shares(replace(state, now=160.0))
    assert state.means[ONE] == MeanShare(240.0, 60.0)
    assert not state.means_kept
    state = fairness.count_shares(replace(state, now=800.0))
    assert state.means_kept == {ONE: MeanShare(2800.0, 700.0)}
    again = replace(state, now=9000.0, means=state.means_kept, means_at=0.0, means_kept_at=0.0)  # as a store loads it
    again = fairness.count_shares(again)
    assert again.means[ONE] == MeanShare(2800.0, 700.0)
    again = fairness.count_shares(replace(again, now=9100.0))
    assert again.means[ONE] == MeanShare(3200.0, 800.0)


def test_a_held_job_keeps_its_mean_share_and_gets_no_more() -> None:
    state = fairness.count_shares(replace(snapshot(node("a", 4), now=1.0), jobs=submit().jobs))
    state = fairness.count_shares(replace(state, now=11.0))
    held = replace(state.jobs[ONE], state=JobState.HELD)
    state = fairness.count_shares(replace(state, now=21.0, jobs={ONE: held}))
    assert state.means == {ONE: MeanShare(40.0, 10.0)}
    assert fairness.count_shares(replace(state, now=31.0, jobs={})).means == {}
