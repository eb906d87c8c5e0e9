"""Room for shapes: everything that is given out can be placed, and no job moves without need."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpq.core.feasibility.mobility import is_fixed
from gpq.core.feasibility.shapes import node_counts, shape_now, supply
from gpq.core.feasibility.shapes import pack as packed_shape
from gpq.core.model.jobs import DesiredState, Level, StopReason
from gpq.core.model.jobs import JobState as State
from gpq.core.model.nodes import DeviceState, NodeState
from gpq.core.model.placements import Layout, Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.placement import place
from gpq.lab.policies.packing import pack
from gpq.policies.shared.eligible import contest
from tests.support.builders import black_box, job, node, on, running, snapshot, spec
from tests.support.examples import examples


def packed(here: Snapshot, wanted: dict[int, Shape], *, loose: bool = False) -> dict[int, tuple[tuple[str, int], ...]]:
    found = pack(here, contest(here).fixed_shapes, {JobId(n): shape for n, shape in wanted.items()}, loose=loose)
    assert set(place(here, found)) == set(found)
    return {int(name): each.parts for name, each in found.items() if isinstance(each, Layout)}


def test_jobs_that_stay_are_left_alone_and_others_displace_nobody() -> None:
    here = snapshot(node("a", 4), node("b", 4), running(1, on("a", 0)), running(2, on("b", 0, 1)), job(3), job(4))
    wanted = {1: Shape(1), 2: Shape(2), 3: Shape(2), 4: Shape(2)}
    assert packed(here, wanted) == {1: (("a", 1),), 2: (("b", 2),), 3: (("b", 2),), 4: (("a", 2),)}


def test_a_whole_server_displaces_the_fewest_jobs_that_find_room_elsewhere() -> None:
    here = snapshot(node("a", 4), node("b", 4), running(1, on("a", 0, 1)), running(2, on("b", 0)), job(3))
    assert packed(here, {1: Shape(2), 2: Shape(1), 3: Shape(4)}) == {1: (("a", 2),), 2: (("a", 1),), 3: (("b", 4),)}


def test_two_servers_are_cleared_although_each_holds_a_small_job() -> None:
    small = [running(n, on(name, 0)) for n, name in enumerate("abc", 1)]
    here = snapshot(node("a", 4), node("b", 4), node("c", 4), *small, job(4))
    found = packed(here, {1: Shape(1), 2: Shape(1), 3: Shape(1), 4: Shape(8, 2)})
    assert found[4] == (("a", 4), ("b", 4))
    assert found[1] == found[2] == found[3] == (("c", 1),)


def test_fixed_jobs_and_dead_devices_take_up_room() -> None:
    first = node("a", 4)
    lame = replace(first, devices=(*first.devices[:3], replace(first.devices[3], state=DeviceState.LOST)))
    rock = running(1, on("b", 0), spec_=black_box())
    here = snapshot(lame, node("b", 4), rock, job(2), job(3), job(4))
    found = packed(here, {2: Shape(4), 3: Shape(3), 4: Shape(3)})
    assert set(found) == {3, 4}, "no server has four free GPUs"
    assert contest(here).capacity == {"": 6}


def test_a_gang_gets_gpus_of_several_servers_only_if_it_is_a_script() -> None:
    rocks = [running(n, on(name, 0), spec_=black_box()) for n, name in enumerate("ab", 1)]
    gangs = [job(3, spec_=spec(gpus=4)), job(4, spec_=black_box(4))]
    here = snapshot(node("a", 4), node("b", 4), *rocks, *gangs)
    assert packed(here, {3: Shape(4)}, loose=True) == {3: (("a", 1), ("b", 3))} or packed(
        here, {3: Shape(4)}, loose=True
    ) == {3: (("a", 3), ("b", 1))}
    assert packed(here, {3: Shape(4)}) == {}
    assert packed(here, {4: Shape(4)}, loose=True) == {}


def test_which_jobs_contend() -> None:
    leaving = running(1, on("a", 0), state=State.STOPPING, stop=StopReason.RESIZE, stop_sent_at=0.0, target=Shape(2))
    ending = running(2, on("a", 1), wish=DesiredState.CANCEL)
    later = job(3, not_before=50.0)
    here = snapshot(node("a", 4), leaving, ending, later, job(4), now=1.0)
    found = contest(here)
    assert dict(found.fixed_shapes) == {2: Shape(1)}
    assert [int(each.id) for each in found.jobs] == [1, 4]
    assert found.capacity == {"": 3}
    assert [shape_now(each, here) for each in found.jobs] == [Shape(2), None]


def test_a_packed_shape_has_the_fewest_servers() -> None:
    counts = node_counts(supply(snapshot(node("a", 2), node("b", 4)), job(1)))
    assert counts == [4, 2]
    scripts = [packed_shape(k, counts, Level.SCRIPT, "") for k in (1, 4, 5, 7)]
    assert scripts == [Shape(1), Shape(4), Shape(5, 2), None]
    assert [packed_shape(k, counts, Level.BLACK_BOX, "T4") for k in (4, 5)] == [Shape(4, 1, "T4"), None]


@st.composite
def full_houses(draw: st.DrawFn) -> tuple[Snapshot, dict[int, Shape]]:
    """Equal servers, jobs somewhere on them, and wishes for powers of two and whole servers that fill them at most."""
    number = draw(st.integers(1, 4))
    nodes = [node(f"n{i}", 4) for i in range(number)]
    free = {each.id: [0, 1, 2, 3] for each in nodes}
    jobs, wanted, left = [], dict[int, Shape](), 4 * number
    for each in range(1, draw(st.integers(1, 8)) + 1):
        size = draw(st.sampled_from([k for k in (1, 2, 4, 8, 12) if k <= left] or [0]))
        at = draw(st.sampled_from(sorted(free)))
        here = draw(st.sampled_from([0, 1, 2, 4]))
        if size:
            wanted[each], left = Shape(size, max(size // 4, 1)), left - size
        if here and len(free[at]) >= here:
            jobs.append(running(each, on(at, *sorted(free[at].pop() for _ in range(here)))))
        else:
            jobs.append(job(each))
    return snapshot(*nodes, *jobs), wanted


@given(full_houses())
@settings(max_examples=examples(100), deadline=None)
def test_powers_of_two_and_whole_servers_always_find_room(house: tuple[Snapshot, dict[int, Shape]]) -> None:
    here, wanted = house
    found = packed(here, wanted)
    assert {name: Layout(parts).shape for name, parts in ((n, tuple(p)) for n, p in found.items())} == wanted  # type: ignore[arg-type]


def test_jobs_on_an_unreachable_server_stay() -> None:
    here = snapshot(node("a", 2, state=NodeState.UNREACHABLE), node("b", 2), running(1, on("a", 0)), job(2))
    assert is_fixed(here.jobs[JobId(1)], here)
    assert pack(here, contest(here).fixed_shapes, {JobId(2): Shape(2)})[JobId(1)] == Shape(1)
