"""Exactly which GPUs: nothing moves needlessly, and nothing is given twice."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.core.feasibility.shapes import feasible, supply
from gpq.core.model.jobs import JobState
from gpq.core.model.nodes import DeviceState, NodeState
from gpq.core.model.placements import Layout, Placement, Shape
from gpq.core.model.profile import Profile
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.placement import place
from tests.support.builders import DECLARED, black_box, job, node, on, running, snapshot


def shapes(**wanted: Shape) -> dict[JobId, Shape]:
    return {JobId(int(name[1:])): shape for name, shape in wanted.items()}


def test_a_job_that_keeps_its_shape_keeps_its_devices() -> None:
    before = snapshot(node("a"), running(1, on("a", 2, 3)), job(2))
    placed = place(before, shapes(j1=Shape(2), j2=Shape(2)))
    assert placed == {JobId(1): on("a", 2, 3), JobId(2): on("a", 0, 1)}


def test_a_job_that_shrinks_keeps_a_part_of_its_own() -> None:
    before = snapshot(node("a"), node("b"), running(1, on("b", 1, 2)))
    assert place(before, shapes(j1=Shape(1))) == {JobId(1): on("b", 1)}


def test_small_jobs_fill_the_fullest_node_that_fits() -> None:
    before = snapshot(node("a"), node("b"), running(1, on("b", 0, 1, 2)), job(2))
    assert place(before, shapes(j1=Shape(3), j2=Shape(1)))[JobId(2)] == on("b", 3)


def test_an_odd_number_goes_where_its_parts_fit_even_if_it_must_wait() -> None:
    """On the empty server it would break the block of four that the larger one needs."""
    others = running(1, on("a", 0), spec_=black_box()), running(2, on("a", 1, 2))
    before = snapshot(node("a"), node("b"), *others, job(3), job(4))
    placed = place(before, shapes(j1=Shape(1), j3=Shape(3), j4=Shape(2), j2=Shape(1)))
    assert placed[JobId(3)] == on("a", 1, 2, 3)
    assert len(placed) == 4


def test_a_small_job_moves_when_a_large_one_fits_nowhere_else() -> None:
    before = snapshot(node("a", 2), node("b", 2), running(1, on("a", 0)), running(2, on("b", 0)), job(3))
    placed = place(before, shapes(j1=Shape(1), j2=Shape(1), j3=Shape(2)))
    assert len(placed) == 3
    assert placed[JobId(3)].replicas == 2
    assert len({placed[JobId(1)].parts[0][0], placed[JobId(2)].parts[0][0]}) == 1


def test_an_unmovable_job_stays_and_the_large_job_waits() -> None:
    fixed = [running(number, on(name, 0), spec_=black_box()) for number, name in ((1, "a"), (2, "b"))]
    placed = place(snapshot(node("a", 2), node("b", 2), *fixed, job(3)), shapes(j1=Shape(1), j2=Shape(1), j3=Shape(2)))
    assert set(placed) == {JobId(1), JobId(2)}


def test_at_most_one_job_that_spans_nodes_per_node() -> None:
    before = snapshot(node("a", 4), node("b", 4), node("c", 4), job(1), job(2))
    placed = place(before, shapes(j1=Shape(6, 2), j2=Shape(6, 2)))
    assert len(placed) == 1


def test_a_gpu_with_a_foreign_process_is_left_alone() -> None:
    machine = node("a", 2)
    taken = replace(machine.devices[0], state=DeviceState.FOREIGN, reason="pid 7 (bob)")
    machine = replace(machine, devices=(taken, machine.devices[1]))
    assert place(snapshot(machine, job(1)), shapes(j1=Shape(1))) == {JobId(1): on("a", 1)}
    assert feasible(job(1, spec_=black_box(2)), snapshot(machine)) == ()


def test_shapes_across_servers_use_whole_servers_and_only_for_scripts() -> None:
    here = snapshot(node("a", 4), node("b", 2))
    script = job(1, profile=Profile(declared=DECLARED))
    assert feasible(script, here) == (*(Shape(k) for k in range(1, 5)), Shape(6, 2))
    assert feasible(job(2, spec_=black_box(6)), here) == ()


def test_a_script_that_never_declared_itself_gets_its_minimum() -> None:
    assert feasible(job(1), snapshot(node("a", 4))) == (Shape(1),)


def test_every_gpu_gets_at_least_the_smallest_micro_batch() -> None:
    for adaptive, most in ((False, 3), (True, 6)):
        declared = replace(DECLARED, adaptive=adaptive, batch_size=32, max_batch_size=64, min_atomic_batch=10)
        found = feasible(job(1, profile=Profile(declared=declared)), snapshot(node("a", 8)))
        assert found == tuple(Shape(k) for k in range(1, most + 1))


def test_an_unreachable_server_offers_nothing_new_and_keeps_its_jobs() -> None:
    silent = node("a", 2, state=NodeState.UNREACHABLE)
    before = snapshot(silent, running(1, on("a", 0)), job(2))
    assert supply(before, before.jobs[JobId(2)]) == {}
    assert place(before, shapes(j2=Shape(1))) == {JobId(1): on("a", 0)}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Snapshot, dict[JobId, Shape]]:
    nodes = [node(name, draw(st.integers(1, 4))) for name in "abc"[: draw(st.integers(1, 3))]]
    free = {machine.id: [device.id for device in machine.devices] for machine in nodes}
    jobs, wanted = [], {}
    for number in range(1, draw(st.integers(1, 6)) + 1):
        machine = draw(st.sampled_from(sorted(free)))
        held = draw(st.integers(0, len(free[machine])))
        indices = [int(free[machine].pop(0).split("-")[1]) for _ in range(held)]
        fresh = draw(st.booleans())
        what = black_box(max(held, 1)) if draw(st.booleans()) else None
        jobs.append(
            running(number, on(machine, *indices), spec_=what, since=0.0 if fresh else -1000.0)
            if held
            else job(number, profile=Profile(declared=DECLARED))
        )
    here = snapshot(*nodes, *jobs, now=1.0)
    for each in jobs:
        options = feasible(each, here)
        if each.state is JobState.PENDING and options and draw(st.booleans()):
            wanted[each.id] = draw(st.sampled_from(options))
        elif each.placement is not None:
            wanted[each.id] = each.placement.shape if not options else draw(st.sampled_from(options))
    return here, wanted


@given(clusters())
def test_no_device_is_given_twice_and_shapes_are_as_wished(case: tuple[Snapshot, dict[JobId, Shape]]) -> None:
    here, wanted = case
    placed = place(here, wanted)
    seen: set[object] = set()
    for name, placement in placed.items():
        assert not placement.devices & seen
        seen |= placement.devices
        each = here.jobs[name]
        if placement != each.placement:
            assert placement.shape == wanted[name]
            assert all(set(devices) <= set(supply(here, each)[at]) for at, devices in placement.parts)
    assert placed == place(here, wanted)


def test_a_layout_of_another_type_on_the_same_node_is_another_place() -> None:
    machine = node("a", 2)
    machine = replace(machine, devices=(machine.devices[0], replace(machine.devices[1], type="T4")))
    mine = running(1, replace(on("a", 0), gpu_type="A100"))
    wanted = {JobId(1): Layout(((NodeId("a"), 1),), "T4")}
    assert place(snapshot(machine, mine), wanted) == {JobId(1): on("a", 1)}


A = NodeId("a")


@pytest.mark.parametrize("parts", [((A, ("0",)), (A, ("1",))), ((A, ()),), ((A, ("0", "0")),)])
def test_a_placement_on_which_no_attempt_could_end_is_refused(
    parts: tuple[tuple[NodeId, tuple[DeviceId, ...]], ...],
) -> None:
    """A job on a server that is named twice would wait for ever for a second end of its part there."""
    with pytest.raises(ValueError, match="placement names"):
        Placement(parts)
    with pytest.raises(msgspec.ValidationError, match="placement names"):  # of a damaged database
        msgspec.convert({"parts": parts}, Placement)


@pytest.mark.parametrize("parts", [((A, 1), (A, 2)), ((A, 0),)])
def test_so_is_a_layout(parts: tuple[tuple[NodeId, int], ...]) -> None:
    with pytest.raises(ValueError, match="layout names"):
        Layout(parts)
