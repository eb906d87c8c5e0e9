"""A server with an owner: gpq leaves it while the owner is there, and jobs that could not leave never start there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpq.core.feasibility.device_status import reservation_line
from gpq.core.feasibility.owners import presence
from gpq.core.model.actions import Launch, Stop
from gpq.core.model.events import Event, NodeSeen, NodeSilent
from gpq.core.model.jobs import Job, Level
from gpq.core.model.nodes import DeviceProcess, DeviceState, Node
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import NodeId
from gpq.core.rounds.rounds import Decision, decide, due, next_round
from gpq.core.state.apply_events import fold
from gpq.policies.fifo import Fifo
from gpq.policies.registry import POLICIES
from tests.support.builders import black_box, brief, job, node, on, running, snapshot, spec

DESK = replace(node("desk", 2), owner="ana")
LAB = node("lab", 2)
SIGNAL = spec(level=Level.SIGNAL, up_to=1, user="ben")


def used_by(user: str, *, beside: bool = False, at: Node = DESK) -> Node:
    """Somebody has a process on its first GPU, `beside` a job of ours or not."""
    state = DeviceState.OK if beside else DeviceState.FOREIGN
    theirs = replace(
        at.devices[0], state=state, reason=f"used by {user}", processes=(DeviceProcess(7, user, "python"),)
    )
    return replace(at, devices=(theirs, *at.devices[1:]))


def decided(state: Snapshot, *events: Event, policy: str = "fifo") -> Decision:
    return decide(state, events, brief(policy), allocate=True)


def stops(decision: Decision) -> list[int]:
    return [int(each.job) for each in decision.actions if isinstance(each, Stop)]


def starts(decision: Decision) -> dict[int, str]:
    return {int(each.job): each.placement.parts[0][0] for each in decision.actions if isinstance(each, Launch)}


@pytest.mark.parametrize(
    ("seen", "there"),
    [
        (DESK, ""),
        (used_by("ana"), "uses GPU 0"),
        (used_by("ana", beside=True), "uses GPU 0"),
        (used_by("ben"), ""),
        (replace(used_by("ana"), owner=""), ""),
        (replace(DESK, yields=("ana",)), "asked for it with `gpq yield`"),
        (replace(DESK, yields=("ben",)), ""),
        # A report that saw her once, which may have been a short blip.
        (replace(DESK, devices=(replace(used_by("ana").devices[0], state=DeviceState.OK, reason=""),)), ""),
        # Our own job under her name.
        (
            replace(
                DESK, devices=(replace(DESK.devices[0], processes=(DeviceProcess(7, "ana", "python", attempt="1.1"),)),)
            ),
            "",
        ),
    ],
)
def test_what_shows_that_the_owner_is_there(seen: Node, there: str) -> None:
    assert presence(seen) == there


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_leaves_when_the_owner_comes_and_returns_when_she_has_gone(policy: str) -> None:
    state = snapshot(DESK, LAB, running(1, on("desk", 1), spec_=SIGNAL), now=100.0)
    came = decided(state, NodeSeen(100.0, used_by("ana")), policy=policy)
    assert stops(came) == [1]
    waits = snapshot(used_by("ana"), job(1, spec_=SIGNAL), now=100.0)
    waits = fold(waits, [NodeSeen(100.0, used_by("ana"))]).snapshot
    assert starts(decided(waits, policy=policy)) == {}
    assert due(replace(waits, round_at=100.0), [NodeSeen(101.0, DESK)])
    assert starts(decided(waits, NodeSeen(101.0, DESK), policy=policy)) == {1: "desk"}


def test_her_presence_triggers_a_round_even_if_all_gpus_are_ours() -> None:
    state = snapshot(DESK, running(1, on("desk", 0, 1), spec_=SIGNAL), now=100.0, interval=3600.0)
    state = replace(state, round_at=100.0)
    assert due(state, [NodeSeen(101.0, used_by("ana", beside=True))])
    assert not due(state, [NodeSeen(101.0, used_by("ben", beside=True))])


def test_her_own_jobs_stay() -> None:
    mine = running(1, on("desk", 1), spec_=SIGNAL.having(user="ana"))
    assert stops(decided(snapshot(DESK, LAB, mine, now=100.0), NodeSeen(100.0, used_by("ana")))) == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("one", "may"),
    [
        (job(1, spec_=black_box(user="ben")), False),
        (job(1, spec_=black_box(user="ana")), True),
        (job(1, spec_=black_box(user="ben", background=True)), True),
        (job(1, spec_=spec(user="ben", rigid=True, up_to=1)), False),
        (job(1, spec_=spec(user="ben")), True),
        (job(1, spec_=SIGNAL), True),
    ],
)
def test_a_job_that_could_not_leave_does_not_start_there(policy: str, one: Job, may: bool) -> None:
    assert starts(decided(snapshot(DESK, one), policy=policy)) == ({1: "desk"} if may else {})
    assert starts(decided(snapshot(LAB, one), policy=policy)) == {1: "lab"}


def test_an_undeclared_script_restarts_elsewhere_after_its_grace() -> None:
    young = running(1, on("desk", 0), spec_=spec(user="ben", up_to=1, grace=30.0), declared=False)
    state = fold(snapshot(DESK, LAB, young, now=100.0, interval=3600.0), [NodeSeen(100.0, used_by("ana"))]).snapshot
    state = replace(state, round_at=100.0)
    assert stops(decided(state)) == []
    assert next_round(state) == 130.0
    assert stops(decided(replace(state, now=130.0))) == [1]
    # A job from before the server had an owner, which can never leave, runs to its end.
    old = running(1, on("desk", 0), spec_=black_box(user="ben", grace=30.0))
    kept = fold(snapshot(DESK, LAB, old, now=100.0), [NodeSeen(100.0, used_by("ana"))]).snapshot
    assert stops(decided(replace(kept, now=1000.0))) == []


def reserved(state: Snapshot, events: Sequence[Event]) -> list[tuple[int, str]]:
    return [(each.id, each.user) for each in fold(state, events).snapshot.reservations.values()]


def test_silence_and_a_new_daemon_change_nothing() -> None:
    there = NodeSeen(100.0, used_by("ana"))
    unheard = NodeSeen(110.0, Node(NodeId("desk"), owner="ana"))
    state = snapshot(DESK, now=100.0)
    assert reserved(state, [there]) == [(-1, "ana")]
    assert reserved(state, [there, there, NodeSilent(105.0, NodeId("desk"), "no answer"), unheard]) == [(-1, "ana")]
    assert reserved(state, [there, NodeSeen(120.0, DESK)]) == []
    other = NodeSeen(100.0, replace(used_by("eva", at=node("lab", 2)), owner="eva"))
    assert reserved(state, [there, other]) == [(-1, "ana"), (-2, "eva")]


def test_the_owner_of_the_server_is_named() -> None:
    state = replace(fold(snapshot(DESK), [NodeSeen(0.0, used_by("ana"))]).snapshot, now=90.0)
    [held] = state.reservations.values()
    assert reservation_line(state, held) == "server desk belongs to ana, who uses GPU 0 (for 90 s)"


def test_policies_see_no_owner() -> None:
    """The rule is part of what a job may use, so no policy has to know it."""
    assert Fifo().allocate(snapshot(DESK, job(1, spec_=black_box(user="ben")))) == {}
