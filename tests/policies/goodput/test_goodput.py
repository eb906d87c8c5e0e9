"""The goodput policy gives all users the most goodput in fair shares, on shapes that exist. It moves no job without
need."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpq.core.feasibility.mobility import is_fixed
from gpq.core.feasibility.shapes import feasible, supply
from gpq.core.goodput import goodput as gp
from gpq.core.model.jobs import Job, JobState, Level, StopReason
from gpq.core.model.nodes import DeviceState, Node, NodeState
from gpq.core.model.placements import Shape
from gpq.core.model.profile import Noise, Profile, ProfileRow, Progress
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.placement import place
from gpq.policies.goodput.policy import Goodput
from gpq.policies.registry import policy
from tests.support.builders import DECLARED, PARAMS, black_box, job, node, on, running, snapshot, spec
from tests.support.examples import examples

GOOD = PARAMS  # scales well
# Synchronising takes far longer than computing, and the noise scale is so small that larger batches do not help either.
POOR = gp.ThroughputParams(0.02, 0.001, 2.0, 0.5, 0.5, 0.2, 1.0)


def profile(params: gp.ThroughputParams, most: int = 8, fraction: float = 0.0) -> Profile:
    """The profile of a job that has run on 1, 2, 4, ... `most` GPUs of one server, and on two servers."""
    shapes = [(1, k) for k in (1, 2, 4, 8) if k <= most] + ([(2, 8)] if most >= 8 else [])
    rows = tuple(
        ProfileRow(n, k, m, float(gp.grad_time(params, m)), float(gp.step_time(params, n, k, m)), 100.0)
        for n, k in shapes
        for m in (16, 64, 128)
    )
    progress = Progress(1, 10, 0, 10, 10.0, fraction) if fraction else None
    return Profile(
        declared=DECLARED, rows=rows, noise=Noise(1.0, 5000.0 if params is GOOD else 1.0, 10_000), progress=progress
    )


def counts(here: Snapshot, by_cost: bool = False) -> dict[int, int]:
    here = replace(here, config=replace(here.config, cost_to_go=by_cost))
    return {int(name): shape.replicas for name, shape in policy("goodput").allocate(here).items()}


def test_a_job_alone_gets_all_gpus_that_it_gains_from() -> None:
    assert counts(snapshot(node("a", 8), job(1, profile=profile(GOOD)))) == {1: 8}
    assert counts(snapshot(node("a", 8), job(1, profile=profile(POOR)))) == {1: 1}


def test_equal_jobs_get_equal_shares_and_the_one_that_scales_gets_more() -> None:
    same = snapshot(node("a", 8), job(1, profile=profile(GOOD)), job(2, profile=profile(GOOD)))
    assert counts(same) == {1: 4, 2: 4}
    different = snapshot(node("a", 8), job(1, profile=profile(GOOD)), job(2, profile=profile(POOR)))
    assert counts(different) == {1: 7, 2: 1}


def test_shares_depend_on_users_and_not_on_their_jobs() -> None:
    many = [job(i, profile=profile(GOOD)) for i in range(1, 5)]
    one = job(5, profile=profile(GOOD), spec_=spec(user="bo"))
    found = counts(snapshot(node("a", 8), *many, one))
    assert found[5] == 4
    assert [found[i] for i in range(1, 5)] == [1, 1, 1, 1]


def test_every_user_gets_something_before_anyone_gets_much() -> None:
    found = counts(snapshot(node("a", 4), *(job(i, profile=profile(GOOD)) for i in range(1, 5))))
    assert found == {1: 1, 2: 1, 3: 1, 4: 1}


def test_priority_decides_who_waits() -> None:
    jobs = [job(i, profile=profile(GOOD), spec_=spec(gpus=2, priority=p)) for i, p in ((1, 0), (2, 3), (3, 0))]
    assert set(counts(snapshot(node("a", 2), *jobs))) == {2}


@pytest.mark.parametrize("by_cost", [False, True])
def test_a_short_job_goes_before_a_long_one(by_cost: bool) -> None:
    long, short = job(1, profile=profile(GOOD, fraction=0.01)), job(2, profile=profile(GOOD, fraction=0.95))
    tight = spec(gpus=2)
    here = snapshot(node("a", 2), replace(long, spec=tight), replace(short, spec=tight))
    assert set(counts(here, by_cost)) == {2}


@pytest.mark.parametrize("by_cost", [False, True])
def test_a_long_job_that_scales_is_not_taken_for_a_short_one(by_cost: bool) -> None:
    """It has more left than the others on one GPU, and less on two, which it cannot have."""
    scales = job(1, profile=profile(GOOD, most=1, fraction=0.5))
    others = [job(i, profile=profile(POOR, fraction=fraction)) for i, fraction in ((2, 0.6), (3, 0.9))]
    assert set(counts(snapshot(node("a", 2), scales, *others), by_cost)) == {2, 3}


def test_by_cost_to_go_a_job_late_for_what_it_needs_goes_first() -> None:
    """Both have waited as long and have as much left. One of them had ten times as much to do."""
    small, tight = replace(DECLARED, dataset_size=DECLARED.dataset_size // 10), spec(gpus=2)
    large = job(1, profile=profile(GOOD, fraction=0.9), spec_=tight)
    fresh = job(2, profile=replace(profile(GOOD, fraction=0.001), declared=small), spec_=tight)
    assert set(counts(snapshot(node("a", 2), large, fresh, now=100_000.0), by_cost=True)) == {2}


def test_of_jobs_of_unknown_length_the_least_served_goes_first() -> None:
    tight = spec(gpus=2)
    served, new = job(1, profile=profile(GOOD), service=1e6), job(2, profile=profile(GOOD))
    assert set(counts(snapshot(node("a", 2), replace(served, spec=tight), replace(new, spec=tight)))) == {2}


def test_a_new_script_starts_with_its_minimum_until_it_declares_itself_then_with_at_most_four() -> None:
    assert counts(snapshot(node("a", 8), job(1))) == {1: 1}
    assert counts(snapshot(node("a", 8), job(1, profile=Profile(declared=DECLARED)))) == {1: 4}
    assert counts(snapshot(node("a", 2), node("b", 2), job(1, profile=Profile(declared=DECLARED)))) == {1: 2}


def test_a_job_grows_to_at_most_four_times_its_profiled_size() -> None:
    assert counts(snapshot(node("a", 16), job(1, profile=profile(GOOD, most=2)))) == {1: 8}


def test_minimum_and_maximum_are_kept() -> None:
    wide = job(1, profile=profile(POOR), spec_=spec(gpus=3, up_to=6))
    narrow = job(2, profile=profile(GOOD), spec_=spec(gpus=1, up_to=2))
    assert counts(snapshot(node("a", 8), wide, narrow)) == {1: 3, 2: 2}


def test_a_small_gain_is_not_worth_a_restart_and_a_large_one_is() -> None:
    mine = running(1, on("a", 0, 1, 2, 3, 4, 5, 6), profile=profile(GOOD))
    assert counts(snapshot(node("a", 8), mine)) == {1: 7}
    mine = running(1, on("a", 0, 1), profile=profile(GOOD))
    assert counts(snapshot(node("a", 8), mine)) == {1: 8}


def test_a_slow_restart_needs_a_larger_gain() -> None:
    def size(restart: float) -> int:
        mine = running(1, on("a", 0, 1, 2, 3), profile=profile(GOOD), restart_seconds=restart)
        return counts(snapshot(node("a", 6), mine, restart_seconds=1.0))[1]

    assert size(1.0) == 6
    assert size(120.0) == 4


def test_a_long_job_that_got_far_less_than_its_share_is_not_starved_by_shorter_ones() -> None:
    long = job(1, at=0.0, profile=profile(GOOD, fraction=0.3), spec_=spec(gpus=2))
    short = running(2, on("a", 0, 1), profile=profile(GOOD, fraction=0.4), service=1e5, spec_=spec(gpus=2, user="bo"))
    here = snapshot(node("a", 2), long, short, now=50_000.0)
    assert counts(here) == {1: 2}
    assert counts(replace(here, now=100.0)) == {2: 2}, "it has not waited long"


def test_a_job_keeps_its_shape_for_a_while_after_a_restart() -> None:
    def size(launched: float) -> int:
        mine = running(1, on("a", 0, 1, 2, 3), profile=profile(GOOD), restart_seconds=20.0)
        return counts(replace(snapshot(node("a", 8), replace(mine, launched_at=launched)), now=1000.0))[1]

    held = [size(launched) for launched in (1000.0, 0.0)]
    assert held == [4, 8]


def test_a_job_that_ends_before_a_restart_pays_off_is_left_alone() -> None:
    def size(fraction: float) -> int:
        mine = running(1, on("a", 0, 1), profile=profile(GOOD, fraction=fraction), restart_seconds=20.0)
        return counts(snapshot(node("a", 8), mine))[1]

    assert size(0.1) == 8
    assert size(0.99) == 2


def test_a_job_about_to_end_does_not_have_to_make_way() -> None:
    mine = running(1, on("a", 0, 1, 2, 3), profile=profile(GOOD, fraction=0.999), restart_seconds=20.0)
    assert counts(snapshot(node("a", 4), mine, job(2, profile=profile(GOOD, fraction=0.01)))) == {1: 4}


def test_jobs_that_change_places_get_the_same_whoever_stops_first() -> None:
    """Otherwise the job that stops first would get back what it had, for ever."""

    def leave(mine: Job, *, over: bool) -> Job:
        if over:
            return replace(mine, state=JobState.PENDING, placement=None, launched_at=None, started_at=None)
        return replace(mine, state=JobState.STOPPING, stop=StopReason.RESIZE, stop_sent_at=-1.0)

    large = running(1, on("a", 0, 1, 2, 3), profile=profile(POOR))
    small = running(2, on("b", 0, 1), profile=profile(GOOD))
    found = {
        (first, second): counts(
            snapshot(node("a", 4), node("b", 2), leave(large, over=first), leave(small, over=second))
        )
        for first in (True, False)
        for second in (True, False)
    }
    assert set(map(str, found.values())) == {str(found[True, True])}
    assert found[True, True][2] == 4


def test_a_stopped_job_continues_with_the_shape_it_was_stopped_for() -> None:
    def size(target: Shape | None) -> int:
        mine = job(1, attempt=1, profile=profile(GOOD), restart_seconds=120.0, target=target)
        return counts(snapshot(node("a", 6), mine))[1]

    assert size(None) == 6
    assert size(Shape(4)) == 4


def test_no_plan_relies_on_a_job_that_overruns_its_grace() -> None:
    stuck = running(
        1,
        on("a", 0, 1, 2, 3),
        profile=profile(GOOD),
        state=JobState.STOPPING,
        stop=StopReason.RESIZE,
        stop_sent_at=-500.0,
    )
    assert counts(snapshot(node("a", 4), node("b", 2), stuck, job(2, profile=profile(GOOD)))) == {1: 4, 2: 2}


def test_a_job_stays_until_it_has_reported_times_or_stays_silent_for_long() -> None:
    def fixed(since: float, speed: float) -> bool:
        mine = running(1, on("a", 0), since=since, profile=replace(profile(GOOD), samples_per_second=speed))
        return is_fixed(mine, snapshot(node("a", 4), mine))

    assert [fixed(-10.0, 5.0), fixed(-20.0, 5.0), fixed(-20.0, 0.0), fixed(-70.0, 0.0)] == [True, False, True, False]


def test_immovable_jobs_keep_their_gpus() -> None:
    fixed = [
        running(1, on("a", 0), spec_=black_box()),
        running(2, on("a", 1, 2), declared=False),
        running(3, on("a", 3), profile=profile(GOOD), since=-1.0),
    ]
    here = snapshot(node("a", 8), *fixed, job(4, profile=profile(GOOD)))
    assert all(is_fixed(each, here) for each in fixed)
    assert counts(here) == {1: 1, 2: 2, 3: 1, 4: 4}


def test_a_job_makes_room_for_another() -> None:
    here = snapshot(node("a", 4), running(1, on("a", 0, 1, 2, 3), profile=profile(GOOD)), job(2, profile=profile(GOOD)))
    found = counts(here)
    assert found[2] >= 1
    assert found[1] + found[2] == 4


def test_only_scripts_span_servers_and_they_take_whole_ones() -> None:
    here = snapshot(node("a", 4), node("b", 4), job(1, profile=profile(GOOD)))
    assert Goodput().allocate(here) == {JobId(1): Shape(8, 2)}
    assert counts(snapshot(node("a", 1), node("b", 1), job(1, spec_=black_box(2)))) == {}
    signal = spec(level=Level.SIGNAL, gpus=2, up_to=2)
    assert counts(snapshot(node("a", 1), node("b", 1), job(1, spec_=signal))) == {}


def test_parts_of_servers_are_powers_of_two_unless_there_is_only_one_server() -> None:
    jobs = [job(i, profile=profile(GOOD)) for i in (1, 2, 3)]
    assert sorted(counts(snapshot(node("a", 4), node("b", 4), *jobs)).values()) == [2, 2, 4]
    assert sorted(counts(snapshot(node("a", 9), *jobs)).values()) == [3, 3, 3]


def test_an_unknown_job_counts_as_short_and_one_that_has_run_long_as_long() -> None:
    tight = spec(gpus=2)
    endless = replace(profile(GOOD, fraction=0.01), declared=replace(DECLARED, dataset_size=10_000_000))
    long = job(1, profile=endless, spec_=tight)
    assert set(counts(snapshot(node("a", 2), long, job(2, spec_=tight)))) == {2}
    assert set(counts(snapshot(node("a", 2), long, job(2, spec_=tight, run_seconds=1e7)))) == {1}


def test_two_jobs_of_unknown_length_do_not_swap_in_every_round() -> None:
    tight = spec(gpus=2)
    known = {"profile": profile(GOOD), "spec_": tight}
    for service in (100.0, 600.0):
        runs = running(1, on("a", 0, 1), since=-service / 2, **known)  # type: ignore[arg-type]
        stopped = job(2, attempt=1, **known)  # type: ignore[arg-type]
        assert set(counts(snapshot(node("a", 2), runs, stopped))) == {1}
    runs = running(1, on("a", 0, 1), since=-5000.0, **known)  # type: ignore[arg-type]
    assert set(counts(snapshot(node("a", 2), runs, job(2, attempt=1, **known)))) == {2}  # type: ignore[arg-type]


@pytest.mark.parametrize("by_cost", [False, True])
def test_short_jobs_cannot_delay_a_long_one_for_ever(by_cost: bool) -> None:
    endless = replace(profile(GOOD, fraction=0.01), declared=replace(DECLARED, dataset_size=10_000_000))
    tight = spec(gpus=2)
    short = [job(i, profile=profile(GOOD, fraction=0.9), spec_=tight, at=999_990.0) for i in (2, 3, 4)]
    for submitted, winner in ((998_000.0, {2}), (0.0, {1})):
        long = job(1, profile=endless, spec_=tight, at=submitted)
        assert set(counts(snapshot(node("a", 2), long, *short, now=1_000_000.0), by_cost)) == winner


def test_shapes_that_fit_the_total_but_not_the_servers_are_withdrawn() -> None:
    jobs = [job(i, profile=profile(GOOD), spec_=spec(gpus=2)) for i in (1, 2, 3)]
    here = snapshot(node("a", 3), node("b", 3), *jobs)
    allocation = Goodput().allocate(here)
    assert len(allocation) == 2, "three times two does not fit on three and three"
    assert set(place(here, allocation)) == set(allocation)


def test_foreign_and_lost_devices_and_unreachable_servers_are_left_alone() -> None:
    mixed = node("a", 4)
    devices = (
        replace(mixed.devices[0], state=DeviceState.FOREIGN),
        replace(mixed.devices[1], state=DeviceState.LOST),
        *mixed.devices[2:],
    )
    here = snapshot(
        replace(mixed, devices=devices), node("b", 8, state=NodeState.UNREACHABLE), job(1, profile=profile(GOOD))
    )
    assert counts(here) == {1: 2}


def test_a_job_gets_the_gpu_type_it_asked_for() -> None:
    picky = [job(i, profile=profile(GOOD), spec_=spec(gpu_type="h100")) for i in (1, 2)]
    here = snapshot(node("a", 4, type="A100"), node("b", 2, type="H100"), *picky)
    assert counts(here) == {1: 1, 2: 1}


def test_a_held_job_or_one_waiting_after_a_failure_gets_nothing() -> None:
    later = job(1, profile=profile(GOOD), not_before=10.0)
    assert counts(snapshot(node("a", 4), later, now=5.0)) == {}
    assert counts(snapshot(node("a", 4), later, now=10.0)) == {1: 4}
    assert counts(snapshot(node("a", 4), job(1, state=JobState.HELD))) == {}


@pytest.mark.parametrize("p", [-1.0, 0.0, 0.25, 1.0])
def test_every_fairness_power_fills_the_server(p: float) -> None:
    jobs = [job(i, profile=profile(GOOD)) for i in (1, 2, 3)]
    found = counts(snapshot(node("a", 6), *jobs, fairness_power=p))
    assert sum(found.values()) == 6
    if p <= 0.25:
        assert set(found.values()) == {2}


def test_an_empty_cluster_and_an_empty_queue_have_an_answer() -> None:
    assert counts(snapshot()) == {}
    assert counts(snapshot(node("a"))) == {}
    assert counts(snapshot(job(1))) == {}


@st.composite
def labs(draw: st.DrawFn) -> Snapshot:
    nodes: list[Node] = [node(name, draw(st.integers(1, 6))) for name in "abc"[: draw(st.integers(1, 3))]]
    free = {each.id: list(range(len(each.devices))) for each in nodes}
    jobs: list[Job] = []
    for number in range(1, draw(st.integers(1, 8)) + 1):
        least = draw(st.integers(1, 3))
        what = draw(
            st.sampled_from(
                [spec(gpus=least), spec(gpus=least, up_to=least + 2), black_box(least), spec(gpus=1, user="bo")]
            )
        )
        seen = draw(st.sampled_from([Profile(), profile(GOOD), profile(POOR, 2), profile(GOOD, 4, fraction=0.4)]))
        where = draw(st.sampled_from(sorted(free)))
        if draw(st.booleans()) and len(free[where]) >= what.min_gpus:
            taken = [free[where].pop() for _ in range(what.min_gpus)]
            since = draw(st.sampled_from([-1.0, -1000.0]))
            jobs.append(running(number, on(where, *sorted(taken)), spec_=what, profile=seen, since=since))
        else:
            jobs.append(job(number, spec_=what, profile=seen))
    return snapshot(*nodes, *jobs)


@given(labs())
@settings(max_examples=examples(100), deadline=None)
def test_in_any_lab_shapes_are_feasible_placed_and_kept_where_required(here: Snapshot) -> None:
    allocation = Goodput().allocate(here)
    assert dict(allocation) == dict(Goodput().allocate(here))
    placed = place(here, allocation)
    assert set(placed) == set(allocation)
    taken = [device for placement in placed.values() for device in placement.devices]
    assert len(taken) == len(set(taken))
    for each in here.jobs.values():
        shape = allocation.get(each.id)
        if is_fixed(each, here):
            assert each.placement is not None
            assert shape == each.placement.shape
        elif shape is not None:
            current = each.placement.shape if each.placement else None
            assert shape == current or shape in feasible(each, here, supply(here, each))


def test_a_round_raises_batch_sizes_with_the_noise_and_moves_no_job() -> None:
    rng = np.random.default_rng(3)
    sizes = set()
    for _ in range(10):
        rows = tuple(
            replace(row, step_time=row.step_time * float(np.exp(0.02 * rng.standard_normal())))
            for row in profile(GOOD).rows
        )
        jobs = [running(i, on("a", 2 * i - 2, 2 * i - 1), profile=replace(profile(GOOD), rows=rows)) for i in (1, 2)]
        sizes.add(tuple(counts(snapshot(node("a", 4), *jobs)).values()))
    assert sizes == {(2, 2)}
