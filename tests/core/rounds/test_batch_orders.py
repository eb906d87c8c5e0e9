"""Batch orders: only for a real gain, in steps, and never the same one twice."""

from __future__ import annotations

from dataclasses import replace

from gpq.core.model.events import Profiled
from gpq.core.model.jobs import Job, StopReason
from gpq.core.model.placements import BatchOrder
from gpq.core.model.profile import Noise, Profile, ProfileRow
from gpq.core.model.snapshot import Config
from gpq.core.model.units import JobId
from gpq.core.rounds.batch_orders import first_order, retunes
from gpq.core.state.job_events import apply
from tests.support.builders import DECLARED, on, running

CONFIG = Config()
# Half of a step at 64 does not depend on the batch, and the noise is large, so larger batches help.
ROWS = tuple(ProfileRow(1, 1, m, 0.064 + 0.001 * m, 0.064 + 0.001 * m, 100.0) for m in (64, 96))


def tunable(noise: float = 5000.0, atomic: int = 64) -> Job:
    profile = Profile(DECLARED, ROWS, Noise(1.0, noise, 10_000), atomic_batch=atomic, order_seq=1)
    return running(1, on("a", 0), profile=profile, order=BatchOrder(1, atomic, 0))


def retune(job: Job, config: Config) -> BatchOrder | None:
    return retunes([job], config).get(job.id)


def test_a_larger_batch_is_ordered_if_it_helps_and_at_most_doubles() -> None:
    order = retune(tunable(), CONFIG)
    assert order == BatchOrder(2, 128, 0)


def test_without_a_gain_the_batch_stays() -> None:
    assert retune(tunable(noise=1.0), CONFIG) is None
    assert retune(replace(tunable(), profile=replace(tunable().profile, noise=None)), CONFIG) is None


def test_an_order_that_has_not_taken_effect_is_waited_for() -> None:
    waiting = replace(tunable(), order=BatchOrder(2, 128, 0))
    assert retune(waiting, CONFIG) is None


def test_an_order_limited_by_the_script_is_not_repeated_and_blocks_no_other() -> None:
    ordered = replace(tunable(), order=BatchOrder(2, 128, 0))
    bounded = apply(ordered, Profiled(1.0, ordered.id, 1, 10, retuned=BatchOrder(2, 100, 0)))
    assert bounded.profile.order_seq == 2
    again = retune(bounded, CONFIG)
    assert again is None or (again.atomic_batch, again.accum_steps) != (128, 0)


def test_a_job_that_is_being_stopped_is_left_alone() -> None:
    assert retune(replace(tunable(), stop=StopReason.RESIZE), CONFIG) is None


def test_many_jobs_get_the_orders_that_each_would_get_alone() -> None:
    jobs = [replace(tunable(noise), id=JobId(n)) for n, noise in enumerate((5000.0, 1.0, 300.0, 40_000.0))]
    alone = {job.id: order for job in jobs if (order := retune(job, CONFIG)) is not None}
    assert 0 < len(alone) < len(jobs)
    assert retunes(jobs, CONFIG) == alone


def test_a_new_attempt_starts_with_the_best_batch_of_its_shape() -> None:
    known = tunable()
    order = first_order(known, on("a", 0))
    assert order.seq == 2
    assert order.atomic_batch > 64
    fresh = replace(known, profile=Profile())
    assert first_order(fresh, on("a", 0)) == BatchOrder(2)
