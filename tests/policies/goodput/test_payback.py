"""No job pauses for a move that cannot earn the pause back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.goodput.priors import absorb, program_of
from gpq.core.model.accounts import Gain, Promise
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.profile import Prior, Progress
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from tests.policies.goodput.test_goodput import GOOD, counts, profile
from tests.support.builders import DECLARED, black_box, job, node, on, running, snapshot, spec

NOW = 1000.0


def trainee(number: int, *devices: int, fraction: float, restart: float = 20.0) -> Job:
    """Alone on one GPU it takes 10,000 s or so."""
    measured = profile(GOOD, fraction=fraction)
    return running(number, on("a", *devices), profile=measured, restart_seconds=restart)


def lab(*jobs: Job, gpus: int = 2, **config: object) -> Snapshot:
    return snapshot(node("a", gpus), *jobs, now=NOW, **config)


@pytest.mark.parametrize("payback", [True, False])
def test_a_job_that_ends_within_a_restart_is_not_shrunk_even_for_an_urgent_one(payback: bool) -> None:
    urgent = job(2, at=NOW - 500.0, profile=profile(GOOD, most=1), spec_=spec(priority=50))
    assert 2 in counts(lab(trainee(1, 0, 1, fraction=0.5), urgent, payback=payback))
    ending = counts(lab(trainee(1, 0, 1, fraction=0.9999), urgent, payback=payback))
    assert (ending == {1: 2}) is payback


def test_a_job_that_has_just_arrived_waits_for_gpus_that_come_free_by_themselves() -> None:
    long_job, ending = trainee(1, 0, fraction=0.1), running(2, on("a", 1), profile=profile(GOOD, fraction=0.99999))
    ending = replace(ending, restart_seconds=20.0, spec=spec(up_to=1))
    long_job = replace(long_job, spec=spec(user="bo"), placement=on("a", 0, 2))

    def started(at: float, **config: object) -> bool:
        arrival = job(3, at=at, spec_=black_box(user="cy"))
        return 3 in counts(lab(long_job, ending, arrival, gpus=3, **config))

    assert not started(NOW)
    assert started(NOW - 21.0), "but not for longer than a restart"
    assert started(NOW, payback=False)
    assert started(NOW, events=False), "nothing would start it when they come free"


def test_a_job_that_arrives_on_idle_gpus_makes_nobody_pause() -> None:
    neighbours = [replace(trainee(1, 0, 1, 2, 3, fraction=0.1), spec=spec(user="bo"))]
    arrival = job(2, at=NOW, profile=profile(GOOD), spec_=spec(user="cy"))
    assert counts(lab(*neighbours, arrival, gpus=8)) == {1: 4, 2: 4}
    greedy = counts(lab(*neighbours, arrival, gpus=8, payback=False))
    assert greedy[2] >= 4
    crowded = [counts(lab(*neighbours, arrival, gpus=6, payback=payback)) for payback in (True, False)]
    assert crowded[0] == crowded[1], "two idle GPUs are less than its share"


def test_idle_gpus_that_are_too_few_for_a_command_do_not_keep_it_waiting() -> None:
    bo, cy = trainee(1, 0, 1, fraction=0.1), trainee(2, 2, 3, fraction=0.1)
    neighbours = [replace(bo, spec=spec(user="bo", up_to=2)), replace(cy, spec=spec(user="cy", up_to=2))]
    command = job(3, at=NOW - 60.0, spec_=black_box(user="di", min_gpus=4))
    assert counts(lab(*neighbours, command, gpus=7))[3] == 4


def test_the_length_of_earlier_jobs_counts_for_one_that_declares_none() -> None:
    endless = replace(DECLARED, epochs=0, dataset_size=0)

    def shrunk(trained: float, work: float) -> bool:
        mine = trainee(1, 0, 1, fraction=0.5)
        progress = Progress(0, 0, 0, int(trained), trained, 0.0)
        mine = replace(mine, profile=replace(mine.profile, declared=endless, progress=progress))
        here = lab(mine, job(2, at=NOW - 500.0, profile=profile(GOOD, most=1)))
        return counts(replace(here, priors={program_of(mine): Prior(work=work)}))[1] == 1

    assert not shrunk(9_999.0, 10_000.0 * 64)
    assert shrunk(5_000.0, 10_000.0 * 64)
    assert shrunk(9_999.0, 0.0), "nothing is known"
    assert shrunk(11_000.0, 10_000.0 * 64), "longer than any before"


def test_the_next_job_of_a_program_learns_its_length_from_those_that_completed() -> None:
    endless = replace(DECLARED, epochs=0, dataset_size=0)
    mine = trainee(1, 0, fraction=0.5)
    mine = replace(mine, profile=replace(mine.profile, declared=endless, progress=Progress(0, 0, 0, 9, 100.0, 0.0)))
    done = replace(mine, state=JobState.COMPLETED)
    prior = absorb(Prior(), done)
    assert prior.work == 100.0 * 64
    longer = replace(done.profile, progress=Progress(0, 0, 0, 9, 200.0, 0.0))
    assert absorb(prior, replace(done, profile=longer)).work == 150.0 * 64
    assert absorb(prior, replace(mine, state=JobState.CANCELLED)).work == prior.work
    assert absorb(Prior(), replace(done, profile=trainee(1, 0, fraction=1.0).profile)).work == 0.0, "declared"


def test_a_size_that_disappointed_is_not_tried_again_soon() -> None:
    mine = replace(trainee(1, 0, fraction=0.1, restart=2.0), submitted_at=0.0)
    assert counts(lab(mine, gpus=4)) == {1: 4}

    def after(measured: float, at: float = NOW - 100.0, **config: object) -> int:
        gain = Gain(at, 1, 1, 4, Promise(2.5, 2.0), 1.0, measured)
        return counts(lab(replace(mine, gains=(gain,)), gpus=4, **config))[JobId(1)]

    assert after(2.4) == 4
    assert after(1.3) < 4
    assert after(1.3, trust_gains=False) == 4
    assert after(1.3, at=NOW - 700.0) == 4
