"""Gangs get exactly what they asked for or nothing, in the order of the policy, and move as little as possible."""

from __future__ import annotations

from dataclasses import replace

from gpq.core.model.jobs import Allotment, DesiredState, JobState, Level, StopReason
from gpq.core.model.placements import Layout, Placement, Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.placement import place
from gpq.policies.shared.eligible import eligible, waiting
from gpq.policies.shared.gangs import Seats, seat_all
from tests.support.builders import black_box, job, node, on, running, snapshot, spec


def seated(here: Snapshot, *order: int, spread: bool = False) -> dict[int, Allotment]:
    found = seat_all(here, [here.jobs[JobId(number)] for number in order], spread=spread)
    return {int(name): allotment for name, allotment in found.items()}


def layout(**counts: int) -> Layout:
    return Layout(tuple((NodeId(name), count) for name, count in counts.items()))


def test_waiting_jobs_and_movable_jobs_contend() -> None:
    here = snapshot(
        node("a", 8),
        job(1, at=5.0),
        job(2, not_before=60.0),
        job(3, wish=DesiredState.HOLD),
        running(4, on("a", 0)),
        running(5, on("a", 1), spec_=black_box()),
        running(6, on("a", 2), since=-5.0),
        job(7, at=9.0, spec_=spec(priority=1)),
    )
    assert [each.id for each in eligible(here)] == [1, 4, 7]
    assert [each.id for each in waiting(here)] == [7, 1]


def test_the_first_job_gets_gpus_and_a_job_that_does_not_fit_is_skipped() -> None:
    here = snapshot(node("a", 4), *(job(i, spec_=spec(gpus=k)) for i, k in ((1, 3), (2, 2), (3, 1))))
    assert seated(here, 1, 2, 3) == {1: layout(a=3), 3: layout(a=1)}
    assert seated(here, 2, 3, 1) == {2: layout(a=2), 3: layout(a=1)}


def test_a_gang_takes_the_fullest_server_that_fits_or_with_spread_the_emptiest() -> None:
    here = snapshot(node("a", 4), node("b", 2), job(1, spec_=spec(gpus=2)))
    assert seated(here, 1) == {1: layout(b=2)}
    assert seated(here, 1, spread=True) == {1: layout(a=2)}


def test_a_script_may_span_the_emptiest_servers_and_a_command_never_does() -> None:
    nodes = node("a", 1), node("b", 3), node("c", 2)
    assert seated(snapshot(*nodes, job(1, spec_=spec(gpus=4))), 1) == {1: layout(b=3, c=1)}
    assert seated(snapshot(*nodes, job(1, spec_=black_box(4))), 1) == {}
    assert seated(snapshot(*nodes, job(1, spec_=spec(gpus=4, level=Level.SIGNAL))), 1) == {}


def test_a_running_job_keeps_its_devices_and_another_job_goes_elsewhere() -> None:
    two = spec(gpus=2)
    here = snapshot(
        node("a", 2),
        node("b", 2),
        job(1, spec_=two),
        running(2, on("a", 0, 1), spec_=two),
        running(3, on("b", 0, 1), spec_=two),
    )
    assert seated(here, 1, 2, 3) == {1: layout(b=2), 2: Shape(2)}
    assert seated(here, 1, 3, 2) == {1: layout(a=2), 3: Shape(2)}
    assert seated(here, 2, 3, 1) == {2: Shape(2), 3: Shape(2)}


def test_a_running_job_moves_if_an_earlier_job_fits_only_there() -> None:
    here = snapshot(node("a", 4), node("b", 2), job(1, spec_=black_box(4)), running(2, on("a", 0)))
    assert seated(here, 1, 2) == {1: layout(a=4), 2: layout(b=1)}


def test_a_job_starts_on_devices_that_nobody_has_to_leave_first() -> None:
    here = snapshot(node("a", 2), node("b", 1), running(1, on("b", 0)), job(2))
    placed = place(here, seat_all(here, [here.jobs[JobId(2)]]))
    assert placed == {JobId(2): on("a", 0)}
    one_after_the_other = snapshot(node("a", 2), running(1, on("a", 0)), job(2))
    assert place(one_after_the_other, seat_all(one_after_the_other, [job(2)])) == {JobId(2): on("a", 1)}


def test_a_gang_waits_for_a_server_being_freed_rather_than_spread_thinly() -> None:
    jobs = running(1, on("a", 0, 1), spec_=spec(gpus=2)), job(2, spec_=spec(gpus=2))
    here = snapshot(node("a", 2), node("b", 1), node("c", 1), *jobs)
    assert seated(here, 2) == {2: layout(a=2)}


def test_a_running_job_of_another_size_gets_the_size_it_asked_for() -> None:
    here = snapshot(node("a", 4), running(1, on("a", 0, 1, 2), spec_=spec(gpus=2)))
    assert seated(here, 1) == {1: layout(a=2)}


