"""Tiresias: least attained service first, in two queues. Within each queue: first come, first served."""

from __future__ import annotations

from gpq.core.model.placements import Layout
from gpq.core.model.units import JobId, NodeId
from gpq.lab.policies.tiresias import DEMOTED_AT, Tiresias
from tests.policies.gang_cases import named
from tests.support.builders import black_box, job, node, on, running, snapshot, spec

TWO = spec(gpus=2)


def test_a_new_job_goes_before_one_that_used_sixteen_gpu_hours() -> None:
    def served(seconds: float) -> set[int]:
        return named(Tiresias(), snapshot(node("a", 2), job(1, spec_=TWO, service=seconds), job(2, at=9.0, spec_=TWO)))

    assert served(DEMOTED_AT - 1) == {1}
    assert served(DEMOTED_AT) == {2}


def test_within_a_queue_the_earlier_job_goes_first_not_the_least_served() -> None:
    jobs = job(1, at=5.0, spec_=TWO), job(2, at=1.0, spec_=TWO, service=3600.0)
    assert named(Tiresias(), snapshot(node("a", 2), *jobs)) == {2}
    low = job(3, spec_=TWO, service=5e5), job(4, at=1.0, spec_=TWO, service=6e4)
    assert named(Tiresias(), snapshot(node("a", 2), *low)) == {3}


def test_a_running_job_is_demoted_as_it_runs_and_preempted_if_it_may_be_moved() -> None:
    def alone(since: float, **more: object) -> set[int]:
        mine = running(1, on("a", 0, 1), since=since, **{"spec_": TWO, **more})
        return named(Tiresias(), snapshot(node("a", 2), mine, job(2, spec_=TWO)))

    assert alone(-DEMOTED_AT / 2 + 1) == {1}
    assert alone(-DEMOTED_AT / 2) == {2}
    assert alone(-DEMOTED_AT, spec_=black_box(2)) == {1}


def test_jobs_that_do_not_fit_are_skipped_and_priority_outranks_the_queues() -> None:
    jobs = job(1, spec_=spec(gpus=3)), job(2, at=1.0), job(3, at=2.0, spec_=spec(priority=1), service=1e6)
    assert named(Tiresias(), snapshot(node("a", 3), *jobs)) == {2, 3}


def test_gangs_go_to_the_emptiest_servers() -> None:
    here = snapshot(node("a", 2), node("b", 4), node("c", 3), job(1, spec_=spec(gpus=2)))
    assert Tiresias().allocate(here) == {JobId(1): Layout(((NodeId("b"), 2),))}
