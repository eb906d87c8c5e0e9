"""Gavel: gangs run on the types that suit them, in rounds that add up to their shares of the time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings

from gpq.core.feasibility.mobility import is_fixed
from gpq.core.feasibility.shapes import by_type, shape_on, supply
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.placements import Shape
from gpq.core.model.policy import shape_of
from gpq.core.model.profile import Profile, Progress
from gpq.core.model.snapshot import Oracle, Snapshot
from gpq.core.model.units import JobId
from gpq.core.placement import place
from gpq.lab.policies.gavel import ROUND, Gavel, GavelFtf, GavelMakespan, GavelMaxMin, demands
from tests.policies.test_sia import FAST, KNOWN, SLOW, labs, profile, rows
from tests.support.builders import DECLARED, black_box, job, node, on, running, snapshot, spec
from tests.support.examples import examples

EVERY = [Gavel, GavelMaxMin, GavelFtf, GavelMakespan]
TOLD = Profile(declared=DECLARED)  # so that they may move


@dataclass(frozen=True)
class Told:
    """What the simulator would say: seconds per step by type, 0 if the job cannot run there."""

    seconds: dict[str, float]
    remaining_steps: float = 10_000.0

    def step_seconds(self, shape: Shape) -> float | None:
        return self.seconds.get(shape.gpu_type) or None


def two_types(*jobs: Job, now: float = 0.0, **oracles: Oracle) -> Snapshot:
    here = snapshot(node("a", 1, type=FAST), node("t", 1, type=SLOW), *jobs, now=now, interval=ROUND)
    return replace(here, oracles={JobId(int(name[1:])): oracle for name, oracle in oracles.items()})


def shapes(policy: Gavel, here: Snapshot) -> dict[int, Shape]:
    found = policy.allocate(here)
    assert set(place(here, found)) == set(found)
    return {int(name): shape_of(each) for name, each in found.items()}


def test_steps_left_are_those_at_the_base_batch_size() -> None:
    mine = job(1, profile=replace(KNOWN, progress=Progress(2, 10, 0, 10, 10.0, 0.25)))
    here = two_types(mine)
    [gang] = demands(here, [mine], {mine.id: by_type(supply(here, mine, {}), here)})
    assert (gang.steps, gang.total) == pytest.approx((0.75 * 100_000 / 64, 100_000 / 64))


def after(policy: Gavel, here: Snapshot, seconds: float = ROUND) -> Snapshot:
    """The next round: jobs that got devices have run on them, the others wait."""
    placed = place(here, policy.allocate(here))
    jobs: dict[JobId, Job] = {}
    for name, each in here.jobs.items():
        if name in placed:
            since = here.now if each.placement != placed[name] or each.launched_at is None else each.launched_at
            jobs[name] = running(int(name), placed[name], since=since, spec_=each.spec, profile=each.profile)
        else:
            jobs[name] = job(int(name), spec_=each.spec, profile=each.profile)
    return replace(here, jobs=jobs, now=here.now + seconds)


def test_the_type_goes_to_the_job_it_speeds_up_most() -> None:
    fond, indifferent = Told({FAST: 0.1, SLOW: 1.0}), Told({FAST: 0.3, SLOW: 0.4})
    here = two_types(job(1), job(2), j1=indifferent, j2=fond)
    assert shapes(Gavel(), here) == {1: Shape(1, 1, SLOW), 2: Shape(1, 1, FAST)}


def test_without_an_oracle_estimates_decide() -> None:
    alike = profile(*rows(FAST, 1), *rows(SLOW, 1, times=1.2))
    here = two_types(job(1, profile=alike), job(2, profile=KNOWN))
    assert shapes(Gavel(), here) == {1: Shape(1, 1, SLOW), 2: Shape(1, 1, FAST)}


@pytest.mark.parametrize("kind", [GavelMaxMin, GavelFtf, GavelMakespan])
def test_rounds_add_up_to_the_shares(kind: type[Gavel]) -> None:
    same = Told({"": 0.2})
    here = snapshot(node("a", 2), *(job(n, profile=TOLD) for n in (1, 2, 3)), interval=ROUND)
    here = replace(here, oracles=dict.fromkeys(here.jobs, same))
    policy, turns = kind(), Counter[JobId]()
    for _ in range(30):
        here = after(policy, here)
        turns.update(name for name, each in here.jobs.items() if each.placement is not None)
    assert all(19 <= turns[JobId(n)] <= 21 for n in (1, 2, 3)), f"expected two thirds of 30 each, not {turns}"


def test_no_round_is_cut_short_and_free_devices_are_given_out_at_once() -> None:
    told = Told({"": 0.2})
    here = snapshot(node("a", 1), job(1, profile=TOLD), job(2, profile=TOLD), interval=60.0)
    here = replace(here, oracles=dict.fromkeys(here.jobs, told))
    policy = GavelMaxMin()
    here = after(policy, here, 100.0)
    assert shapes(policy, here) == {1: Shape(1)}
    here = replace(here, now=ROUND)
    assert shapes(policy, here) == {2: Shape(1)}, "now it is the other job's turn"
    policy = GavelMaxMin()
    policy.allocate(replace(here, now=0.0))
    ended = replace(here, jobs={name: each for name, each in here.jobs.items() if each.placement is None}, now=50.0)
    assert shapes(policy, ended) == {2: Shape(1)}


def test_gangs_have_one_type_and_exactly_the_requested_size() -> None:
    here = snapshot(
        node("a", 4, type=FAST),
        node("t", 4, type=SLOW),
        node("u", 4, type=SLOW),
        job(1, spec_=spec(gpus=8)),
        job(2, spec_=black_box(3)),
        job(3, spec_=black_box(5)),
        job(4, spec_=spec(gpus=1, gpu_type="h100")),
    )
    found = shapes(Gavel(), here)
    assert found[1] == Shape(8, 2, SLOW)
    assert found[2] == Shape(3, 1, FAST)
    assert 3 not in found, "a black box of five fits on no server"
    assert 4 not in found, "the cluster has no GPU of its type"


def test_a_fixed_job_and_a_lost_place_are_respected() -> None:
    rock = running(1, on("a", 1), spec_=black_box())
    here = snapshot(node("a", 4), rock, job(2, spec_=black_box(4)), job(3, spec_=black_box(3)))
    assert shapes(Gavel(), here) == {1: Shape(1), 3: Shape(3)}


def test_the_job_that_ends_last_gets_more() -> None:
    long, short = Told({FAST: 0.2, SLOW: 0.4}, 90_000.0), Told({FAST: 0.1, SLOW: 0.4}, 9_000.0)
    here = two_types(job(1), job(2), j1=long, j2=short)
    assert shapes(Gavel(), here)[2].gpu_type == FAST, "most steps per second"
    assert shapes(GavelMakespan(), here)[1].gpu_type == FAST


@given(labs())
@settings(max_examples=examples(40), deadline=None)
def test_with_any_lab_and_objective_gangs_fit_and_fixed_jobs_keep_theirs(here: Snapshot) -> None:
    for kind in EVERY:
        found = kind().allocate(here)
        assert dict(found) == dict(kind().allocate(here))
        placed = place(here, found)
        assert set(placed) == set(found)
        for name, placement in placed.items():
            each = here.jobs[name]
            types = {d.type for node_, ids in placement.parts for d in here.nodes[node_].devices if d.id in ids}
            assert len(types) == 1
            assert placement.replicas == each.spec.min_gpus
            if is_fixed(each, here):
                assert each.placement is not None
                assert shape_of(found[name]) == shape_on(each.placement, here)
        assert all(name in found for name, each in here.jobs.items() if is_fixed(each, here))


def test_an_empty_queue_has_an_answer() -> None:
    for kind in EVERY:
        assert kind().allocate(snapshot(node("a"))) == {}
        assert kind().allocate(snapshot(job(1))) == {}
        assert kind().allocate(snapshot(node("a"), job(1, state=JobState.HELD))) == {}
