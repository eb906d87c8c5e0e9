"""Sia: few shapes of every type, one of them for each job, and the faster type for a job that gains from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpq.core.feasibility.mobility import is_fixed
from gpq.core.feasibility.shapes import shape_on
from gpq.core.goodput import goodput as gp
from gpq.core.model.jobs import Job, Level
from gpq.core.model.placements import Shape
from gpq.core.model.policy import shape_of
from gpq.core.model.profile import Noise, Profile, ProfileRow
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.placement import place
from gpq.lab.policies.sia import Sia, restart_factor
from gpq.policies.shared.eligible import configurations, contest
from tests.support.builders import DECLARED, PARAMS, black_box, job, node, on, running, snapshot, spec
from tests.support.examples import examples

FAST, SLOW = "A100", "T4"


def rows(gpu_type: str, *counts: int, times: float = 1.0) -> tuple[ProfileRow, ...]:
    return tuple(
        ProfileRow(
            1,
            k,
            m,
            times * float(gp.grad_time(PARAMS, m)),
            times * float(gp.step_time(PARAMS, 1, k, m)),
            100.0,
            gpu_type,
        )
        for k in counts
        for m in (16, 64, 128)
    )


def profile(*seen: ProfileRow, noise: float = 5000.0) -> Profile:
    return Profile(declared=DECLARED, rows=seen, noise=Noise(1.0, noise, 10_000))


KNOWN = profile(*rows(FAST, 1, 2, 4), *rows(SLOW, 1, 2, 4, times=4.0))


def mixed(*jobs: Job, now: float = 10_000.0) -> Snapshot:
    return snapshot(node("a", 4, type=FAST), node("t", 4, type=SLOW), node("u", 4, type=SLOW), *jobs, now=now)


def shapes(here: Snapshot) -> dict[int, Shape]:
    found = Sia().allocate(here)
    assert set(place(here, found)) == set(found)
    return {int(name): shape_of(each) for name, each in found.items()}


def test_a_new_job_starts_with_one_gpu_and_doubles() -> None:
    assert shapes(mixed(job(1)))[1].replicas == 1
    for most, counts in ((2, (1,)), (4, (1, 2)), (8, (1, 2, 4))):
        here = snapshot(node("a", 8, type=FAST), job(1, profile=profile(*rows(FAST, *counts)), attempt=1))
        assert shapes(replace(here, jobs={JobId(1): replace(here.jobs[JobId(1)], attempt=0)})) == {1: Shape(1)}
        assert shapes(here) == {1: Shape(most)}


def test_the_configurations_are_powers_of_two_and_whole_servers_of_each_type() -> None:
    many = [node(f"t{i}", 4, type=SLOW) for i in range(3)]
    here = snapshot(node("a", 6, type=FAST), *many, job(1, profile=KNOWN))
    found = configurations(here, contest(here))[JobId(1)]
    assert [(s.gpu_type, s.nodes, s.replicas) for s in found] == [
        *((FAST, 1, k) for k in (1, 2, 4, 6)),
        *((SLOW, 1, k) for k in (1, 2, 4)),
        *((SLOW, n, 4 * n) for n in (2, 3)),
    ]


def test_a_job_moves_to_the_faster_type_when_it_gains() -> None:
    slow = replace(on("t", 0, 1, 2, 3), gpu_type=SLOW)
    assert shapes(mixed(running(1, slow, profile=KNOWN)))[1] == Shape(4, 1, FAST)
    alike = profile(*rows(FAST, 1, 2, 4), *rows(SLOW, 1, 2, 4))
    stays = mixed(running(1, slow, profile=alike, spec_=spec(up_to=4)))
    assert shapes(stays)[1] == Shape(4, 1, SLOW)
    often = mixed(running(1, slow, profile=KNOWN, spec_=spec(up_to=4), restarts=80, restart_seconds=100.0))
    assert shapes(often)[1] == Shape(4, 1, SLOW), "the job has spent all its time on restarts"


def test_the_fast_type_goes_to_the_job_it_helps_most() -> None:
    alike = profile(*rows(FAST, 1), *rows(SLOW, 1, times=1.2))
    found = shapes(
        snapshot(node("a", 1, type=FAST), node("t", 1, type=SLOW), job(1, profile=alike), job(2, profile=KNOWN))
    )
    assert found == {1: Shape(1, 1, SLOW), 2: Shape(1, 1, FAST)}


def test_knowledge_of_one_type_carries_over_to_the_other() -> None:
    once = profile(*rows(FAST, 1), *rows(SLOW, 1, 2, 4, times=4.0))
    assert shapes(mixed(job(1, profile=once, spec_=spec(up_to=4), attempt=1)))[1] == Shape(4, 1, FAST)


def test_one_type_works_as_well_and_no_gpu_stays_free() -> None:
    jobs = [job(n, profile=profile(*rows("", 1, 2, 4)), attempt=1) for n in range(1, 6)]
    found = shapes(snapshot(node("a", 4), node("b", 4), *jobs))
    assert sum(shape.replicas for shape in found.values()) == 8
    assert shapes(snapshot(node("a", 4), node("b", 4), jobs[0])) == {1: Shape(8, 2)}
    ones = [replace(each, spec=spec(up_to=1)) for each in jobs]
    assert set(shapes(snapshot(node("a", 4), node("b", 4), *ones))) == {1, 2, 3, 4, 5}


def test_the_restart_factor() -> None:
    here = snapshot(node("a"), now=1000.0)
    assert restart_factor(job(1, at=900.0, restart_seconds=120.0), here) == 1.0
    assert restart_factor(job(1, restarts=2, restart_seconds=100.0), here) == pytest.approx(800 / 1100)
    assert restart_factor(job(1, restarts=2), here) == pytest.approx(940 / 1030)
    assert restart_factor(job(1, restarts=20, restart_seconds=100.0), here) == 0.0


def test_a_job_that_cannot_be_resized_gets_the_size_and_type_it_asked_for() -> None:
    here = mixed(
        job(1, spec_=black_box(3)),
        job(2, spec_=spec(level=Level.SIGNAL, gpus=2), profile=KNOWN),
        job(3, spec_=spec(gpus=2, rigid=True), profile=KNOWN),
        job(4, spec_=spec(gpu_type="t4", up_to=2), profile=KNOWN, attempt=1),
    )
    found = shapes(here)
    assert [found[n].replicas for n in (1, 2, 3)] == [3, 2, 2]
    assert found[4] == Shape(2, 1, SLOW)


def test_the_higher_priority_goes_first() -> None:
    first, second = (job(n, profile=KNOWN, spec_=spec(gpus=4, up_to=4, priority=n)) for n in (1, 2))
    assert shapes(snapshot(node("a", 4, type=FAST), first, second)) == {2: Shape(4)}


@st.composite
def labs(draw: st.DrawFn) -> Snapshot:
    kinds = {name: draw(st.sampled_from([FAST, SLOW])) for name in "abc"}
    nodes = [node(name, draw(st.integers(1, 5)), type=kind) for name, kind in kinds.items()]
    free = {each.id: list(range(len(each.devices))) for each in nodes}
    both = node("m", 4, type=FAST)  # with two types, one of which has less memory
    small = tuple(replace(each, type=SLOW, memory_mib=10_000) for each in both.devices[:2])
    nodes.append(replace(both, devices=(*small, *both.devices[2:])))
    jobs: list[Job] = []
    for number in range(1, draw(st.integers(1, 7)) + 1):
        least = draw(st.integers(1, 3))
        asked = st.sampled_from(
            [
                spec(gpus=least),
                spec(gpus=least, up_to=4),
                black_box(least),
                spec(gpu_type="a100"),
                spec(gpus=least, min_gpu_memory_mib=20_000),
            ]
        )
        what, seen = draw(asked), draw(st.sampled_from([Profile(), KNOWN, profile(*rows(SLOW, 1, 2, times=3.0))]))
        where = draw(st.sampled_from(sorted(free)))
        if draw(st.booleans()) and len(free[where]) >= what.min_gpus and what.gpu_type in kinds[where].casefold():
            taken = sorted(free[where].pop() for _ in range(what.min_gpus))
            since = draw(st.sampled_from([-1.0, -1000.0]))
            at = replace(on(where, *taken), gpu_type=kinds[where])
            jobs.append(running(number, at, spec_=what, profile=seen, since=since))
        else:
            jobs.append(job(number, spec_=what, profile=seen))
    return snapshot(*nodes, *jobs)


@given(labs())
@settings(max_examples=examples(60), deadline=None)
def test_in_any_lab_every_shape_has_one_type_and_fixed_jobs_keep_theirs(here: Snapshot) -> None:
    found = Sia().allocate(here)
    assert dict(found) == dict(Sia().allocate(here))
    placed = place(here, found)
    assert set(placed) == set(found)
    for name, placement in placed.items():
        each, shape = here.jobs[name], shape_of(found[name])
        types = {d.type for node_, ids in placement.parts for d in here.nodes[node_].devices if d.id in ids}
        assert len(types) == 1
        assert each.spec.gpu_type in types.pop().casefold()
        assert shape.replicas == placement.replicas >= each.spec.min_gpus
        if is_fixed(each, here):
            assert each.placement is not None
            assert shape == shape_on(each.placement, here)
        elif each.spec.level is not Level.SCRIPT:
            assert (shape.replicas, shape.nodes) == (each.spec.min_gpus, 1)
    assert all(name in found for name, each in here.jobs.items() if is_fixed(each, here))
