"""A job's value on a shape looks ahead if earlier jobs have shown how the noise scale grows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpq.core.goodput.batches import GoodputTable
from gpq.core.goodput.priors import program_of
from gpq.core.model.profile import NoisePoint, Prior, Progress
from gpq.policies.goodput.candidates import Candidate, field_of
from gpq.policies.goodput.forecast import Forecast
from gpq.policies.goodput.policy import Goodput
from tests.policies.goodput.test_goodput import GOOD, profile
from tests.support.builders import job, node, snapshot

GROWS = Prior(noise_curve=(NoisePoint(0.0, 20.0), NoisePoint(200.0, 5000.0)))


def beginner(number: int = 1, growth: float = 20.0) -> Candidate:
    """Its noise scale is still small, so larger batches gain little yet."""
    known = profile(GOOD)
    assert known.noise is not None
    young = replace(known, noise=replace(known.noise, var=growth), progress=Progress(0, 10, 0, 0, 0.0, 0.0))
    [found] = field_of(snapshot(node("a", 8), job(number, profile=young))).candidates
    return found


def table(outlook: Forecast, candidate: Candidate, prior: Prior | None, share: float) -> GoodputTable | None:
    return outlook.tables([(candidate, prior, share)])[candidate.job.id]


def test_many_gpus_are_worth_more_if_the_noise_scale_will_grow() -> None:
    here = beginner()
    now, coming = table(Forecast(), here, None, 4.0), table(Forecast(), here, GROWS, 4.0)
    assert now is not None
    assert coming is not None
    one, all_ = 0, len(here.options.shapes) - 1
    assert coming.goodput[all_] / coming.goodput[one] > 1.5 * now.goodput[all_] / now.goodput[one]
    assert np.array_equal(coming.replicas, now.replicas)


def test_without_a_curve_or_progress_the_present_value_counts() -> None:
    here = beginner()
    blind = replace(here, job=replace(here.job, profile=replace(here.job.profile, progress=None)))
    outlook = Forecast()
    plain = table(outlook, here, None, 4.0)
    assert table(outlook, here, Prior(), 4.0) is plain
    assert table(outlook, blind, GROWS, 4.0) is plain


def test_an_unchanged_job_keeps_its_table_until_it_has_gone() -> None:
    here, outlook = beginner(), Forecast()
    first = table(outlook, here, GROWS, 4.0)
    assert table(outlook, here, GROWS, 4.0) is first
    outlook.forget_others({})
    assert table(outlook, here, GROWS, 4.0) is not first


def test_the_policy_looks_ahead() -> None:
    young, old = beginner(1).job, job(2, profile=profile(GOOD))
    here = snapshot(node("a", 8), young, old)
    informed = replace(here, priors={program_of(young): GROWS})
    assert Goodput().allocate(informed)[young.id].replicas > Goodput().allocate(here)[young.id].replicas
