"""When a waiting job may start: limits that hold in simulated time, and words for what is open."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from gpq.control.sentences import text
from gpq.core.explain.obstacles import reason
from gpq.core.explain.pending import NEVER, Window, window
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.profile import Profile, Progress
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.rounds.rounds import decide, due, next_round
from gpq.policies.fifo import Fifo
from tests.support.builders import DECLARED, black_box, command, job, node, on, running, snapshot, spec
from tests.support.explanations import explain
from tests.support.sim_world import SimWorld

A, B = node("a", 2), node("b", 4)


def limited(number: int, *devices: int, limit: float | None, at: str = "a", since: float = 0.0) -> Job:
    return running(number, on(at, *devices), since=since, spec_=black_box(len(devices), time_limit=limit, grace=10.0))


def of(state: Snapshot, gpus: int = 1, ahead: dict[JobId, int] | None = None) -> Window | None:
    return window(state, job(99, spec_=black_box(gpus)), gpus, ahead or {})


def words(when: Window | None) -> str:
    return text(reason("start-window", window=when))


def test_free_gpus_are_there_at_once() -> None:
    assert words(of(snapshot(A))) == "it may start at once"


def test_a_time_limit_bounds_the_end_and_nothing_the_beginning() -> None:
    found = of(snapshot(A, limited(1, 0, 1, limit=600.0), now=100.0))
    assert found is not None
    assert (found.earliest, found.latest) == (0.0, 510.0)
    assert words(found) == (
        "it may start as soon as jobs release GPUs, and within 8 m if no other job comes first: "
        "the time limit of job 1 ends it by then"
    )


def test_progress_gives_both_ends_and_a_limit_cuts_the_later() -> None:
    done = Profile(declared=DECLARED, progress=Progress(5, 10, 50_000, 800, 800.0, 0.5))
    runs = running(1, on("a", 0, 1), since=0.0, spec_=spec(gpus=2, up_to=2, rigid=True), profile=done)
    found = of(snapshot(A, runs, now=1000.0), 2)
    assert found is not None
    assert (found.earliest, found.latest) == pytest.approx((700.0, 1500.0))
    assert "job 1 seems to need another 16 m" in words(found)
    cut = replace(runs, spec=runs.spec.having(time_limit=1200.0, grace=10.0))
    found = of(snapshot(A, cut, now=1000.0), 2)
    assert found is not None
    assert found.latest == pytest.approx(210.0)


def test_unknown_ends_stay_open() -> None:
    found = of(snapshot(A, limited(1, 0, 1, limit=None)))
    assert found is not None
    assert found.latest == NEVER
    assert (
        words(found)
        == "gpq cannot tell when it may start: job 1 has no time limit (--time) and has not reported its length"
    )
    both = of(snapshot(A, limited(1, 0, limit=None), limited(2, 1, limit=None)), 2)
    assert "jobs 1 and 2 have no time limit (--time) and have not reported" in words(both)


def test_a_known_earliest_time_is_given_without_a_latest_one() -> None:
    bounded = limited(2, 1, limit=100.0)
    found = of(snapshot(A, limited(1, 0, limit=None), bounded), 1, {JobId(50): 1})
    assert found is not None
    assert words(found).startswith(
        "it may start as soon as jobs release GPUs, but gpq cannot tell the latest time: job 50 is ahead of it, and job 1 has"
    )


def test_all_gpus_must_be_free_on_one_server() -> None:
    state = snapshot(A, B, limited(1, 0, limit=100.0), limited(2, 0, 1, 2, limit=500.0, at="b"), now=0.0)
    two, three = of(state, 2), of(state, 3)
    assert two is not None
    assert three is not None
    assert (two.latest, three.latest) == (110.0, 510.0)
    assert of(state, 5) is None


def test_jobs_ahead_take_their_gpus_first() -> None:
    state = snapshot(A, limited(1, 0, limit=100.0), limited(2, 1, limit=500.0))
    one, both, too_many = of(state, 1), of(state, 1, {JobId(50): 1}), of(state, 1, {JobId(50): 2})
    assert one is not None
    assert both is not None
    assert too_many is not None
    assert (one.latest, both.latest, too_many.latest) == (110.0, 510.0, NEVER)
    assert "job 50 is ahead of it" in words(both)


def test_a_movable_job_may_release_its_gpus_at_any_time() -> None:
    found = of(snapshot(A, running(1, on("a", 0, 1))), 2)
    assert found is not None
    assert found.earliest == 0.0


def test_why_says_so() -> None:
    state = snapshot(A, limited(1, 0, 1, limit=600.0), job(2, spec_=black_box()), now=100.0)
    assert any(line.startswith("it may start") for line in explain(state, {}, state.jobs[JobId(2)]).reasons)


@pytest.mark.parametrize("seed", range(20))
def test_the_limits_hold_if_no_other_job_comes(seed: int) -> None:
    """Commands with time limits, first come first served, in simulated time: each starts within its window."""
    random = Random(seed)
    made = []
    for _ in range(12):
        seconds = random.uniform(5.0, 300.0)
        made.append(
            command(
                0.0, seconds=seconds, gpus=random.choice([1, 1, 2, 4]), time_limit=seconds * random.uniform(1.1, 3.0)
            )
        )
    world = SimWorld(made, [A, B])
    state, told, started = snapshot(interval=3600.0), dict[JobId, tuple[float, Window]](), dict[JobId, float]()
    while (events := world.wait(next_round(state))) is not None:
        wake = next_round(state)
        state = replace(state, now=world.now())
        decision = decide(state, events, Fifo(), allocate=due(state, events) or state.now >= wake)
        state = decision.snapshot
        for action in decision.actions:
            world.perform(action)
        for each in state.jobs.values():
            if each.state is JobState.PENDING and each.id not in told:
                before = [one for one in state.jobs.values() if one.state is JobState.PENDING and one.id < each.id]
                found = window(state, each, each.spec.min_gpus, {one.id: one.spec.min_gpus for one in before})
                assert found is not None
                told[each.id] = state.now, found
            elif each.started_at is not None:
                started.setdefault(each.id, each.started_at)
    assert told
    for name, (at, found) in told.items():
        assert at + found.earliest <= started[name] + 1.0
        assert started[name] <= at + found.latest + 5.0, f"job {name}: {found}"
