"""What gpq learns about a job on a GPU type it never used: from its own times, from other jobs, from the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.goodput import estimates
from gpq.core.model.jobs import Job
from gpq.core.model.placements import Shape
from gpq.core.model.profile import Prior, Profile, ProfileRow
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.policies.shared.type_transfer import SCALED_WEIGHT, inform, ratios
from tests.support.builders import DECLARED, job, node, snapshot


def row(
    gpu_type: str, step: float, *, replicas: int = 1, nodes: int = 1, batch: int = 64, weight: float = 50.0
) -> ProfileRow:
    return ProfileRow(nodes, replicas, batch, step if replicas == 1 else 0.8 * step, step, weight, gpu_type)


def seen(number: int, *rows: ProfileRow, batch: int = 64) -> Job:
    return job(number, profile=Profile(declared=replace(DECLARED, batch_size=batch), rows=rows))


def mixed(*jobs: Job) -> Snapshot:
    return snapshot(node("a", type="A100"), node("t", type="T4"), *jobs)


def added(here: Snapshot, number: int = 1) -> tuple[ProfileRow, ...]:
    name = JobId(number)
    return inform(here).jobs[name].profile.basis[len(here.jobs[name].profile.rows) :]


def test_one_type_or_nothing_to_add_returns_the_same_snapshot() -> None:
    alone = snapshot(node("a", type="A100"), seen(1, row("A100", 0.1)))
    assert inform(alone) is alone
    complete = mixed(seen(1, row("A100", 0.1), row("T4", 0.4)), job(2))
    assert inform(complete) is complete


def test_one_replica_on_both_types_scales_the_times_of_several_replicas() -> None:
    here = mixed(seen(1, row("T4", 0.4), row("T4", 0.6, replicas=4), row("A100", 0.1)))
    assert added(here) == (
        ProfileRow(1, 4, 64, pytest.approx(0.12), pytest.approx(0.15), SCALED_WEIGHT, "A100"),  # type: ignore[arg-type]
    )
    known = inform(here).jobs[JobId(1)]
    assert known.profile.basis[:3] == here.jobs[JobId(1)].profile.rows
    fast, slow = (estimates.best_batch(known, Shape(4, 1, name)) for name in ("A100", "T4"))
    assert fast is not None
    assert slow is not None
    assert 3.0 < fast.throughput / slow.throughput < 5.0


def test_an_unseen_type_has_the_ratio_of_equal_declarations_then_of_all_jobs_then_one() -> None:
    me = seen(1, row("T4", 0.4, weight=0.5))
    same = [seen(n, row("T4", 1.0), row("A100", time)) for n, time in ((2, 0.2), (3, 0.25), (4, 0.5))]
    other = seen(5, row("T4", 1.0), row("A100", 0.9), batch=128)
    assert added(mixed(me))[0].step_time == pytest.approx(0.4)
    assert added(mixed(me, other))[0].step_time == pytest.approx(0.36)
    found = added(mixed(me, *same, other))
    assert found[0].step_time == pytest.approx(0.1)
    assert found[0].weight == 0.5, "the old measurement weighs no more than before"
    prior = replace(mixed(me), priors={"train.py": Prior(rows=(row("T4", 1.0), row("A100", 0.5)))})
    assert added(prior)[0].step_time == pytest.approx(0.2)


def test_ratios_take_comparable_batches_and_one_replica_first() -> None:
    assert ratios((row("T4", 0.4, batch=64), row("A100", 0.1, batch=64)))["T4", "A100"] == pytest.approx(4.0)
    assert ratios((row("T4", 0.4, batch=64), row("A100", 0.4, batch=256))) == {}
    near = ratios((row("T4", 0.4, batch=64), row("A100", 0.12, batch=80)))
    assert near["A100", "T4"] == pytest.approx(0.12 / 80 / (0.4 / 64))
    several = ratios((row("T4", 0.4), row("A100", 0.2, replicas=2), row("A100", 0.1)))
    assert several["T4", "A100"] == pytest.approx(4.0)
    gradients = ratios((row("T4", 0.4), row("A100", 0.2, replicas=2)))
    assert gradients["T4", "A100"] == pytest.approx(0.4 / 0.16)


def test_no_rows_are_invented_outside_the_limits_of_the_type() -> None:
    small = replace(DECLARED, atomic_by_type=(("T4", 1, 32),))
    rows = (row("A100", 0.1, batch=32), row("A100", 0.3, batch=128))
    here = mixed(job(1, profile=Profile(declared=small, rows=rows)))
    assert [each.atomic_batch for each in added(here)] == [32]
    here = mixed(job(1, profile=Profile(declared=small, rows=rows[1:])))
    assert [each.atomic_batch for each in added(here)] == [128], "a batch that is too large says more than none"
