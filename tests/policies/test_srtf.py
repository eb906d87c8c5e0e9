"""Shortest remaining time first: the job that would end soonest goes first."""

from __future__ import annotations

from gpq.policies.srtf import Srtf
from tests.policies.gang_cases import named, told
from tests.support.builders import black_box, job, node, on, running, snapshot, spec

TWO = spec(gpus=2)


def test_the_shortest_goes_first_even_if_it_came_later() -> None:
    here = snapshot(node("a", 2), job(1, spec_=TWO), job(2, at=9.0, spec_=TWO))
    assert named(Srtf(), told(here, {1: 100.0, 2: 99.0})) == {2}
    assert named(Srtf(), told(here, {1: 100.0, 2: 100.0})) == {1}


def test_a_running_job_makes_way_for_one_that_ends_sooner_including_its_start() -> None:
    here = snapshot(node("a", 2), running(1, on("a", 0, 1), spec_=TWO), job(2, spec_=TWO))
    assert named(Srtf(), told(here, {1: 100.0, 2: 71.0})) == {1}
    assert named(Srtf(), told(here, {1: 100.0, 2: 69.0})) == {2}
    fixed = snapshot(node("a", 2), running(1, on("a", 0, 1), spec_=black_box(2)), job(2, spec_=TWO))
    assert named(Srtf(), told(fixed, {1: 100.0, 2: 1.0})) == {1}


def test_unknown_lengths_come_last_in_the_order_of_submission_but_after_priority() -> None:
    here = snapshot(node("a", 2), job(1, at=5.0, spec_=TWO), job(2, spec_=TWO), job(3, at=9.0, spec_=TWO))
    assert named(Srtf(), told(here, {3: 1e9})) == {3}
    assert named(Srtf(), here) == {2}
    urgent = snapshot(node("a", 2), job(1, spec_=TWO), job(2, spec_=spec(gpus=2, priority=1)))
    assert named(Srtf(), told(urgent, {1: 1.0})) == {2}


def test_a_short_job_starts_although_a_large_one_before_it_does_not_fit() -> None:
    here = snapshot(node("a", 2), job(1, spec_=spec(gpus=3)), job(2))
    assert named(Srtf(), told(here, {1: 1.0, 2: 50.0})) == {2}