def test_the_devices_of_a_leaving_job_go_to_others() -> None:
    leaving = running(1, on("a", 0, 1), spec_=spec(gpus=2), state=JobState.STOPPING)
    leaving = replace(leaving, stop=StopReason.PREEMPT, stop_sent_at=-1.0)
    here = snapshot(node("a", 2), leaving, job(2, spec_=spec(gpus=2)))
    assert seated(here, 2, 1) == {2: layout(a=2)}
    late = snapshot(node("a", 2), replace(leaving, stop_sent_at=-500.0), job(2, spec_=spec(gpus=2)))
    assert seated(late, 2) == {1: Shape(2)}


def test_a_leaving_job_does_not_claim_its_old_devices() -> None:
    leaving = running(1, on("a", 0), state=JobState.STOPPING, stop=StopReason.RESIZE, stop_sent_at=-1.0)
    here = snapshot(node("a", 4), node("b", 1), leaving, job(2, spec_=black_box(4)))
    assert seated(here, 1, 2) == {1: layout(b=1), 2: layout(a=4)}


def test_devices_that_a_moved_job_leaves_go_to_others() -> None:
    two = spec(gpus=2)
    here = snapshot(
        node("a", 2),
        node("b", 2),
        job(1, spec_=two),
        running(2, on("a", 0)),
        running(3, on("b", 0, 1), spec_=two),
        job(4),
    )
    assert seated(here, 1, 2, 4, 3) == {1: layout(b=2), 2: Shape(1), 4: layout(a=1)}


def test_the_emptiest_server_is_chosen_after_all_requests_are_known() -> None:
    here = snapshot(node("a", 4), node("b", 4), job(1, spec_=spec(gpus=2)), running(2, on("a", 3)))
    assert seated(here, 1, 2, spread=True) == {1: layout(b=2), 2: Shape(1)}


def test_a_gang_has_one_type_the_one_with_most_free_devices() -> None:
    nodes = node("a", 2, type="T4"), node("b", 3, type="A100"), node("c", 2, type="T4")
    here = snapshot(*nodes, job(1, spec_=spec(gpus=4)), job(2, spec_=spec(gpus=3)), job(3))
    assert seated(here, 1, 2, 3) == {
        1: Layout(((NodeId("a"), 2), (NodeId("c"), 2)), "T4"),
        2: Layout(((NodeId("b"), 3),), "A100"),
    }
    assert seated(snapshot(*nodes, job(1, spec_=spec(gpus=5))), 1) == {}
    assert seated(snapshot(*nodes, job(1)), 1) == {1: Layout(((NodeId("a"), 1),), "T4")}


class TooLarge:
    """An oracle for a job whose batch does not fit into a T4."""

    remaining_steps = 100.0

    def step_seconds(self, shape: Shape) -> float | None:
        return None if shape.gpu_type == "T4" else 1.0


def test_no_job_is_offered_a_type_on_which_it_cannot_run() -> None:
    here = snapshot(node("a", 4, type="T4"), node("b", 1, type="A100"), job(1), job(2))
    here = replace(here, oracles={JobId(1): TooLarge(), JobId(2): TooLarge()})
    assert seated(here, 1, 2) == {1: Layout(((NodeId("b"), 1),), "A100")}


def test_every_named_shape_can_be_placed() -> None:
    """If the devices of one server differ in memory, `place` may give away the one that another job needs."""
    small = node("a", 2, memory=16_000)
    mixed = replace(small, devices=(replace(small.devices[0], memory_mib=80_000), small.devices[1]))
    here = snapshot(mixed, job(1), job(2, spec_=spec(min_gpu_memory_mib=40_000)))
    assert set(seated(here, 1, 2)) == {1}
    found = seat_all(here, [here.jobs[JobId(2)], here.jobs[JobId(1)]])
    assert found
    assert set(place(here, found)) == set(found)


def test_later_names_the_devices_it_will_fit_on_after_others_are_gone() -> None:
    fixed = [running(1, on("a", 0, 1), spec_=black_box(2)), running(2, on("b", 0), spec_=black_box())]
    here = snapshot(node("a", 2), node("b", 2), *fixed, job(3, spec_=spec(gpus=3)), job(4, spec_=black_box(3)))
    seats, waits = Seats(here, keep_running=True), here.jobs[JobId(3)]
    assert not seats.admit(waits)
    assert seats.later(waits, [JobId(2)]) is None
    assert seats.later(waits, [JobId(1)]) == Placement((*on("a", 0, 1).parts, *on("b", 1).parts))
    assert seats.could_ever(waits)
    assert not seats.could_ever(here.jobs[JobId(4)])


def test_devices_to_avoid_are_avoided() -> None:
    here = snapshot(node("a", 1), node("b", 1), job(1), job(2))
    seats = Seats(here, keep_running=True)
    assert seats.admit(here.jobs[JobId(1)], on("a", 0))
    assert not seats.admit(here.jobs[JobId(2)], on("a", 0))
    assert seats.allotments() == {JobId(1): layout(b=1)}


def test_a_gang_on_several_servers_stays_where_it_is() -> None:
    spread = Placement((*on("a", 0, 1).parts, *on("b", 0).parts))
    here = snapshot(node("a", 2), node("b", 2), node("c", 4), running(1, spread, spec_=spec(gpus=3)), job(2))
    found = seat_all(here, eligible(here))
    assert found[JobId(1)] == Shape(3, 2)
    assert place(here, found)[JobId(1)] == spread
