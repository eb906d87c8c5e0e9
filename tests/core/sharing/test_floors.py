"""What is due between users: entitlements and floors by GPU type, and parts for them."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise, permutations
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.core.model.jobs import DesiredState, Job, JobState, StopReason
from gpq.core.model.nodes import NodeState, Reservation
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import NodeId
from gpq.core.sharing.floors import LEAST_TURN, PERIOD, Floor, floors_of, part_of, stays
from tests.support.builders import black_box, job, node, on, running, snapshot, spec

FOUR = tuple(node(name) for name in "wxyz")
USERS = ("ana", "bob", "cat")


def waiting(*users: str, **more: object) -> list[Job]:
    return [job(number, spec_=spec(user=user, **more)) for number, user in enumerate(users, 101)]


def fixed(number: int, user: str, name: str, *devices: int) -> Job:
    return running(number, on(name, *devices), spec_=black_box(len(devices), user=user))


def totals(here: Snapshot) -> dict[str, int]:
    return {user: floor.total for user, floor in floors_of(here).items()}


def reserved(here: Snapshot, server: str, user: str, start: float = -1.0) -> Snapshot:
    return replace(here, reservations={1: Reservation(1, NodeId(server), start, 1e6, user=user)})


# -- entitlements ----------------------------------------------------------------------------------


def test_gpus_are_divided_by_weight_whatever_the_number_of_jobs() -> None:
    jobs = waiting("ana", *["bob"] * 12, "cat")
    assert totals(snapshot(*FOUR, *jobs, user_weights=(("ana", 2.0),))) == {"ana": 8, "bob": 4, "cat": 4}


def test_an_entitlement_need_not_be_whole() -> None:
    weights = (("bob", 2.2),)
    here = snapshot(*FOUR, *waiting(*USERS), user_weights=weights)
    assert [floor.entitlement["A100"] for floor in floors_of(here).values()] == pytest.approx(
        [3.81, 8.38, 3.81], abs=0.01
    )


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (1.0, 2.2, 1.0), (0.1, 1.0, 5.0), (1.0, 1.0, 1.0, 1.0, 1.0)])
def test_in_each_period_users_have_their_part_and_at_most_one_turn_with_a_spare_gpu(weights: tuple[float, ...]) -> None:
    users = [f"u{number}" for number in range(len(weights))]
    here = snapshot(*FOUR[:3], *waiting(*users), user_weights=tuple(zip(users, weights, strict=True)))
    hour = [totals(replace(here, now=1e6 + PERIOD * at / 1000)) for at in range(1000)]
    for user, floor in floors_of(here).items():
        counts = [floors[user] for floors in hour]
        assert mean(counts) == pytest.approx(floor.entitlement["A100"], abs=0.002)
        assert sum(later > earlier for earlier, later in pairwise([*counts, counts[0]])) <= 1


def test_turns_are_longer_than_the_patience_and_never_very_short() -> None:
    def shortest(count: int, patience: float) -> float:
        here = snapshot(*FOUR, *waiting(*(f"u{number:02}" for number in range(count))), floor_patience=patience)
        owners = [totals(replace(here, now=at * 60.0))["u00"] for at in range(60 * 24)]
        runs = [len(list(run)) * 60.0 for _, run in groupby(owners)]
        return min(runs[1:-1])

    assert shortest(15, 600.0) >= LEAST_TURN - 60.0
    assert shortest(3, 3600.0) >= 3600.0 * 1.5 - 60.0


def test_what_a_user_cannot_give_back_moves_no_turn_of_another() -> None:
    """Else each start of a job on a spare GPU would take it from others for a minute."""
    users = [f"u{number}" for number in range(5)]
    here = snapshot(*FOUR[:3], *waiting(*users))
    for at in range(60):
        before = totals(replace(here, now=at * 60.0))
        holder = max(users, key=before.__getitem__)
        starts = replace(here, now=at * 60.0, jobs={**here.jobs, 1: fixed(1, holder, "w", 0, 1, 2)})
        assert totals(starts) == before


def test_users_take_turns_even_if_only_what_one_keeps_makes_a_gpu_spare() -> None:
    """Of 16 GPUs ana keeps 5, so three others divide 11."""
    here = snapshot(*FOUR, fixed(1, "ana", "w", 0, 1, 2, 3), fixed(2, "ana", "x", 0), *waiting("bob", "cat", "dora"))
    rows = [totals(replace(here, now=at * 600.0)) for at in range(6 * 24)]
    assert all(sum(row.values()) == 16 for row in rows)
    for user in ("bob", "cat", "dora"):
        assert mean(row[user] for row in rows) == pytest.approx(11 / 3, abs=0.25)


def test_what_a_user_cannot_give_back_counts_first_and_the_others_divide_the_rest() -> None:
    here = snapshot(*FOUR, fixed(1, "ana", "w", 0, 1, 2, 3), fixed(2, "ana", "x", 0, 1, 2, 3), *waiting("bob", "cat"))
    floors = floors_of(here)
    assert totals(here) == {"ana": 8, "bob": 4, "cat": 4}
    assert len(floors["ana"].fixed) == 8
    assert floors["ana"].borrowed == 0
    movable = replace(here, jobs={**here.jobs, **{n: replace(here.jobs[n], spec=spec()) for n in list(here.jobs)[:2]}})
    assert totals(movable) == {"ana": 6, "bob": 5, "cat": 5}
    assert floors_of(movable)["ana"].borrowed == pytest.approx(8 - 16 / 3)


def test_each_type_is_divided_among_those_whose_jobs_it_suits() -> None:
    jobs = [job(1, spec_=spec(user="ana", gpu_type="t4")), job(2, spec_=spec(user="bob"))]
    floors = floors_of(snapshot(node("a"), node("t", type="T4"), *jobs))
    assert floors["ana"].gpus == {"T4": 2}
    assert floors["bob"].gpus == {"T4": 2, "A100": 4}


def test_devices_that_suit_nobody_are_not_divided() -> None:
    jobs = waiting("ana", "bob", min_gpu_memory_mib=20_000)
    assert totals(snapshot(node("a"), node("b", memory=10_000), *jobs)) == {"ana": 2, "bob": 2}


def test_what_is_reserved_for_a_user_comes_on_top_of_their_floor() -> None:
    here = reserved(snapshot(*FOUR, *waiting("ana", "bob")), "w", "ana")
    assert totals(here) == {"ana": 6, "bob": 6}
    assert floors_of(here)["ana"].reserved.total() == 4
    nobody = reserved(here, "w", "")
    assert totals(nobody) == {"ana": 6, "bob": 6}
    assert not floors_of(nobody)["ana"].reserved
    assert totals(reserved(here, "w", "ana", start=50_000.0)) == {"ana": 8, "bob": 8}


def test_servers_that_take_no_new_jobs_are_not_divided() -> None:
    silent = snapshot(node("a"), node("b", state=NodeState.UNREACHABLE), *waiting("ana", "bob"))
    assert totals(silent) == {"ana": 2, "bob": 2}
    assert totals(replace(snapshot(*FOUR, *waiting("ana", "bob")), drained={NodeId("w"): "dust"})) == {
        "ana": 6,
        "bob": 6,
    }


def test_devices_that_somebody_without_a_floor_keeps_are_not_divided() -> None:
    cancelled = running(
        1,
        on("w", 0, 1),
        spec_=spec(user="dora"),
        state=JobState.STOPPING,
        wish=DesiredState.CANCEL,
        stop=StopReason.CANCEL,
        stop_sent_at=-1.0,
    )
    assert totals(snapshot(*FOUR, cancelled, *waiting("ana", "bob"))) == {"ana": 7, "bob": 7}
    behind = running(1, on("w", 0, 1), spec_=black_box(2, user="dora", background=True))
    assert totals(snapshot(*FOUR, behind, *waiting("ana", "bob"))) == {"ana": 8, "bob": 8}
    starting = replace(behind, state=JobState.STARTING, started_at=None, spec=behind.spec.having(user="ana"))
    assert totals(snapshot(*FOUR, starting, *waiting("ana", "bob"))) == {"ana": 7, "bob": 7}


def test_there_are_no_floors_for_one_user_or_if_users_do_not_count() -> None:
    held = job(9, spec_=spec(user="bob"), state=JobState.HELD, wish=DesiredState.HOLD)
    behind = job(8, spec_=spec(user="cat", background=True))
    gated = job(7, spec_=spec(user="dora", begin=1e6))
    assert floors_of(snapshot(*FOUR, *waiting("ana", "ana"), held, behind, gated)) == {}
    for config in ({"by_user": False}, {"floors": False}):
        assert floors_of(snapshot(*FOUR, *waiting("ana", "bob"), **config)) == {}


# -- parts -----------------------------------------------------------------------------------------


def on_servers(part: set[tuple[NodeId, str]]) -> dict[str, int]:
    names = [server for server, _ in part]
    return {name: names.count(name) for name in sorted(set(names))}


def part(here: Snapshot, user: str, *, whole_jobs: bool = False) -> set[tuple[NodeId, str]]:
    return part_of(here, user, floors_of(here)[user], whole_jobs=whole_jobs)


def test_a_part_is_on_few_servers_on_those_of_the_users_own_jobs_first() -> None:
    here = snapshot(*FOUR, running(1, on("y", 0, 1), spec_=spec(user="ana")), *waiting(*USERS))
    assert on_servers(part(here, "ana")) == {"w": 2, "y": 4}
    busy = running(2, on("w", 0), spec_=spec(user="bob"))
    beside = replace(here, jobs={**here.jobs, busy.id: busy})
    assert on_servers(part(beside, "ana")) == {"x": 2, "y": 4}, "not where somebody would have to leave"


def test_few_servers_come_before_own_jobs_and_own_devices_before_free_ones() -> None:
    single = snapshot(node("w", 1), node("x", 5), running(1, on("w", 0), spec_=spec(user="ana")), *waiting(*USERS))
    assert on_servers(part(single, "ana")) == {"x": 2}
    beside = [
        running(number, on("w", at), spec_=spec(user=user)) for number, at, user in ((1, 0, "bob"), (2, 3, "ana"))
    ]
    assert part(snapshot(node("w"), *beside), "ana") == {("w", "w-1"), ("w", "w-3")}


def test_a_part_has_what_its_user_keeps_even_on_many_servers() -> None:
    kept = [fixed(number, "ana", name, 3) for number, name in enumerate("wxyz", 1)]
    here = snapshot(*FOUR, *kept, *waiting("ana", "bob"))
    assert floors_of(here)["ana"].total == 8
    own = part(here, "ana")
    assert len(own) == 8
    assert own > set().union(*(each.placement.devices for each in kept if each.placement))


def test_a_part_may_spare_the_jobs_that_fit_into_it() -> None:
    small = [running(number, on(name, 0, 1), spec_=spec(user="ana")) for number, name in enumerate("wx", 1)]
    here = snapshot(*FOUR, *small, *waiting("ana", "bob"))
    large = replace(small[1], placement=on("x", 0, 1, 2, 3))
    assert part(here, "ana", whole_jobs=True) >= small[0].placement.devices | small[1].placement.devices  # type: ignore[union-attr]
    crowd = snapshot(*FOUR, small[0], large, *waiting("ana", "ana", "bob", "cat", "dora"))
    assert floors_of(crowd)["ana"].total == 4
    assert on_servers(part(crowd, "ana", whole_jobs=True)) == {"x": 4}, "the larger job first"


@st.composite
def crowds(draw: st.DrawFn) -> Snapshot:
    """Up to four users with jobs that run somewhere, some of which cannot move, on alike servers."""
    nodes = [node(name, draw(st.integers(1, 5))) for name in "wxyz"]
    users = ["ana", "bob", "cat", "dora"][: draw(st.integers(2, 4))]
    jobs = waiting(*users)
    for server in nodes:
        free = list(range(len(server.devices)))
        while free and draw(st.booleans()):
            size = draw(st.integers(1, len(free)))
            made = spec(user=draw(st.sampled_from(users)))
            if draw(st.booleans()):
                made = black_box(size, user=made.user)
            jobs.append(running(len(jobs) + 1, on(server.id, *free[:size]), spec_=made))
            free = free[size:]
    weights = tuple((user, draw(st.sampled_from([0.5, 1.0, 3.0]))) for user in users)
    return snapshot(*nodes, *jobs, user_weights=weights, now=draw(st.floats(0.0, 1e5)))


@given(crowds())
def test_floors_add_up_to_all_gpus_and_parts_for_all_exist_in_any_order(here: Snapshot) -> None:
    floors = floors_of(here)
    devices = {(server.id, device.id) for server in here.nodes.values() for device in server.devices}
    assert sum(floor.total for floor in floors.values()) == len(devices)
    for order in permutations(floors):
        taken: set[tuple[NodeId, str]] = set()
        for user in order:
            own = part_of(here, user, floors[user], taken, whole_jobs=len(taken) % 2 == 0)
            assert len(own) == floors[user].total
            assert not own & taken
            assert own >= set(floors[user].fixed)
            taken |= own
        assert taken == devices


@given(crowds())
def test_nobody_keeps_more_than_the_floor_and_reports_do_not_change_it(here: Snapshot) -> None:
    floors = floors_of(here)
    for user, floor in floors.items():
        own = [each for each in here.holders if each.spec.user == user and stays(each, here)]
        assert sum(each.replicas for each in own) == len(floor.fixed) <= floor.total
    loud = {
        name: replace(each, spec=each.spec.having(priority=10), submitted_at=-1e6) for name, each in here.jobs.items()
    }
    assert floors_of(replace(here, jobs=loud)) == floors


def test_a_floor_of_nothing_is_no_part() -> None:
    assert part_of(snapshot(*FOUR), "ana", Floor(set())) == set()
