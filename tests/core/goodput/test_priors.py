"""What a job measured helps the next one of the same program, and never contradicts that one's own measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.goodput import priors
from gpq.core.goodput.estimates import best_batch, curve
from gpq.core.goodput.priors import absorb, inform, most_replicas, program_of, remember, with_times
from gpq.core.model import events as facts
from gpq.core.model.jobs import Job, Level
from gpq.core.model.placements import Exit, Shape
from gpq.core.model.profile import Noise, NoisePoint, Prior, Profile, ProfileRow
from gpq.core.model.units import JobId, NodeId
from gpq.core.state.apply_events import fold
from tests.support.builders import DECLARED, black_box, job, node, on, running, snapshot, spec


def row(replicas: int, step: float, weight: float = 50.0, batch: int = 32, gpu_type: str = "A100") -> ProfileRow:
    return ProfileRow(1, replicas, batch, step / 2, step, weight, gpu_type)


def trained(number: int, *rows: ProfileRow, noise: Noise | None = None, **more: object) -> Job:
    return job(number, profile=Profile(declared=DECLARED, rows=rows, early_noise=noise), spec_=spec(**more))


def test_a_program_is_a_users_script_of_one_size_and_batch() -> None:
    one = trained(1, cwd="/home/ana", argv=("./train.py", "--lr", "0.1"))
    same = trained(2, cwd="/tmp", argv=("/home/ana/x/../train.py", "--lr", "0.2"))
    assert program_of(one) == program_of(same) != ""
    bigger = replace(one, profile=Profile(declared=replace(DECLARED, parameters=7)))
    other_batch = replace(one, profile=Profile(declared=replace(DECLARED, batch_size=128)))
    of_ben = trained(3, user="ben", cwd="/home/ana", argv=("train.py",))
    assert len({program_of(each) for each in (one, bigger, other_batch, of_ben)}) == 4


def test_an_undeclared_script_has_no_program_and_borrows_nothing() -> None:
    fresh = job(1)
    prior = Prior(rows=(row(1, 0.2),), noise=Noise(1.0, 8.0, 640))
    assert program_of(fresh) == program_of(job(2, spec_=black_box())) == ""
    assert program_of(job(3, spec_=spec(level=Level.SIGNAL), profile=Profile(declared=DECLARED))) == ""
    assert inform(fresh, prior) is fresh


def test_rows_of_a_configuration_are_averaged_and_new_ones_count() -> None:
    prior = absorb(Prior(), trained(1, row(1, 0.2), row(2, 0.3, weight=400.0)))
    prior = absorb(prior, trained(2, row(2, 0.5, weight=500.0), row(4, 0.9)))
    assert [(each.replicas, each.weight) for each in prior.rows] == [(1, 50.0), (2, 100.0), (4, 50.0)]
    assert prior.rows[1].step_time == pytest.approx(0.4), "a long job's weight does not outvote the newest"
    assert prior.max_replicas == 4


def test_a_gradient_time_that_was_not_measured_does_not_count_as_none() -> None:
    unseen = replace(row(1, 0.4), grad_time=0.0)
    prior = absorb(absorb(Prior(), trained(1, row(1, 0.2))), trained(2, unseen))
    [kept] = prior.rows
    assert (kept.grad_time, kept.step_time) == (0.1, pytest.approx(0.3))


def test_a_prior_keeps_its_best_rows_only() -> None:
    light = [row(1, 0.2, weight=1.0, batch=batch) for batch in range(1, 60)]
    heavy = [row(1, 0.2, weight=9.0, batch=batch) for batch in range(100, 160)]
    prior = absorb(absorb(Prior(), trained(1, *light)), trained(2, *heavy))
    assert len(prior.rows) == priors.MAX_ROWS
    assert {each.atomic_batch for each in heavy} <= {each.atomic_batch for each in prior.rows}


def test_the_noise_scale_at_the_start_is_averaged_over_jobs_and_a_biased_one_gives_way() -> None:
    first, second = Noise(1.0, 10.0, 1000), Noise(3.0, 30.0, 1000)
    prior = absorb(absorb(Prior(), trained(1, noise=first)), trained(2, noise=second))
    assert prior.noise == Noise(2.0, 20.0, 2000)
    for _ in range(20):
        prior = absorb(prior, trained(3, noise=second))
    assert prior.noise is not None
    assert prior.noise.sqr == pytest.approx(3.0, rel=0.01), "a memory that ends"
    assert absorb(prior, trained(4, noise=replace(first, biased=True))).noise == prior.noise
    assert absorb(prior, trained(4)).noise == prior.noise


def test_a_new_job_has_a_model_from_its_first_moment_and_its_own_rows_win() -> None:
    rows = [row(1, 0.10), row(1, 0.16, batch=64), row(2, 0.12), row(2, 0.18, batch=64), row(4, 0.14)]
    prior = absorb(Prior(), trained(1, *rows, noise=Noise(1.0, 500.0, 1000)))
    fresh = trained(2)
    assert curve(fresh, [Shape(1), Shape(2)]) == ()
    helped = inform(fresh, prior)
    assert [point.gpus for point in curve(helped, [Shape(1), Shape(2)])] == [1, 2]
    assert helped.profile.noise_basis == Noise(1.0, 500.0, 1000)
    batch = best_batch(helped, Shape(2))
    assert batch is not None
    assert batch.total_batch > 64, "the lent noise scale lets it grow"
    assert all(each.weight <= priors.LENT_WEIGHT for each in helped.profile.basis)
    own = replace(fresh, profile=replace(fresh.profile, rows=(row(1, 0.9, weight=3.0),), noise=Noise(2.0, 1.0, 9)))
    mixed = inform(own, prior)
    assert [each for each in mixed.profile.basis if (each.replicas, each.atomic_batch) == (1, 32)] == [
        row(1, 0.9, weight=3.0)
    ]
    assert mixed.profile.noise_basis == Noise(2.0, 1.0, 9)
    assert len(mixed.profile.basis) == 5
    assert (most_replicas(own, prior), most_replicas(own, None)) == (4, 1)


def test_nothing_to_add_is_the_same_job() -> None:
    known = trained(1, row(1, 0.2))
    assert inform(known, None) is known
    assert inform(known, absorb(Prior(), known)) is known


def test_a_job_that_ends_leaves_what_it_measured_and_the_next_one_starts_with_it() -> None:
    profile = Profile(declared=DECLARED, rows=(row(1, 0.2),), early_noise=Noise(1.0, 8.0, 640))
    before = snapshot(node("a"), running(1, on("a", 0), profile=profile), running(2, on("a", 1), declared=False))
    over = fold(before, [facts.Exited(20.0, JobId(1), 1, NodeId("a"), Exit(0))])
    [key] = over.snapshot.priors
    assert key == program_of(over.ended[0])
    assert over.snapshot.priors[key] == Prior((row(1, 0.2),), Noise(1.0, 8.0, 640), 1)
    assert before.priors == {}
    # A job without new knowledge changes nothing.
    assert fold(over.snapshot, [facts.Exited(21.0, JobId(2), 1, NodeId("a"), Exit(1))]).snapshot.priors is (
        over.snapshot.priors
    )


def test_a_job_that_is_stopped_and_resumed_teaches_only_at_its_end() -> None:
    profile = Profile(declared=DECLARED, rows=(row(1, 0.2),))
    before = snapshot(node("a"), running(1, on("a", 0), profile=profile))
    stopped = fold(before, [facts.Exited(20.0, JobId(1), 1, NodeId("a"), Exit(0, stopped=True))])
    assert JobId(1) in stopped.snapshot.jobs
    assert stopped.snapshot.priors == {}


def test_the_programs_that_ended_a_job_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priors, "MAX_PRIORS", 3)
    jobs = [trained(number, row(1, 0.2), argv=(f"{number}.py",)) for number in range(1, 5)]
    known = remember({}, jobs[:3])
    known = remember(known, [jobs[0]])
    known = remember(known, [jobs[3]])
    assert [key.split(":")[1] for key in known] == ["/3.py", "/1.py", "/4.py"]
    assert len(remember({}, jobs[:2])) == 2


def test_the_growth_of_every_jobs_noise_scale_is_remembered() -> None:
    first = replace(trained(1, row(1, 0.2)).profile, noise_curve=(NoisePoint(0.0, 4.0),))
    second = replace(first, noise_curve=(NoisePoint(0.0, 16.0), NoisePoint(100.0, 50.0)))
    prior = absorb(absorb(Prior(), replace(trained(1), profile=first)), replace(trained(2), profile=second))
    assert [point.scale for point in prior.noise_curve] == [pytest.approx(8.0), 50.0]


def test_a_batch_is_chosen_by_lent_times_but_never_by_a_lent_noise_scale() -> None:
    fresh = trained(1, row(1, 0.2))
    prior = Prior(rows=(row(1, 0.2), row(2, 0.3)), noise=Noise(1.0, 8.0, 640))
    here = replace(snapshot(node("a"), fresh), priors={program_of(fresh): prior})
    lent = with_times(fresh, here)
    assert [each.replicas for each in lent.profile.basis] == [1, 2]
    assert lent.profile.noise_basis is None
    assert with_times(lent, here).profile.basis is lent.profile.basis, "no new fit for the same question"
