"""What one more GPU is worth, and to whom, by the models of the round."""

from __future__ import annotations

import re
from dataclasses import replace

from gpq.control.sentences import text
from gpq.core.explain import running_job
from gpq.core.model.jobs import Job
from gpq.core.model.profile import Noise, Profile, ProfileRow
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.rounds.motives import reallocations
from tests.support.builders import DECLARED, black_box, job, node, on, running, snapshot, spec
from tests.support.explanations import explain

NODE = node("a", 4)


def profile(scale: float) -> Profile:
    """Measured with 1, 2 and 3 GPUs. `scale` is how much of one more GPU is gained (1 = all)."""
    rows = tuple(ProfileRow(1, k, 64, 0.08, 0.1 * k ** (1 - scale), 100.0) for k in (1, 2, 3))
    noise = Noise(1.0, 4000.0, 100)
    return Profile(declared=DECLARED, rows=rows, noise=noise, atomic_batch=64, samples_per_second=640.0)


def two(scale: float = 0.9, other: float = 0.2) -> Snapshot:
    return snapshot(
        NODE,
        running(1, on("a", 0, 1), spec_=spec(up_to=4), profile=profile(scale)),
        running(2, on("a", 2, 3), spec_=spec(up_to=4), profile=profile(other)),
        now=1000.0,
    )


def of(state: Snapshot, number: int) -> Job:
    return state.jobs[JobId(number)]


def test_more_gpus_are_worth_more_to_a_job_that_scales_better() -> None:
    state = two()
    well, badly = running_job.more(state, of(state, 1)), running_job.more(state, of(state, 2))
    assert well is not None
    assert badly is not None
    assert (well.gpus, badly.gpus) == (3, 3)
    assert well.ratio > badly.ratio
    [giver] = running_job.givers(state, of(state, 1))
    assert (giver.job, giver.gpus) == (2, 1)
    assert giver.ratio < 1.0


def test_jobs_that_could_give_gpus_are_named_with_their_loss() -> None:
    state = two()
    more, who = map(text, running_job.gain_reasons(state, of(state, 1)))
    assert more.startswith("3 GPUs would change its goodput by +")
    assert re.fullmatch(r"jobs that could give GPUs: job 2 would lose [1-9]\d?% with 1 GPU", who)
    assert more in explain(state, {}, of(state, 1)).reasons


def test_a_policy_of_gangs_gives_no_job_more() -> None:
    state = two()
    state = replace(state, config=replace(state.config, policy="fifo", gang=True))
    [said] = map(text, running_job.gain_reasons(state, of(state, 1)))
    assert said.endswith("but the policy fifo gives every job only the fewest that it asked for")


def test_free_gpus_that_were_not_worth_it_are_named() -> None:
    state = snapshot(NODE, running(1, on("a", 0, 1), spec_=spec(up_to=4), profile=profile(0.0)), now=1000.0)
    [said] = map(text, running_job.gain_reasons(state, of(state, 1)))
    assert "2 are free, but that was not worth a restart" in said


def test_slower_with_more_gpus_is_not_blamed_on_restarts() -> None:
    state = snapshot(NODE, running(1, on("a", 0), spec_=spec(up_to=4), profile=profile(-3.0)), now=1000.0)
    [said] = map(text, running_job.gain_reasons(state, of(state, 1)))
    assert re.fullmatch(r"2 GPUs would not make it faster: its goodput would change by -\d+%", said)


def test_a_job_that_cannot_be_resized_gives_and_takes_nothing() -> None:
    state = snapshot(NODE, running(1, on("a", 0), spec_=black_box()), now=1000.0)
    assert running_job.gain_reasons(state, of(state, 1)) == []
    assert running_job.more(state, job(5)) is None
    full = snapshot(NODE, running(1, on("a", 0, 1), spec_=spec(gpus=2, up_to=2), profile=profile(0.9)), now=1000.0)
    assert running_job.more(full, of(full, 1)) is None
    assert running_job.fewer(full, of(full, 1)) is None


def test_the_batch_is_compared_with_the_declared_one() -> None:
    state = two()
    plain = explain(state, {}, of(state, 1)).reasons
    assert any("batch size of 128" in line for line in plain)
    fixed = replace(of(state, 1), profile=replace(profile(0.9), declared=replace(DECLARED, adaptive=False)))
    told = explain(replace(state, jobs={fixed.id: fixed}), {}, fixed).reasons
    assert "its batch size is 128. It lets gpq change its GPUs, but not its batch size" in told


def test_a_reallocation_says_what_changed_for_whom() -> None:
    state = two()
    wanted = {JobId(1): on("a", 0, 1, 2), JobId(2): on("a", 3)}
    state = replace(state, jobs={**state.jobs, JobId(3): running(3, on("a", 0))})
    grown, shrunk, gone = reallocations(state, wanted, {JobId(1): "x", JobId(2): "y", JobId(3): "z"})
    assert (grown.before, grown.after, shrunk.before, shrunk.after, gone.before, gone.after) == (2, 3, 2, 1, 1, 0)
    assert grown.ratio is not None
    assert shrunk.ratio is not None
    assert grown.ratio > 1.0 > shrunk.ratio
    assert gone.ratio is None
