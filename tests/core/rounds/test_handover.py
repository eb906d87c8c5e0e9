"""Who stops now in order to move, and who trains on until the GPUs that it gets are free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpq.core.model.placements import Placement
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.rounds.planning import stoppable

SERVER = NodeId("a")


def to(*devices: int) -> Placement:
    return Placement(((SERVER, tuple(DeviceId(str(number)) for number in devices)),))


def held(**jobs: list[int]) -> dict[tuple[NodeId, DeviceId], JobId]:
    """`held(j1=[0, 1])`: job 1 holds devices 0 and 1."""
    return {
        (SERVER, DeviceId(str(number))): JobId(int(name[1:])) for name, numbers in jobs.items() for number in numbers
    }


def test_a_job_that_shrinks_or_grows_onto_free_gpus_stops_at_once() -> None:
    moves = {JobId(1): to(0), JobId(2): to(2, 3)}
    assert stoppable(moves, held(j1=[0, 1], j2=[2])) == {1, 2}


def test_a_job_trains_on_until_the_gpus_that_it_gets_are_free() -> None:
    moves = {JobId(1): to(0, 1), JobId(2): to(2)}
    assert stoppable(moves, held(j1=[0], j2=[1, 2])) == {2}
    assert stoppable(moves, held(j1=[0], j2=[2])) == {1, 2}


def test_a_job_waits_for_one_that_was_told_to_stop_before() -> None:
    assert stoppable({JobId(1): to(0, 1)}, held(j1=[0], j2=[1])) == set()


def test_jobs_that_swap_places_stop_together_and_who_waits_for_them_does_not() -> None:
    moves = {JobId(1): to(1), JobId(2): to(2), JobId(3): to(0), JobId(4): to(0, 3)}
    assert stoppable(moves, held(j1=[0], j2=[1], j3=[2], j4=[3])) == {1, 2, 3}


@given(st.permutations(range(6)), st.integers(1, 6))
def test_somebody_can_always_stop(order: list[int], count: int) -> None:
    """However jobs take each other's places, the plan leads on."""
    holders = held(**{f"j{number + 1}": [number] for number in range(6)})
    moves = {
        JobId(number + 1): to(target) for number, target in enumerate(order) if number != target and number < count
    }
    done = 0
    while moves:
        ready = stoppable(moves, {device: job for device, job in holders.items() if job in moves})
        assert ready
        moves = {name: target for name, target in moves.items() if name not in ready}
        done += len(ready)
    assert done <= count
