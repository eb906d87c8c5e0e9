"""Backfill: first come, first served. Later jobs fill gaps if that does not delay the first one."""

from __future__ import annotations

from gpq.policies.backfill import Backfill
from tests.policies.gang_cases import named, told
from tests.support.builders import black_box, job, node, on, running, snapshot, spec

HEAD = job(2, spec_=spec(gpus=4))  # does not fit until job 1 has ended
BUSY = running(1, on("a", 0, 1), spec_=black_box(2))


def test_a_gap_is_filled_by_a_job_that_ends_before_the_first_can_start() -> None:
    here = snapshot(node("a", 4), BUSY, HEAD, job(3, at=1.0, spec_=spec(gpus=2)))
    assert named(Backfill(), told(here, {1: 100.0, 2: 10.0, 3: 70.0})) == {1, 3}  # starts in 30 s, has 70 s to go
    assert named(Backfill(), told(here, {1: 100.0, 2: 10.0, 3: 71.0})) == {1}


def test_a_longer_job_starts_on_devices_that_the_first_does_not_need() -> None:
    here = snapshot(node("a", 4), node("b", 3), BUSY, HEAD, job(3, at=1.0, spec_=black_box(3)), job(4, at=2.0))
    head = job(2, spec_=black_box(4))
    here = snapshot(*here.nodes.values(), *{**here.jobs, head.id: head}.values())
    assert named(Backfill(), told(here, {1: 100.0, 2: 10.0})) == {1, 3}  # 3 on server b, because 4 would delay the head
    assert named(Backfill(), told(here, {1: 100.0, 2: 10.0, 4: 50.0})) == {1, 3, 4}


def test_a_time_limit_is_a_length() -> None:
    limited = running(1, on("a", 0, 1), spec_=black_box(2, time_limit=1100.0))  # since 1000 s
    here = snapshot(node("a", 4), limited, HEAD, job(3, at=1.0, spec_=spec(gpus=2, time_limit=500.0)))
    assert named(Backfill(), here) == {1}
    here = snapshot(node("a", 4), limited, HEAD, job(3, at=1.0, spec_=spec(gpus=2, time_limit=60.0)))
    assert named(Backfill(), here) == {1, 3}


def test_if_no_end_is_known_any_job_that_fits_fills_a_gap() -> None:
    here = snapshot(node("a", 4), BUSY, HEAD, job(3, at=1.0), job(4, at=2.0, spec_=spec(gpus=2)), job(5, at=3.0))
    assert named(Backfill(), here) == {1, 3, 5}


def test_a_job_that_starts_now_counts_among_those_that_will_end() -> None:
    here = snapshot(node("a", 4), job(1, spec_=spec(gpus=3)), HEAD, job(3, at=1.0), job(4, at=2.0))
    assert named(Backfill(), told(here, {1: 100.0, 3: 500.0, 4: 10.0})) == {1, 4}


def test_no_running_job_moves_and_one_that_never_fits_delays_nobody() -> None:
    mine = running(1, on("a", 0, 1), spec_=spec(gpus=1, up_to=2))
    here = snapshot(node("a", 4), mine, job(2, spec_=spec(gpus=9)), job(3, at=1.0, spec_=spec(gpus=2)))
    assert named(Backfill(), told(here, {1: 100.0, 3: 1e9})) == {1, 3}
    here = snapshot(node("a", 4), mine, job(2, spec_=spec(gpus=9)), job(3, at=1.0, spec_=spec(gpus=4)), job(4, at=2.0))
    assert named(Backfill(), told(here, {1: 100.0, 3: 10.0, 4: 1e9})) == {1}
