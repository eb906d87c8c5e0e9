"""Themis: the job with the worst finish-time fairness goes first."""

from __future__ import annotations

import pytest

from gpq.lab.policies.themis import Themis, rho
from tests.policies.gang_cases import named, told
from tests.support.builders import job, node, on, running, snapshot, spec

TWO = spec(gpus=2)


def test_rho_is_the_time_to_the_end_relative_to_that_on_a_fair_share() -> None:
    mine = job(1, spec_=TWO, service=200.0)  # had its gang for 100 s, waited for 300
    assert rho(mine, 400.0, 100.0, share=4.0) == pytest.approx((400 + 100) / 200)
    assert rho(mine, 400.0, 100.0, share=1.0) == pytest.approx(
        (400 + 100) / 400
    )  # alone, it would have needed half the time
    assert rho(mine, 400.0, None, share=4.0) == pytest.approx((400 + 100) / 200)  # as much to come as it has done
    assert rho(job(2, spec_=TWO), 400.0, 100.0, share=4.0) == float("inf")


def test_the_job_treated_worst_goes_first() -> None:
    jobs = job(1, spec_=TWO, service=1000.0), job(2, spec_=TWO, service=400.0)
    here = snapshot(node("a", 2), *jobs, now=1000.0)
    assert named(Themis(), here) == {2}
    assert named(Themis(), told(here, {1: 10.0, 2: 5000.0})) == {1}


def test_a_job_that_never_started_goes_first_and_replaces_a_running_one() -> None:
    mine = running(1, on("a", 0, 1), spec_=TWO)
    here = snapshot(node("a", 2), mine, job(2, at=-5.0, spec_=TWO), job(3, at=-9.0, spec_=TWO))
    assert named(Themis(), here) == {3}


def test_a_job_runs_until_another_is_treated_worse() -> None:
    def goes_on(waited: float) -> set[int]:
        mine = running(1, on("a", 0, 1), at=-1000.0 - waited, spec_=TWO)  # has run for 1000 s
        other = job(2, at=-2000.0, spec_=TWO, service=3900.0)  # 50 s of its 2000 without GPUs
        return named(Themis(), snapshot(node("a", 2), mine, other))

    assert goes_on(100.0) == {1}
    assert goes_on(10.0) == {2}


def test_a_lease_is_not_taken_back_before_it_ends() -> None:
    def named_at(since: float) -> set[int]:
        mine = running(1, on("a", 0, 1), since=since, spec_=TWO)
        return named(Themis(), snapshot(node("a", 2), mine, job(2, at=-9.0, spec_=TWO)))

    assert named_at(-800.0) == {1}
    assert named_at(-1000.0) == {2}
