"""The figures of a run, compared with sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.lab.simulator.outcomes import JobOutcome, Outcome, means, members, summary


def ended(name: str, begin: float, end: float, *, rho: float | None = 1.0, restarts: int = 0) -> JobOutcome:
    return JobOutcome(name, "app", "ana", begin, begin, end, restarts, 3600.0, rho, ((begin, 1), (end, 0)))


def run(policy: str, *jobs: JobOutcome, seconds: tuple[float, ...] = (0.001, 0.004, 0.002)) -> Outcome:
    return Outcome(policy, "w", 0, 4, jobs, seconds, 1.5, 2.0)


def test_a_summary_matches_its_columns() -> None:
    row = summary(
        run("p", ended("a", 10, 110, rho=0.5), ended("b", 20, 220, rho=2.0, restarts=3), ended("c", 0, 300, rho=None))
    )
    assert (row.jobs, row.avg_jct, row.p50_jct, row.makespan) == (3, 200.0, 200.0, 300.0)
    assert row.p99_jct == pytest.approx(298.0)  # linear between 200 and 300
    assert (row.rho_max, row.rho_above_1) == (2.0, 0.5)
    assert row.rho_p95 == pytest.approx(0.5 + 0.95 * 1.5)
    assert (row.restarts_per_job, row.gpu_hours, row.round_ms_median, row.round_ms_max) == (1.0, 3.0, 2.0, 4.0)


def test_unknown_fairness_is_none_and_not_zero() -> None:
    row = summary(run("p", ended("a", 0, 10, rho=None), seconds=()))
    assert (row.rho_p95, row.rho_max, row.rho_above_1, row.round_ms_max) == (None, None, None, 0.0)


def test_means_are_by_policy_in_order_and_keep_the_worst() -> None:
    rows = [
        summary(run("b", ended("a", 0, 100, rho=1.0))),
        summary(run("a", ended("a", 0, 50))),
        summary(run("b", ended("a", 0, 300, rho=3.0), seconds=(0.05,))),
    ]
    first, second = means(rows)
    assert (first.policy, second.policy) == ("b", "a")
    assert (first.avg_jct, first.rho_p95, first.rho_max, first.round_ms_max) == (200.0, 2.0, 3.0, 50.0)
    assert first.jobs == 2


def test_members_have_the_figures_of_their_own_jobs() -> None:
    a, b = ended("a", 0, 1800, rho=0.5), replace(ended("b", 0, 900, rho=3.0), lies=("speed",))
    ana, bob = members(run("p", replace(b, user="bob"), a, ended("c", 900, 4500, rho=None)))
    assert (ana.member, ana.jobs, ana.lies, ana.avg_jct, ana.rho_max) == ("ana", 2, (), 2700.0, 0.5)
    assert (bob.member, bob.jobs, bob.lies, bob.avg_jct, bob.rho_max) == ("bob", 1, ("speed",), 900.0, 3.0)
    assert (ana.gpu_hours, bob.gpu_hours) == (2.0, 1.0)
