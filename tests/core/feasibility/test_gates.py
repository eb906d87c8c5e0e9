"""A gate hides jobs from policies and opens on its own. `why` says what would open it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from gpq.core.accounting.fairness import shares_now
from gpq.core.feasibility import gates
from gpq.core.model.actions import Launch
from gpq.core.model.events import Cancelled, Edited, Event, Failed, ReleaseAsked, Succeeded, TimeLimitReached
from gpq.core.model.jobs import Dependency, DesiredState, Job, JobSpec, JobState, On, Seat
from gpq.core.model.placements import Exit
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.rounds.rounds import decide, next_round
from gpq.core.state.apply_events import fold
from gpq.policies.fifo import Fifo
from gpq.policies.registry import POLICIES
from tests.support.builders import black_box, brief, job, node, on, running, snapshot, spec
from tests.support.explanations import explain

A = node("a", 8)


def element(number: int, array: int = 10, limit: int = 2, **more: object) -> Job:
    return job(number, spec_=black_box(seat=Seat(JobId(array), number - array - 1, 5, limit)), **more)  # type: ignore[arg-type]


def behind(number: int, *others: str, **more: object) -> Job:
    """Waits for `1:ok`, `2:any`."""
    awaits = tuple(Dependency(JobId(int(name)), On(how)) for name, _, how in (one.partition(":") for one in others))
    return job(number, spec_=black_box(after=awaits), awaits=awaits, **more)  # type: ignore[arg-type]


def launched(state: Snapshot, events: Sequence[Event] = ()) -> list[int]:
    decision = decide(state, events, Fifo(), allocate=True)
    return [int(action.job) for action in decision.actions if isinstance(action, Launch)]


def ends(number: int, how: type) -> Event:
    return how(1.0, JobId(number), Exit(0 if how is Succeeded else 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", [Succeeded, Failed, Cancelled, TimeLimitReached])
@pytest.mark.parametrize("on_", list(On))
def test_the_end_of_another_opens_the_gate_or_holds_the_job(on_: On, how: type) -> None:
    state = snapshot(A, running(1, on("a", 0)), behind(2, f"1:{on_}"), now=1.0)
    assert launched(state) == []
    decision = decide(state, [ends(1, how)], Fifo(), allocate=True)
    starts = on_ is On.ANY or (on_ is On.OK) is (how is Succeeded)
    after = decision.snapshot.jobs[JobId(2)]
    assert after.state is (JobState.STARTING if starts else JobState.HELD)
    assert after.awaits == ()
    if not starts:
        assert "job 1" in explain(decision.snapshot, {}, after).headline
        assert "gpq release 2" in after.notices[-1]
        released = decide(decision.snapshot, [ReleaseAsked(2.0, JobId(2))], Fifo(), allocate=True).snapshot
        assert released.jobs[JobId(2)].state is JobState.STARTING


def test_it_waits_for_all_of_them() -> None:
    state = snapshot(A, running(1, on("a", 0)), running(2, on("a", 1)), behind(3, "1:ok", "2:any"), now=1.0)
    assert launched(state, [ends(1, Succeeded)]) == []
    assert launched(state, [ends(1, Succeeded), ends(2, Failed)]) == [3]
    assert launched(state, [ends(2, Failed)]) == []


def test_one_end_opens_the_gate_for_the_next_in_the_same_round() -> None:
    """A chain continues from job to job. A job that is held for an unmet end holds those behind it only by waiting."""
    state = snapshot(A, running(1, on("a", 0)), behind(2, "1:ok"), behind(3, "2:any"), now=1.0)
    after = decide(state, [ends(1, Failed)], Fifo(), allocate=True).snapshot
    assert [after.jobs[JobId(n)].state for n in (2, 3)] == [JobState.HELD, JobState.PENDING]
    assert after.jobs[JobId(3)].awaits


def test_a_chain_that_cannot_go_on_says_so_from_end_to_end() -> None:
    state = snapshot(
        A, running(1, on("a", 0)), behind(2, "1:ok"), behind(3, "2:ok"), behind(4, "3:any"), behind(6, "5:ok"),
        job(5, spec_=black_box(), state=JobState.HELD, wish=DesiredState.HOLD, quick_failures=3), now=1.0,
    )  # fmt: skip
    assert gates.halted_jobs(state).keys() == {5, 6}
    after = decide(state, [ends(1, Failed)], Fifo(), allocate=True).snapshot
    lines = gates.halted_jobs(after)
    assert [lines[JobId(name)] for name in (2, 3, 4, 5, 6)] == [
        "job 1 failed",
        "job 2 cannot start, because job 1 failed",
        "job 3 cannot start, because job 1 failed",
        "job 5 keeps failing, so gpq holds it",
        "job 5 cannot start, because job 5 keeps failing, so gpq holds it",
    ]
    assert explain(after, {}, after.jobs[JobId(3)]).headline == f"after job 2: {lines[JobId(3)]}"
    by_hand = job(1, spec_=black_box(), state=JobState.HELD, wish=DesiredState.HOLD)
    assert not gates.halted_jobs(snapshot(by_hand, behind(2, "1:ok")))  # somebody may release it


def test_a_start_time_opens_the_gate_and_wakes_the_loop() -> None:
    state = snapshot(A, job(1, spec_=black_box(begin=100.0)), now=40.0, interval=3600.0)
    assert launched(state) == []
    assert next_round(state) == 100.0
    assert launched(replace(state, now=100.0)) == [1]
    assert explain(state, {}, state.jobs[JobId(1)]).headline == "begins in 60 s"


def test_an_array_runs_up_to_its_limit_and_starts_the_next_when_one_ends() -> None:
    state = snapshot(A, running(11, on("a", 0), spec_=element(11).spec), *(element(n) for n in range(12, 16)), now=1.0)
    assert launched(state) == [12]
    assert launched(state, [ends(11, Failed)]) == [12, 13]
    said = explain(state, {}, state.jobs[JobId(13)])
    assert said.headline == "at most 2 of array 10 at once"
    assert said.remedies == ("`gpq edit 10 --array-limit 3` lets one more run",)
    assert launched(snapshot(A, *(element(n, limit=0) for n in range(11, 16)))) == [11, 12, 13, 14, 15]


def test_two_arrays_do_not_count_for_each_other() -> None:
    two = [element(n, array, limit=1) for array in (10, 20) for n in range(array + 1, array + 4)]
    assert launched(snapshot(A, *two)) == [11, 21]


def test_a_held_or_backing_off_job_does_not_count_towards_the_limit() -> None:
    held, late = element(11, state=JobState.HELD, wish=DesiredState.HOLD), element(12, not_before=50.0)
    assert launched(snapshot(A, held, late, *(element(n) for n in (13, 14, 15)), now=1.0)) == [13, 14]


def test_behind_a_gate_a_job_has_no_share() -> None:
    state = snapshot(A, job(1, spec_=spec(user="ana")), behind(2, "1:ok"), job(3, spec_=spec(user="ben", begin=9.0)))
    assert shares_now(state) == {1: 8.0}
    assert gates.without_gated(state).jobs.keys() == {1}
    everybody = snapshot(A, job(1), job(2))
    assert gates.without_gated(everybody) is everybody


def test_an_edit_opens_the_gate() -> None:
    state = snapshot(A, running(1, on("a", 0)), behind(2, "1:ok"), now=1.0)
    free = state.jobs[JobId(2)].spec.having(after=())
    assert launched(state, [Edited(1.0, JobId(2), free)]) == [2]
    gone = fold(state, [ends(1, Failed)]).snapshot
    assert gone.jobs[JobId(2)].unmet
    assert not fold(gone, [Edited(2.0, JobId(2), free)]).snapshot.jobs[JobId(2)].unmet
    other = gone.jobs[JobId(2)].spec.having(priority=5)
    assert fold(gone, [Edited(2.0, JobId(2), other)]).snapshot.jobs[JobId(2)].unmet


def test_why_names_what_it_waits_for() -> None:
    state = snapshot(A, running(1, on("a", 0), spec_=spec(name="train")), behind(2, "1:notok"))
    said = explain(state, {}, state.jobs[JobId(2)])
    assert said.headline == "after job 1:notok"
    assert said.reasons == ("job 1 (train, running) must end without success first",)
    assert said.remedies == ("`gpq edit 2 --after none` lets it start without them",)


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_starts_a_job_behind_a_gate(name: str) -> None:
    random = Random(name)
    for _ in range(5):
        jobs = [_drawn(number, random) for number in range(1, 16)]
        state = snapshot(A, node("b", 4), *jobs, now=10.0)
        shut = gates.closed_gates(state)
        decision = decide(state, [], brief(name), allocate=True)
        starts = {action.job for action in decision.actions if isinstance(action, Launch)}
        assert not starts & shut.keys()
        assert starts, "nobody starts though GPUs are free"
        holding = [each for each in decision.snapshot.jobs.values() if each.spec.seat and each.placement]
        assert len(holding) <= 2


def _drawn(number: int, random: Random) -> Job:
    asked: JobSpec = random.choice([spec(gpus=1, up_to=2), black_box()])
    what = random.randrange(4) if number > 1 else 3
    if what == 0:
        awaits = (Dependency(JobId(random.randrange(1, number)), random.choice(list(On))),)
        return job(number, spec_=asked.having(after=awaits), awaits=awaits)
    if what == 1:
        return job(number, spec_=asked.having(begin=random.choice([5.0, 15.0])))
    if what == 2:
        return job(number, spec_=asked.having(seat=Seat(JobId(100), number, 20, 2)))
    return job(number, spec_=asked)
