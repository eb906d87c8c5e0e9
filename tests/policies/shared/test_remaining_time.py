"""How long a gang still takes: from an oracle or a declared length, bounded by a time limit, otherwise unknown."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from gpq.core.goodput import estimates
from gpq.core.goodput import goodput as gp
from gpq.core.model.jobs import Job, Level
from gpq.core.model.placements import Shape
from gpq.core.model.profile import Noise, Profile, ProfileRow, Progress
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.policies.shared.remaining_time import Lengths
from tests.support.builders import DECLARED, PARAMS, black_box, job, node, on, running, snapshot, spec


@dataclass(frozen=True, slots=True)
class Told:
    """Scales linearly on one server and gains nothing from a second. Twice as fast on an A100, too large for an RTX."""

    remaining_steps: float

    def step_seconds(self, shape: Shape) -> float | None:
        if shape.gpu_type == "RTX":
            return None
        return (0.5 if shape.gpu_type == "A100" else 1.0) * shape.nodes / shape.replicas


def told(here: Snapshot, steps: float) -> Snapshot:
    return replace(here, oracles={name: Told(steps) for name in here.jobs})


def left(here: Snapshot) -> float | None:
    return Lengths(here).left(here.jobs[JobId(1)])


def test_an_oracle_answers_for_the_gang_in_place_or_packed() -> None:
    nodes = node("a", 4, type="T4"), node("b", 4, type="T4")
    assert left(told(snapshot(*nodes, job(1, spec_=spec(gpus=4))), 100.0)) == 25.0
    assert left(told(snapshot(*nodes, job(1, spec_=spec(gpus=8))), 100.0)) == 25.0
    spread = replace(on("a", 0, 1), parts=(*on("a", 0, 1).parts, *on("b", 0, 1).parts))
    assert left(told(snapshot(*nodes, running(1, spread, spec_=spec(gpus=4))), 100.0)) == 50.0


def test_with_several_types_the_fastest_that_can_run_it_counts() -> None:
    nodes = node("a", 4, type="T4"), node("b", 2, type="A100"), node("c", 4, type="RTX")
    assert left(told(snapshot(*nodes, job(1, spec_=spec(gpus=2))), 100.0)) == 25.0
    assert left(told(snapshot(*nodes, job(1, spec_=spec(gpus=4))), 100.0)) == 25.0
    assert left(told(snapshot(*nodes, job(1, spec_=spec(gpu_type="rtx"))), 100.0)) is None


def test_packed_means_the_fewest_servers_and_one_for_a_command() -> None:
    here = snapshot(node("a", 4), node("b", 2), node("c", 1), job(1))

    def pack(each: Job) -> tuple[Shape, ...]:
        return Lengths(here).pack(each)

    assert pack(job(1, spec_=spec(gpus=4))) == (Shape(4, 1),)
    assert pack(job(1, spec_=spec(gpus=5))) == (Shape(5, 2),)
    assert pack(job(1, spec_=spec(gpus=7))) == (Shape(7, 3),)
    assert pack(job(1, spec_=spec(gpus=8))) == ()
    assert pack(job(1, spec_=black_box(5))) == ()


def profile(fraction: float, measured: float = 0.0) -> Profile:
    rows = tuple(
        ProfileRow(1, k, m, float(gp.grad_time(PARAMS, m)), float(gp.step_time(PARAMS, 1, k, m)), 100.0)
        for k in (1, 2)
        for m in (16, 64, 128)
    )
    return Profile(
        declared=replace(DECLARED, adaptive=False),
        rows=rows,
        progress=Progress(1, 10, 0, 10, 10.0, fraction),
        atomic_batch=64,
        samples_per_second=measured,
    )


def test_a_declared_length_is_divided_by_the_measured_or_modelled_throughput() -> None:
    mine = running(1, on("a", 0), profile=profile(0.25, measured=50.0))
    assert left(snapshot(node("a"), mine)) == pytest.approx(0.75 * 100_000 / 50.0)
    uneven = replace(profile(0.25, measured=50.0), atomic_batch=22, noise=Noise(1.0, 1.0, 1000))
    mine = running(1, on("a", 0, 1, 2), spec_=spec(gpus=3), profile=uneven)
    assert left(snapshot(node("a"), mine)) == pytest.approx(0.75 * 100_000 / 50.0)
    waits = job(1, profile=profile(0.25))
    expected = 0.75 * 100_000 / (64 / float(gp.step_time(PARAMS, 1, 1, 64)))
    assert left(snapshot(node("a"), waits)) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("passes", [False, True])
def test_a_batch_that_grew_needs_more_examples_for_epochs_and_as_many_for_passes(passes: bool) -> None:
    known = replace(
        profile(0.25, measured=200.0),
        declared=replace(DECLARED, passes=passes),
        noise=Noise(1.0, 512.0, 1000),
        accum_steps=3,
    )
    # 75,000 examples are left. One of a batch of 256 is worth (512 + 64) / (512 + 256) of one of a batch of 64.
    mine = running(1, on("a", 0), profile=known)
    assert left(snapshot(node("a"), mine)) == pytest.approx(75_000 / 200.0 if passes else 75_000 / (200.0 * 0.75))
    choice = estimates.best_batch(job(1, profile=known), Shape(1))
    assert choice is not None
    assert choice.efficiency < 0.95
    speed = choice.throughput if passes else choice.goodput
    assert left(snapshot(node("a"), job(1, profile=known))) == pytest.approx(75_000 / speed)


def test_a_time_limit_bounds_it_and_without_any_limit_it_is_unknown() -> None:
    assert left(snapshot(node("a"), job(1))) is None
    limited = spec(time_limit=1000.0)
    assert left(snapshot(node("a"), job(1, spec_=limited, run_seconds=300.0))) == 700.0
    assert left(snapshot(node("a"), running(1, on("a", 0), spec_=limited, since=-100.0), now=50.0)) == 850.0
    assert left(snapshot(node("a"), running(1, on("a", 0), spec_=limited, since=-5000.0))) == 0.0
    assert left(told(snapshot(node("a", type="T4"), job(1, spec_=limited)), 20.0)) == 20.0


def test_a_job_that_does_not_run_has_to_start_first() -> None:
    here = told(snapshot(node("a", type="T4"), job(1), running(2, on("a", 0)), job(3, restart_seconds=7.0)), 100.0)
    to_end = {int(name): Lengths(here).to_end(each) for name, each in here.jobs.items()}
    assert to_end == {1: 130.0, 2: 100.0, 3: 107.0}
    assert Lengths(here).to_end(job(4, spec_=spec(level=Level.SIGNAL))) is None
