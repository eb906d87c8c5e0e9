"""Pollux: the fairest goodput by a seeded search. Jobs grow by doubling, on named servers of one type."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from gpq.core.model.jobs import Job
from gpq.core.model.placements import Layout, Placement, Shape
from gpq.core.model.policy import shape_of
from gpq.core.model.profile import Noise, Profile, ProfileRow
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.placement import place
from gpq.lab.policies.pollux import Pollux, restart_factor
from tests.support.builders import DECLARED, black_box, job, node, on, running, snapshot, spec
from tests.support.pollux_objective import objective


def profile(most: int = 4, sync: float = 0.001, noise: float = 1e5) -> Profile:
    """The profile of a job seen on 1, 2, 4, ... `most` GPUs of one server. A step takes `sync` seconds more on several
    servers."""
    shapes = [k for k in (1, 2, 4, 8, 16) if k <= most]
    rows = tuple(
        ProfileRow(1, k, m, 0.02 + 0.001 * m, 0.02 + 0.001 * m + sync * (k > 1), 100.0)
        for k in shapes
        for m in (16, 64, 128)
    )
    return Profile(declared=DECLARED, rows=rows, noise=Noise(1.0, noise, 10_000))


def counts(here: Snapshot) -> dict[int, int]:
    return {int(name): shape_of(allotment).replicas for name, allotment in Pollux().allocate(here).items()}


def busy() -> Snapshot:
    jobs = [running(i, on("a", i - 1), profile=profile(sync=0.02 * i)) for i in range(1, 5)]
    waiting = [job(i, at=-60.0 * i, profile=profile(8)) for i in range(5, 9)]
    return snapshot(node("a"), node("b"), node("c"), *jobs, *waiting, seed=3, now=100.0)


def test_gpus_go_to_jobs_that_they_speed_up() -> None:
    scales, stuck = profile(4), profile(4, sync=5.0, noise=1.0)
    here = snapshot(
        node("a", 8), *(running(i, on("a", i - 1), at=-7200.0, profile=known) for i, known in ((1, scales), (2, stuck)))
    )
    assert counts(here) == {1: 7, 2: 1}


def test_a_job_at_most_doubles_and_starts_with_one() -> None:
    assert counts(snapshot(node("a", 8), job(1, at=-60.0, profile=Profile(DECLARED)))) == {1: 1}
    assert counts(snapshot(node("a", 8), job(1, at=-60.0, profile=profile(2)))) == {1: 4}
    assert counts(snapshot(node("a", 8), job(1, at=-60.0, spec_=spec(up_to=3), profile=profile(4)))) == {1: 3}


def test_every_job_gets_a_gpu_before_any_gets_many() -> None:
    found = counts(busy())
    assert sorted(found) == list(range(1, 9))
    assert sum(found.values()) == 12


def test_the_answer_is_the_same_for_the_same_seed_in_any_process() -> None:
    code = (
        "from tests.policies.pollux.test_pollux import *; "
        "print(sorted((int(j), a.parts) for j, a in Pollux().allocate(busy()).items()))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    here = busy()
    turned = replace(here, jobs=dict(reversed(here.jobs.items())), nodes=dict(reversed(here.nodes.items())))
    answers.add(f"{sorted((int(j), a.parts) for j, a in Pollux().allocate(turned).items() if isinstance(a, Layout))}\n")
    assert len(answers) == 1


def test_the_plan_is_never_worse_than_no_change() -> None:
    here = busy()
    stay = {
        name: Layout(((node, len(ids)),))
        for name, job in here.jobs.items()
        if job.placement
        for node, ids in job.placement.parts
    }
    assert objective(here, Pollux().allocate(here)) > objective(here, stay) > 0


def test_the_objective_is_the_harmonic_mean_of_speedups_after_restart_costs() -> None:
    young = job(2, at=0.0, profile=Profile(DECLARED))
    here = snapshot(node("a", 4), node("b", 4), running(1, on("a", 0, 1), profile=Profile(DECLARED)), young, now=90.0)
    # The fair share is 4 of 8 GPUs, and a replica counts 2 servers / 8 GPUs. The start costs (90 - 0) / (90 + 30).
    kept, started = 2 / 4 * 2 / 8, 1 / 4 * 2 / 8 * 90 / 120
    plan = {JobId(1): Shape(2), JobId(2): Layout(((node("b").id, 1),))}
    assert objective(here, plan) == pytest.approx(2 / (1 / (kept + 1e-3) + 1 / (started + 1e-3)))
    assert objective(here, {JobId(1): Shape(2)}) == pytest.approx(2 / (1 / (kept + 1e-3) + 1 / 1e-3))
    assert restart_factor(replace(young, restarts=5), 90.0, here.config) == 0.0


def test_the_next_search_starts_from_the_last_front_mapped_by_job() -> None:
    policy, here = Pollux(), busy()
    first = policy.allocate(here)
    moved = [_as_placed(here.jobs[name], place(here, first)[name]) for name in first]
    # Services change, so the order of the rows changes. Two jobs have ended and one is new.
    later = snapshot(
        *here.nodes.values(),
        *(replace(job, service=float(job.id % 3) * 1e5) for job in moved if job.id not in (2, 7)),
        job(9, at=100.0, profile=profile(1)),
        now=160.0,
        seed=3,
    )
    second = policy.allocate(later)
    assert set(second) == {1, 3, 4, 5, 6, 8, 9}
    assert objective(later, second) >= objective(later, Pollux().allocate(later)) * 0.98


def _as_placed(job: Job, placement: Placement) -> Job:
    return running(int(job.id), placement, at=job.submitted_at, profile=job.profile)


def test_commands_and_rigid_scripts_get_their_request_on_one_type() -> None:
    rigid = spec(gpus=6, rigid=True)
    here = snapshot(
        node("a", 4, type="A100"),
        node("b", 4, type="A100"),
        node("c", 4, type="T4"),
        job(1, at=-90.0, spec_=black_box(3)),
        job(2, at=-80.0, spec_=rigid),
        job(3, at=-70.0, spec_=spec(gpu_type="t4"), profile=profile(2)),
        now=0.0,
    )
    plan = Pollux().allocate(here)
    placed = place(here, plan)
    assert set(placed) == set(plan)
    assert {name: shape_of(allotment).replicas for name, allotment in plan.items()}[JobId(2)] == 6
    for name, allotment in plan.items():
        kinds = {"T4" if where == "c" else "A100" for where, _ in placed[name].parts}
        assert kinds == {allotment.gpu_type}
    assert len(placed[JobId(1)].parts) == 1


def test_immovable_jobs_stay_where_they_are() -> None:
    here = snapshot(node("a", 4), running(1, on("a", 1, 2), spec_=black_box(2)), job(2, at=-60.0, profile=profile(4)))
    plan = Pollux().allocate(here)
    assert plan[JobId(1)] == Shape(2)
    assert place(here, plan)[JobId(1)] == on("a", 1, 2)
    assert shape_of(plan[JobId(2)]).replicas == 2
