"""GPUs that a job holds but does not use: reported, then taken from resizable jobs, and returned when they are used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.feasibility import idle_gpus
from gpq.core.model.actions import Stop
from gpq.core.model.events import Event, Idled, NodeSeen, NodeSilent
from gpq.core.model.jobs import Job, StopReason
from gpq.core.model.nodes import Node
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.rounds.rounds import Decision, decide
from gpq.core.state.apply_events import fold
from gpq.policies.registry import POLICIES
from tests.support.builders import black_box, brief, node, on, running, snapshot, spec
from tests.support.explanations import explain


def used(*percent: int | None, name: str = "a") -> Node:
    """A server whose GPUs are used for this part of the time."""
    plain = node(name, len(percent))
    return replace(
        plain, devices=tuple(replace(one, utilisation=each) for one, each in zip(plain.devices, percent, strict=True))
    )


def after(state: Snapshot, *events: Event) -> Snapshot:
    state = fold(state, events).snapshot
    return replace(state, now=max(event.at for event in events))


def decided(state: Snapshot, policy: str = "fifo") -> Decision:
    return decide(state, [], brief(policy), allocate=True)


def wide(since: float = 0.0, **more: object) -> Job:
    return running(1, on("a", 0, 1, 2, 3), since=since, spec_=spec(gpus=2, up_to=4), **more)


def looks(state: Snapshot, *times: float, of: Node) -> Snapshot:
    return after(state, *(NodeSeen(at, of) for at in times))


IDLE, BUSY = used(0, 0, 0, 0), used(0, 80, 0, 0)


def test_an_unused_gpu_is_named_with_its_idle_time() -> None:
    state = looks(snapshot(wide(), idle_after=600.0), 10.0, 300.0, 610.0, of=used(0, 90, 0, None))
    assert idle_gpus.line(state, state.jobs[JobId(1)]) == "has not used GPU 0, 2 of a for 10 m"
    assert "warning: it has not used GPU 0, 2 of a for 10 m" in explain(state, {}, state.jobs[JobId(1)]).reasons
    assert idle_gpus.line(replace(state, now=609.0), state.jobs[JobId(1)]) == ""


@pytest.mark.parametrize("between", [NodeSeen(300.0, used(1, 1, 1, 1)), NodeSilent(300.0, NodeId("a"), "no answer")])
def test_a_use_or_a_silence_restarts_the_count(between: Event) -> None:
    state = after(
        snapshot(wide(), idle_after=600.0), NodeSeen(0.0, IDLE), between, NodeSeen(400.0, IDLE), NodeSeen(900.0, IDLE)
    )
    assert idle_gpus.line(state, state.jobs[JobId(1)]) == ""
    assert idle_gpus.line(replace(state, now=1000.0), state.jobs[JobId(1)])


def test_the_count_begins_with_the_job_not_before_it() -> None:
    state = looks(snapshot(wide(since=500.0), idle_after=600.0), 0.0, 700.0, of=IDLE)
    assert idle_gpus.line(state, state.jobs[JobId(1)]) == ""
    assert idle_gpus.line(replace(state, now=1100.0), state.jobs[JobId(1)])


def test_switched_off_nothing_is_named() -> None:
    state = looks(snapshot(wide(), idle_after=0.0), 0.0, 1e6, of=IDLE)
    assert idle_gpus.line(state, state.jobs[JobId(1)]) == ""
    assert idle_gpus.reclaim(state) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_after_twice_the_time_a_resizable_job_keeps_its_fewest_gpus(policy: str) -> None:
    state = looks(snapshot(wide(), idle_after=600.0), 0.0, 1199.0, of=IDLE)
    assert not any(isinstance(event, Idled) for event in decided(state, policy).journal)
    found = decided(replace(state, now=1200.0), policy)
    assert found.snapshot.jobs[JobId(1)].idle
    [stop] = [each for each in found.actions if isinstance(each, Stop)]
    assert (stop.reason, stop.target and stop.target.replicas) == (StopReason.RESIZE, 2)


def test_when_it_uses_one_again_it_may_have_more() -> None:
    few = running(1, on("a", 0, 1), since=0.0, spec_=spec(gpus=2, up_to=4), idle=True)
    state = looks(snapshot(few), 100.0, of=IDLE)
    assert idle_gpus.cap_idle(state).jobs[JobId(1)].spec.max_gpus == 2
    assert "keeps only 2 GPUs until it uses them" in "".join(explain(state, {}, state.jobs[JobId(1)]).reasons)
    state = looks(state, 200.0, of=BUSY)
    assert not state.jobs[JobId(1)].idle
    assert idle_gpus.cap_idle(state) is state


def test_a_job_that_cannot_be_resized_is_named_and_left_alone() -> None:
    fixed = running(1, on("a", 0, 1, 2, 3), since=0.0, spec_=black_box(4))
    state = looks(snapshot(fixed, idle_after=600.0), 0.0, 1e5, of=IDLE)
    assert idle_gpus.line(state, fixed)
    assert decided(state).actions == ()


def test_a_report_without_news_changes_nothing() -> None:
    since = idle_gpus.fold({}, IDLE, 5.0)
    assert set(since.values()) == {5.0}
    assert idle_gpus.fold(since, IDLE, 9.0) is since
    assert idle_gpus.fold(since, used(None, None, None, None), 9.0) == {}
