"""First come, first served: no job overtakes another and no job moves."""

from __future__ import annotations

from gpq.core.model.placements import Shape
from gpq.core.model.units import JobId
from gpq.policies.fifo import Fifo
from tests.policies.gang_cases import named
from tests.support.builders import black_box, job, node, on, running, snapshot, spec


def test_a_job_that_does_not_fit_stops_the_queue() -> None:
    here = snapshot(node("a", 4), job(1, spec_=spec(gpus=3)), job(2, at=1.0, spec_=spec(gpus=2)), job(3, at=2.0))
    assert named(Fifo(), here) == {1}


def test_priority_then_submission_decides() -> None:
    two = spec(gpus=2)
    jobs = job(1, at=5.0, spec_=two), job(2, at=1.0, spec_=two), job(3, at=9.0, spec_=spec(gpus=2, priority=1))
    assert named(Fifo(), snapshot(node("a", 4), *jobs)) == {2, 3}


def test_a_job_that_fits_nowhere_or_may_not_start_blocks_nobody() -> None:
    jobs = job(1, spec_=black_box(5)), job(2, not_before=60.0, spec_=spec(gpus=4)), job(3, at=1.0)
    assert named(Fifo(), snapshot(node("a", 4), node("b", 4), *jobs)) == {3}


def test_running_jobs_of_any_size_keep_their_gpus() -> None:
    here = snapshot(node("a", 4), running(1, on("a", 0, 1, 2), service=1e9), job(2, spec_=spec(priority=9, gpus=2)))
    assert Fifo().allocate(here) == {JobId(1): Shape(3)}
