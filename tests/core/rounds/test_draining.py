"""Drained servers: nothing new starts there, jobs that can resume elsewhere leave, and only `undrain` ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.feasibility.shapes import feasible
from gpq.core.model import events as facts
from gpq.core.model.actions import Launch, Stop
from gpq.core.model.jobs import Job, JobSpec, JobState, Level, StopReason
from gpq.core.model.nodes import NodeState
from gpq.core.model.placements import Exit, Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.rounds.rounds import Decision, decide
from gpq.core.state.apply_events import fold
from gpq.policies.registry import POLICIES, policy
from tests.support.builders import black_box, job, node, on, running, snapshot, spec
from tests.support.explanations import explain

A, B = NodeId("a"), NodeId("b")
DRAIN = facts.NodeDrained(0.0, A, "new driver", "ada")
SIGNAL = spec(level=Level.SIGNAL, up_to=1)
on_every_policy = pytest.mark.parametrize("name", sorted(POLICIES))


def drained(here: Snapshot) -> Snapshot:
    return fold(here, [DRAIN]).snapshot


def next_round(here: Snapshot, name: str = "goodput") -> Decision:
    return decide(here, [DRAIN], policy(name), allocate=True)


def test_only_undrain_and_removal_undo_it() -> None:
    here = drained(snapshot(node("a"), node("b")))
    assert dict(here.drained) == {A: "new driver"}
    for news in (facts.NodeSeen(1.0, node("a")), facts.NodeSilent(1.0, A, "cut")):
        assert dict(fold(here, [news]).snapshot.drained) == {A: "new driver"}
    assert not fold(here, [facts.NodeUndrained(1.0, A)]).snapshot.drained
    assert not fold(here, [facts.NodeRemoved(1.0, A)]).snapshot.drained
    assert dict(fold(here, [facts.NodeUndrained(1.0, B)]).snapshot.drained) == {A: "new driver"}


def test_feasible_shapes_leave_it_out() -> None:
    here = snapshot(node("a", 4), node("b", 2), job(1, spec_=black_box(2)), job(2, spec_=black_box(3)))
    jobs = here.jobs
    assert feasible(jobs[JobId(2)], here)
    here = drained(here)
    assert feasible(jobs[JobId(1)], here) == (Shape(2),)
    assert not feasible(jobs[JobId(2)], here)
    assert feasible(jobs[JobId(2)], fold(here, [facts.NodeUndrained(1.0, A)]).snapshot)


@on_every_policy
def test_new_jobs_start_only_elsewhere(name: str) -> None:
    here = snapshot(node("a", 4), node("b", 1), *(job(number, spec_=black_box()) for number in (1, 2)))
    launches = [action for action in next_round(here, name).actions if isinstance(action, Launch)]
    assert [launch.placement for launch in launches] == [on("b", 0)]


@on_every_policy
@pytest.mark.parametrize("what", [SIGNAL, spec(up_to=1)], ids=["signal", "elastic"])
@pytest.mark.parametrize("room", [1, 0], ids=["room", "no room"])
def test_a_resumable_job_is_stopped_even_if_it_just_started(name: str, what: JobSpec, room: int) -> None:
    here = snapshot(node("a", 4), node("b", room), running(1, on("a", 0), since=-1.0, spec_=what))
    done = next_round(here, name)
    [stop] = done.actions
    assert isinstance(stop, Stop)
    assert stop.mode in ("checkpoint", "signal")
    assert stop.reason is (StopReason.RESIZE if room else StopReason.PREEMPT)
    assert "server a is drained: new driver" in stop.why
    again = decide(done.snapshot, [], policy(name), allocate=True)
    assert not again.actions
    over = [facts.Exited(5.0, JobId(1), 1, A, Exit(0, stopped=True))]
    after = decide(replace(again.snapshot, now=5.0), over, policy(name), allocate=True)
    launches = [action.placement for action in after.actions if isinstance(action, Launch)]
    assert launches == ([on("b", 0)] if room else [])
    assert room or after.snapshot.jobs[JobId(1)].state is JobState.PENDING


@on_every_policy
@pytest.mark.parametrize(
    "stays",
    [running(1, on("a", 0), spec_=black_box()), running(1, on("a", 0), declared=False)],
    ids=["black box", "not declared"],
)
def test_an_unmovable_job_runs_to_its_end(name: str, stays: Job) -> None:
    assert not next_round(snapshot(node("a"), node("b"), stays), name).actions


def test_a_job_on_a_silent_drained_node_stays() -> None:
    here = snapshot(node("a", state=NodeState.UNREACHABLE), node("b"), running(1, on("a", 0)))
    assert not next_round(here).actions


def test_why_says_the_reason_and_how_to_undo_it() -> None:
    here = drained(snapshot(node("a", 4), node("b", 1), job(1, spec_=black_box(2)), running(2, on("a", 0))))
    waits = explain(here, None, here.jobs[JobId(1)])
    assert waits.headline == "servers are drained"
    assert "server a is drained: new driver" in waits.reasons
    assert "`gpq nodes undrain a`" in waits.remedies[0]
    assert "server a is drained: new driver" in explain(here, None, here.jobs[JobId(2)]).reasons[0]
    too_large = explain(drained(snapshot(node("a", 4), job(1, spec_=black_box(9)))), None, job(1, spec_=black_box(9)))
    assert too_large.headline != "servers are drained"
