"""Shares go to users first and are measured on existing shapes. An unknown length stays unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpq.core.accounting import fairness
from gpq.core.accounting.fairness import MeanShare, finish_time_fairness, seconds_alone, shares, speed_at, speedup
from gpq.core.goodput import estimates
from gpq.core.goodput import goodput as gp
from gpq.core.model.placements import Placement, Shape
from gpq.core.model.profile import Noise, Profile, ProfileRow, Progress
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from tests.support.builders import DECLARED, PARAMS, job, node, on, running, snapshot, spec
from tests.support.examples import examples

CURVE = [(1.0, 10.0), (2.0, 18.0), (4.0, 30.0)]


def profile(fraction: float = 0.5, epochs: int = 10, **more: object) -> Profile:
    rows = tuple(
        ProfileRow(1, k, m, float(gp.grad_time(PARAMS, m)), float(gp.step_time(PARAMS, 1, k, m)), 100.0)
        for k in (1, 2, 4)
        for m in (16, 64)
    )
    progress = Progress(1, epochs, 0, 10, 10.0, fraction)
    known = Profile(declared=DECLARED, rows=rows, noise=Noise(1.0, 500.0, 1000), progress=progress)
    return replace(known, **more)  # type: ignore[arg-type]


def test_twenty_jobs_of_one_user_share_as_much_as_one_job_of_another() -> None:
    owners = {JobId(i): "ana" for i in range(1, 21)} | {JobId(21): "bo"}
    found = shares(owners, 8)
    assert found[JobId(21)] == 4
    assert found[JobId(1)] == pytest.approx(4 / 20)


def test_without_users_every_job_has_the_same_share() -> None:
    jobs = [running(n, on("a", n), spec_=spec(user="ana" if n < 3 else "bo")) for n in range(4)]
    now = snapshot(node("a", gpus=8), *jobs)
    assert fairness.shares_now(now) == {JobId(0): 4 / 3, JobId(1): 4 / 3, JobId(2): 4 / 3, JobId(3): 4.0}
    apart = replace(now, config=replace(now.config, by_user=False))
    assert fairness.shares_now(apart) == dict.fromkeys(map(JobId, range(4)), 2.0)


@given(st.dictionaries(st.integers(1, 99).map(JobId), st.sampled_from("abc"), min_size=1), st.floats(0.5, 999))
def test_shares_add_up_and_users_have_the_same(owners: dict[JobId, str], gpus: float) -> None:
    found = shares(owners, gpus)
    assert sum(found.values()) == pytest.approx(gpus)
    users = {user: sum(found[j] for j in owners if owners[j] == user) for user in set(owners.values())}
    assert max(users.values()) == pytest.approx(min(users.values()))


def test_the_throughput_of_a_share_is_between_the_shapes_around_it() -> None:
    assert speed_at(CURVE, 2) == 18
    assert speed_at(CURVE, 3) == 24
    assert speed_at(CURVE, 0.5) == 5, "half of the time on one GPU"
    assert speed_at(CURVE, 9) == 30, "nothing beyond the largest shape"
    assert speed_at([(1.0, 10.0), (2.0, 6.0)], 2) == 10, "a slower shape is not used"
    assert speed_at([], 2) == 0


def test_speedup_and_finish_time_fairness_by_hand() -> None:
    assert speedup(36.0, CURVE, 2) == 2
    assert speedup(36.0, [], 2) is None
    alone = seconds_alone(1800, CURVE, 2)
    assert alone == 100
    assert finish_time_fairness(50, 40, alone) == pytest.approx(0.9)


@pytest.mark.parametrize(("remaining", "alone"), [(None, 10.0), (10.0, None), (10.0, 0.0)])
def test_an_unknown_length_or_speed_has_no_finish_time_fairness(remaining: float | None, alone: float | None) -> None:
    assert finish_time_fairness(5, remaining, alone) is None


def test_the_share_is_averaged_over_the_life_of_the_job() -> None:
    assert MeanShare().after(4, 10).after(1, 30).mean(9) == pytest.approx(1.75)
    assert MeanShare().mean(9) == 9
    here = snapshot(node("a", 8), job(1), job(2, spec_=spec(user="bo")))
    means = fairness.advance({JobId(7): MeanShare(1, 1)}, here, 10)
    assert means == {JobId(1): MeanShare(40, 10), JobId(2): MeanShare(40, 10)}


@pytest.mark.parametrize("passes", [False, True])
def test_a_job_at_its_fair_share_has_speedup_one_and_is_finished_as_if_alone(passes: bool) -> None:
    shape = Shape(4)
    known = profile(declared=replace(DECLARED, passes=passes))
    choice = estimates.best_batch(job(1, profile=known), shape)
    assert choice is not None
    known = replace(known, atomic_batch=choice.atomic_batch, accum_steps=choice.accum_steps)
    assert choice.efficiency < 0.9
    half = 0.5 * DECLARED.dataset_size * 10 / (choice.throughput if passes else choice.goodput)
    mine = running(1, on("a", 0, 1, 2, 3), profile=known, at=-half)
    other = running(2, on("a", 4, 5, 6, 7), spec_=spec(user="bo"), at=-half)
    found = fairness.known_fairness(snapshot(node("a", 8), mine, other))
    assert found[JobId(1)].share == 4
    assert found[JobId(1)].speedup == pytest.approx(1.0)
    assert found[JobId(1)].rho == pytest.approx(1.0)
    assert found[JobId(2)].speedup is None, "nothing was measured of it"
    assert found[JobId(2)].rho is None


def test_a_share_that_spans_nodes_is_measured_on_as_many_nodes() -> None:
    slow = replace(PARAMS, alpha_n=0.06)  # crossing servers is expensive
    known = profile()
    across = tuple(
        ProfileRow(2, 8, m, float(gp.grad_time(slow, m)), float(gp.step_time(slow, 2, 8, m)), 100.0) for m in (16, 64)
    )
    known = replace(known, rows=known.rows + across)
    choice = estimates.best_batch(job(1, profile=known), Shape(8, 2))
    imaginary = estimates.best_batch(job(1, profile=known), Shape(8, 1))
    assert choice is not None
    assert imaginary is not None
    assert imaginary.goodput > 1.1 * choice.goodput
    known = replace(known, atomic_batch=choice.atomic_batch, accum_steps=choice.accum_steps)
    everywhere = Placement(on("a", 0, 1, 2, 3).parts + on("b", 0, 1, 2, 3).parts)
    mine = running(1, everywhere, profile=known, at=0.0)
    [value] = fairness.known_fairness(snapshot(node("a", 4), node("b", 4), mine)).values()
    assert value.share == 8
    assert value.speedup == pytest.approx(1.0)


def test_a_waiting_job_has_speedup_zero_and_one_without_an_end_no_rho() -> None:
    endless = job(1, profile=profile(epochs=0))
    [value] = fairness.known_fairness(snapshot(node("a", 4), endless)).values()
    assert value.speedup == 0
    assert value.rho is None


@st.composite
def crowds(draw: st.DrawFn) -> Snapshot:
    """A job that runs and was measured on some sizes, and other waiting or running jobs, of one user or several."""
    gpus = draw(st.integers(1, 8))
    fewest = draw(st.integers(1, gpus))
    has = draw(st.integers(fewest, gpus))
    sizes = draw(st.sets(st.integers(1, 8), min_size=1, max_size=4)) | {has}
    scale, scatter = draw(st.floats(-0.5, 1.0)), draw(st.floats(0.5, 2.0))
    rows = tuple(
        ProfileRow(1, k, m, 0.001 * m, (0.02 + 0.001 * m) * k ** (1 - scale) * (scatter if k > 1 else 1.0), 100.0)
        for k in sorted(sizes)
        for m in (16, 64)
    )
    up_to = draw(st.sampled_from([0, has, gpus]))
    noise = draw(st.sampled_from([None, Noise(1.0, draw(st.floats(1.0, 1e5)), 1000)]))
    mine = replace(
        Profile(declared=DECLARED, rows=rows, noise=noise),
        samples_per_second=draw(st.sampled_from([0.0, 1.0, 1e5])),
    )
    choice = estimates.best_batch(job(1, profile=mine), Shape(has))
    assert choice is not None
    mine = replace(mine, atomic_batch=choice.atomic_batch, accum_steps=choice.accum_steps)
    others = [job(n, spec_=spec(user=draw(st.sampled_from("ab")))) for n in range(2, 2 + draw(st.integers(0, 20)))]
    first = running(1, on("a", *range(has)), spec_=spec(user="a", gpus=fewest, up_to=up_to), profile=mine)
    return snapshot(node("a", gpus), first, *others)


@given(crowds())
@settings(max_examples=examples(300), deadline=None)
def test_a_speedup_needs_measurements_and_more_than_the_fair_share(here: Snapshot) -> None:
    mine = here.jobs[JobId(1)]
    found = fairness.known_fairness(here)[JobId(1)]
    most = max(row.replicas for row in mine.profile.rows)
    if found.speedup is None:
        assert found.share > most
        return
    assert mine.replicas <= most
    if mine.replicas <= max(found.share, mine.spec.min_gpus):
        assert found.speedup <= 1.0 + 1e-6, "on its share, or fewer, nobody is faster than on its share"
    if mine.replicas == 1:
        assert found.speedup <= 1.0 + 1e-6, "one GPU is no speedup over one GPU"
    curve = estimates.curve(mine, [Shape(mine.spec.min_gpus), Shape(mine.replicas)])
    assert found.speedup <= curve[-1].goodput / curve[0].goodput * (1 + 1e-6), "no more than it gains over its fewest"
    slow = replace(mine, profile=replace(mine.profile, samples_per_second=7.0))
    again = fairness.known_fairness(replace(here, jobs={**here.jobs, JobId(1): slow}))[JobId(1)]
    assert again.speedup == found.speedup, "a slow minute changes the throughput, not how it scales"


def test_more_waiting_jobs_do_not_speed_up_a_job_on_one_gpu() -> None:
    known = profile()
    choice = estimates.best_batch(job(1, profile=known), Shape(1))
    assert choice is not None
    known = replace(known, atomic_batch=choice.atomic_batch, accum_steps=choice.accum_steps)
    told = []
    for waiting in (0, 3, 15):
        mine = running(1, on("a", 0), profile=known)
        here = snapshot(node("a", 4), mine, *(job(number) for number in range(2, 2 + waiting)))
        told.append(fairness.known_fairness(here)[JobId(1)].speedup)
    assert told[0] is not None
    assert told[0] < 1.0, "its share were four GPUs"
    assert told[1:] == pytest.approx([1.0, 1.0])


def test_unmeasured_shapes_are_not_compared() -> None:
    once = replace(profile(), rows=tuple(row for row in profile().rows if row.replicas == 1), atomic_batch=64)
    elastic = running(1, on("a", 0), profile=once)
    assert fairness.known_fairness(snapshot(node("a", 4), elastic))[JobId(1)].speedup is None
    alone = replace(elastic, spec=spec(gpus=1, up_to=1))
    [value] = fairness.known_fairness(snapshot(node("a", 4), alone)).values()
    assert value.speedup == pytest.approx(1.0, abs=0.05)


def test_users_are_summed_up() -> None:
    jobs = [running(1, on("a", 0, 1, 2)), job(2), running(3, Placement(()), spec_=spec(user="bo"))]
    here = snapshot(node("a", 4), *jobs)
    rows = fairness.fairness_by_user(
        here,
        {
            JobId(1): fairness.JobFairness(1, 2.0, 0.5),
            JobId(2): fairness.JobFairness(1, 1.0, 1.5),
            JobId(3): fairness.JobFairness(2, None, None),
        },
    )
    assert [(row.user, row.jobs, row.gpus, row.share, row.fair_share) for row in rows] == [
        ("ana", 2, 3, 1.0, 0.5),
        ("bo", 1, 0, 0.0, 0.5),
    ]
    assert (rows[0].speedup, rows[0].rho) == (1.5, 1.5)
    assert (rows[1].speedup, rows[1].rho) == (None, None)
    assert rows[0].gpu_seconds == pytest.approx(3000)
    weighted = replace(here, config=replace(here.config, user_weights=(("bo", 3.0),)))
    assert [row.fair_share for row in fairness.fairness_by_user(weighted, {})] == [0.25, 0.75]
