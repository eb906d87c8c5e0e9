"""Reserved GPUs: nobody else is there when the time comes, under every policy, and they are not kept free for
longer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.feasibility.reservations import UNKNOWN_LENGTH, barred_devices, current, next_change
from gpq.core.model import events as facts
from gpq.core.model.actions import Launch, Stop
from gpq.core.model.jobs import Job, JobSpec, JobState, Level, StopReason
from gpq.core.model.nodes import Reservation
from gpq.core.model.placements import Exit
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.rounds.rounds import Decision, decide, next_round
from gpq.core.state.apply_events import fold
from gpq.policies.registry import POLICIES, policy
from tests.support.builders import black_box, job, node, on, running, snapshot, spec
from tests.support.explanations import explain

A = NodeId("a")
A0 = DeviceId("a-0")
START, END = 10_000.0, 20_000.0
HELD = Reservation(1, A, START, END, (A0,), "bo", "ada")
SIGNAL = spec(level=Level.SIGNAL, up_to=1)
on_every_policy = pytest.mark.parametrize("name", sorted(POLICIES))


def at(now: float, *things: object, held: Reservation = HELD) -> Snapshot:
    here = replace(snapshot(*things), now=now)  # type: ignore[arg-type]
    return fold(here, [facts.NodeReserved(0.0, held)]).snapshot


def one_round(here: Snapshot, name: str = "goodput") -> Decision:
    return decide(here, [], policy(name), allocate=True)


def launched(done: Decision) -> dict[int, str]:
    return {int(one.job): str(one.placement) for one in done.actions if isinstance(one, Launch)}


def test_a_reservation_lasts_until_undone_ended_or_its_server_removed() -> None:
    here = at(0.0, node("a"))
    assert dict(here.reservations) == {1: HELD}
    assert here.next_reservation == 2
    gone = fold(here, [facts.NodeUnreserved(1.0, 1)]).snapshot
    assert (dict(gone.reservations), gone.next_reservation) == ({}, 2)  # numbers are not reused
    assert not fold(here, [facts.NodeRemoved(1.0, A)]).snapshot.reservations
    assert not current(replace(here, now=END), END)
    later = fold(replace(here, now=END), [facts.NodeReserved(END, replace(HELD, id=2, end=END + 9))]).snapshot
    assert list(later.reservations) == [2]


@on_every_policy
def test_while_it_lasts_only_its_user_gets_the_gpu(name: str) -> None:
    mine, theirs = black_box(user="bo"), black_box(user="ana")
    for now in (START, END - 1.0):
        assert launched(one_round(at(now, node("a", 1), job(1, spec_=theirs), job(2, spec_=mine)), name)) == {
            2: "a:a-0"
        }
        assert not launched(one_round(at(now, node("a", 1), job(1, spec_=theirs)), name))
    assert launched(one_round(at(END, node("a", 1), job(1, spec_=theirs)), name)) == {1: "a:a-0"}


@on_every_policy
def test_a_gpu_kept_from_gpq_is_unused_and_its_neighbours_are_used(name: str) -> None:
    nobodys = replace(HELD, user="")
    here = at(
        START, node("a", 2), job(1, spec_=black_box(user="bo")), job(2, spec_=black_box(user="ana")), held=nobodys
    )
    assert list(launched(one_round(here, name)).values()) == ["a:a-1"]
    whole = replace(HELD, user="", devices=())
    assert not launched(one_round(at(START, node("a", 2), job(1, spec_=black_box()), held=whole), name))


@on_every_policy
@pytest.mark.parametrize("what", [SIGNAL, spec(up_to=1)], ids=["signal", "elastic"])
@pytest.mark.parametrize("room", [2, 1], ids=["room", "no room"])
def test_a_resumable_job_leaves_with_a_checkpoint_in_time(name: str, what: JobSpec, room: int) -> None:
    runs = running(1, on("a", 0), since=START - 5000.0, spec_=what)
    early = at(START - what.grace - 1.0, node("a", room), runs)
    assert not one_round(early, name).actions
    assert next_round(early) <= START - what.grace
    done = one_round(at(START - what.grace, node("a", room), runs), name)
    [stop] = done.actions
    assert isinstance(stop, Stop)
    assert stop.mode in ("checkpoint", "signal")
    assert stop.reason is (StopReason.RESIZE if room > 1 else StopReason.PREEMPT)
    assert "GPU 0 of a is reserved for bo" in stop.why
    over = [facts.Exited(START - 50.0, JobId(1), 1, A, Exit(0, stopped=True))]
    after = decide(replace(done.snapshot, now=START - 50.0), over, policy(name), allocate=True)
    assert launched(after) == ({1: "a:a-1"} if room > 1 else {})
    assert room > 1 or after.snapshot.jobs[JobId(1)].state is JobState.PENDING


@on_every_policy
@pytest.mark.parametrize("stays", [black_box(user="ana"), black_box(user="bo")], ids=["fixed", "its user's"])
def test_jobs_that_cannot_or_need_not_move_stay(name: str, stays: JobSpec) -> None:
    assert not one_round(at(START + 1.0, node("a", 2), running(1, on("a", 0), spec_=stays)), name).actions


@pytest.mark.parametrize(
    ("limit", "before", "starts"),
    [
        (3600.0, 3601.0, True),
        (3600.0, 3599.0, False),
        (7200.0, 7100.0, False),
        (None, UNKNOWN_LENGTH + 1.0, True),
        (None, UNKNOWN_LENGTH - 1.0, False),
    ],
)
def test_an_unstoppable_job_does_not_start_if_it_might_reach_into_it(
    limit: float | None, before: float, starts: bool
) -> None:
    waits = job(1, spec_=black_box(user="ana", time_limit=limit))
    assert bool(launched(one_round(at(START - before, node("a", 1), waits)))) == starts


def test_a_job_of_several_gpus_waits_or_goes_around_it() -> None:
    assert not launched(one_round(at(START, node("a", 4), job(1, spec_=black_box(4)))))
    found = launched(one_round(at(START, node("a", 4), node("b", 4), job(1, spec_=black_box(4)))))
    assert found == {1: "b:b-0,b-1,b-2,b-3"}


def test_the_loop_wakes_when_it_begins_to_matter_begins_and_ends() -> None:
    mover = running(1, on("a", 0), spec_=SIGNAL)
    assert next_change(at(0.0, node("a"), mover)) == START - SIGNAL.grace
    assert next_change(at(START - 1.0, node("a"), mover)) == START
    assert next_change(at(START, node("a"), mover)) == END
    assert next_change(at(END, node("a"), mover)) == float("inf")
    assert barred_devices(at(0.0, node("a")), mover) == frozenset()


def test_why_names_it_and_how_to_undo_it() -> None:
    waits = job(1, spec_=black_box(user="ana"))
    here = at(START, node("a", 1), waits)
    said = explain(here, None, waits)
    assert said.headline == "GPUs are reserved"
    assert "GPU 0 of a is reserved for bo for another 2 h (reservation 1)" in said.reasons
    assert "`gpq nodes unreserve 1`" in said.remedies[0]
    busy: list[Job] = [running(2, on("a", 1), spec_=black_box())]
    beside = explain(at(START, node("a", 2), waits, *busy), None, waits)
    assert beside.headline == "waits for GPUs"
    assert "it needs 1 GPU, and 0 of 2 are free" in beside.reasons
    assert any("reserved for bo" in line for line in beside.reasons)
    soon = explain(at(START - 1800.0, node("a", 1), waits), None, waits)
    assert "GPU 0 of a is reserved for bo starting in 30 m, for 2 h (reservation 1)" in soon.reasons
    leaving = running(3, on("a", 0), spec_=SIGNAL)
    assert explain(at(START, node("a", 1), leaving), None, leaving).reasons[0].startswith("it must leave: GPU 0 of a")
