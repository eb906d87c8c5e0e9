"""--background: gpq decides on all other jobs as if there were no background jobs. These get what is left, and leave at
once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.accounting.fairness import shares_now
from gpq.core.model.actions import Launch, Stop
from gpq.core.model.events import Exited
from gpq.core.model.jobs import Job, JobState, StopReason
from gpq.core.model.placements import Exit
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.rounds.rounds import Decision, decide
from gpq.policies.registry import POLICIES
from tests.support.builders import black_box, brief, job, node, on, running, snapshot, spec
from tests.support.explanations import explain
from tests.support.sanity import sanity

A = node("a", 4)


def round_of(state: Snapshot, policy: str = "goodput") -> Decision:
    decision = decide(state, [], brief(policy), allocate=True)
    assert sanity(decision.snapshot) == []
    return decision


def launches(decision: Decision) -> dict[int, str]:
    return {int(each.job): str(each.placement) for each in decision.actions if isinstance(each, Launch)}


def stops(decision: Decision) -> list[tuple[int, StopReason]]:
    return [(int(each.job), each.reason) for each in decision.actions if isinstance(each, Stop)]


def behind(number: int, gpus: int = 1, **more: object) -> Job:
    return job(number, spec_=black_box(gpus, background=True), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_others_get_what_they_would_get_without_it(policy: str) -> None:
    others = [running(1, on("a", 0), spec_=black_box()), job(2, spec_=black_box()), job(3, spec_=spec(up_to=2))]
    alone = launches(round_of(snapshot(A, *others), policy))
    both = launches(round_of(snapshot(A, *others, *(behind(n) for n in range(4, 9))), policy))
    assert {name: both[name] for name in both if name < 4} == alone
    assert alone
    taken = 1 + sum(len(where.split(",")) for where in alone.values())
    assert len(both) - len(alone) == 4 - taken


@pytest.mark.parametrize("policy", POLICIES)
def test_it_leaves_when_somebody_comes_and_is_queued_again(policy: str) -> None:
    there = [running(n, on("a", n - 1), spec_=black_box(background=True)) for n in range(1, 5)]
    assert stops(round_of(snapshot(A, *there), policy)) == []
    came = round_of(snapshot(A, *there, job(5, spec_=black_box(2))), policy)
    assert len(stops(came)) == 2
    assert {reason for _, reason in stops(came)} == {StopReason.PREEMPT}
    assert launches(came) == {}
    left, now = stops(came)[0][0], came.snapshot.now
    gone = [Exited(now, JobId(name), 1, NodeId("a"), Exit(None, 15, asked="term")) for name, _ in stops(came)]
    after = decide(came.snapshot, gone, brief(policy), allocate=True)
    assert set(launches(after)) == {5}
    waits = after.snapshot.jobs[JobId(left)]
    assert (waits.state, waits.failures) == (JobState.PENDING, 0)


def test_it_need_not_leave_if_there_is_a_choice() -> None:
    there = running(1, on("a", 0), spec_=black_box(background=True))
    decision = round_of(snapshot(A, there, job(2, spec_=black_box(3))), "fifo")
    assert (launches(decision), stops(decision)) == ({2: "a:a-1,a-2,a-3"}, [])
    decision = round_of(snapshot(A, node("b", 4), there, job(2, spec_=black_box(4))), "fifo")
    assert (launches(decision), stops(decision)) == ({2: "b:b-0,b-1,b-2,b-3"}, [])


def test_a_job_that_can_shrink_gives_only_what_is_needed() -> None:
    wide = running(1, on("a", 0, 1, 2, 3), spec_=spec(up_to=4, background=True))
    decision = round_of(snapshot(A, wide, job(2, spec_=black_box())), "fifo")
    assert stops(decision) == [(1, StopReason.RESIZE)]


def test_background_jobs_do_not_push_each_other_around() -> None:
    there = running(1, on("a", 0, 1, 2, 3), spec_=black_box(4, background=True))
    assert stops(round_of(snapshot(A, there, behind(2), job(3, spec_=black_box(background=True, priority=9))))) == []


def test_it_has_no_share_and_takes_none() -> None:
    assert shares_now(snapshot(A, behind(1), job(2), job(3))) == {2: 2.0, 3: 2.0}


def test_why_says_so() -> None:
    waits = behind(2)
    state = snapshot(A, running(1, on("a", 0, 1, 2, 3), spec_=black_box(4)), waits)
    said = explain(state, {}, waits)
    assert said.headline == "waits for GPUs that nobody else wants"
    assert "`gpq edit 2 --no-background` makes it an ordinary job" in said.remedies
    runs = running(2, on("a", 0), spec_=waits.spec)
    assert any("leaves as soon as" in reason for reason in explain(snapshot(A, runs), {}, runs).reasons)


def test_on_a_server_that_does_not_answer_it_stays() -> None:
    from gpq.core.model.nodes import NodeState

    there = running(1, on("a", 0), spec_=black_box(background=True))
    silent = replace(A, state=NodeState.UNREACHABLE)
    assert stops(round_of(snapshot(silent, there, job(2, spec_=black_box())))) == []
