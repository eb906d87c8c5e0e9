"""SLAQ: GPUs go to the jobs whose loss falls fastest. New jobs go before those that have nearly converged."""

from __future__ import annotations

from dataclasses import replace

from gpq.core.model.policy import shape_of
from gpq.core.model.profile import LossPoint, Profile, ProfileRow
from gpq.core.model.snapshot import Snapshot
from gpq.lab.policies.greedy import Slaq
from tests.support.builders import DECLARED, job, node, on, running, snapshot

ROWS = tuple(
    ProfileRow(1, k, m, 0.01 * m, 0.01 * m + 0.001 * (k > 1), 100.0) for k in (1, 2, 4) for m in (8, 16, 32, 64)
)


def losses(b0: float, steps: int, scale: float = 1.0) -> tuple[LossPoint, ...]:
    return tuple(LossPoint(float(k), scale / (b0 * k + 0.5)) for k in range(0, steps + 1, max(steps // 40, 1)))


def profile(b0: float, steps: int, scale: float = 1.0) -> Profile:
    return Profile(DECLARED, ROWS, losses=losses(b0, steps, scale))


def counts(here: Snapshot) -> dict[int, int]:
    return {int(name): shape_of(allotment).replicas for name, allotment in Slaq().allocate(here).items()}


def test_a_job_whose_loss_still_falls_gets_more_than_a_converged_one() -> None:
    here = snapshot(
        node("a", 8),
        running(1, on("a", 0), profile=profile(0.01, 40_000)),
        running(2, on("a", 1), profile=profile(0.01, 400)),
    )
    found = counts(here)
    assert found[1] + found[2] == 8
    assert found[2] > 2 * found[1]


def test_the_unit_of_a_loss_does_not_matter() -> None:
    small, large = profile(0.01, 800), profile(0.01, 800, scale=1000.0)
    here = snapshot(node("a", 8), running(1, on("a", 0), profile=small), running(2, on("a", 1), profile=large))
    assert counts(here) == {1: 4, 2: 4}


def test_new_jobs_come_first_when_there_is_not_enough_for_all() -> None:
    old = running(1, on("a", 0), profile=profile(0.01, 40_000))
    assert counts(snapshot(node("a", 1), old, job(2, at=5.0, profile=Profile(DECLARED)))) == {2: 1}
    urgent = replace(old, spec=old.spec.having(priority=1))
    assert counts(snapshot(node("a", 1), urgent, job(2, at=5.0, profile=Profile(DECLARED)))) == {1: 1}
