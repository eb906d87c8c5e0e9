"""Whole rounds in the simulator's world: the invariants hold after every round, and everything ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpq.core.model.actions import Action, Launch, Stop
from gpq.core.model.events import (
    CancelAsked,
    Event,
    Exited,
    HoldAsked,
    Launched,
    Profiled,
    ReleaseAsked,
    RequeueAsked,
    Submitted,
    TimingSums,
)
from gpq.core.model.jobs import HOLDS_DEVICES, DesiredState, Job, JobState
from gpq.core.model.placements import Exit, Placement, Shape
from gpq.core.model.policy import Policy
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.rounds.planning import plan, repeat
from gpq.core.rounds.rounds import Decision, decide, due, next_round
from gpq.policies.fifo import Fifo
from gpq.policies.registry import POLICIES
from tests.support.builders import black_box, brief, command, job, node, on, program, running, snapshot, spec
from tests.support.examples import examples
from tests.support.programs import Program
from tests.support.sanity import sanity
from tests.support.sim_world import SimWorld


def simulate(
    world: SimWorld, rule: Policy, until: float = 1e6, interval: float = 60.0
) -> tuple[dict[JobId, Job], list[Event]]:
    """Run to the end and check the invariants after every round. (final jobs, journal)."""
    state, ended, journal = snapshot(interval=interval), {}, []
    while (events := world.wait(next_round(state))) is not None:
        assert world.clock < until, "it does not end"
        wake = next_round(state)
        state = replace(state, now=world.now())
        decision = decide(state, events, rule, allocate=due(state, events) or state.now >= wake)
        state = decision.snapshot
        assert sanity(state) == []
        check_ranges(state)
        journal += decision.journal
        ended.update({each.id: each for each in decision.ended})
        world.cancelled(each.id for each in decision.ended if each.attempt == 0)
        for action in decision.actions:
            world.perform(action)
    return ended, journal


def check_ranges(state: Snapshot) -> None:
    for each in state.jobs.values():
        if each.placement is not None:
            assert each.replicas >= each.spec.min_gpus
            assert not each.spec.max_gpus or each.replicas <= each.spec.max_gpus


@st.composite
def workloads(draw: st.DrawFn) -> list[Program]:
    programs = []
    for at in sorted(draw(st.lists(st.floats(0, 600), min_size=1, max_size=7))):
        if draw(st.booleans()):
            low = draw(st.integers(1, 2))
            what = spec(gpus=low, up_to=draw(st.sampled_from([0, low, 4])), user=draw(st.sampled_from(["ana", "bo"])))
            programs.append(program(at, spec=what, work=draw(st.floats(100, 20_000)), noise=draw(st.floats(1, 5000))))
        else:
            programs.append(command(at, gpus=draw(st.integers(1, 4)), seconds=draw(st.floats(1, 900))))
    return programs


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs=workloads())
def test_every_job_that_fits_completes_and_no_rule_is_broken(name: str, programs: list[Program]) -> None:
    ended, journal = simulate(SimWorld(programs, [node("a", 4), node("b", 2)]), brief(name))
    assert {each.state for each in ended.values()} == {JobState.COMPLETED}
    assert len(ended) == len(programs)
    starts = [(event.job, event.attempt) for event in journal if isinstance(event, Launched)]
    assert len(starts) == len(set(starts))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_same_workload_gives_the_same_journal(name: str) -> None:
    def journal() -> list[Event]:
        programs = [program(10.0 * i, work=3000.0 + 500 * i) for i in range(6)] + [command(45.0, gpus=2)]
        return simulate(SimWorld(programs, [node("a", 4), node("b", 2)]), brief(name))[1]

    assert journal() == journal()


def test_a_job_that_fits_nowhere_waits_and_blocks_nobody() -> None:
    world = SimWorld([command(0.0, gpus=4), command(1.0, seconds=10.0)], [node("a", 2)])
    state, done = snapshot(), []
    while world.clock < 500 and (events := world.wait(next_round(state))) is not None:
        decision = decide(replace(state, now=world.now()), events, Fifo(), allocate=True)
        state = decision.snapshot
        done += decision.ended
        for action in decision.actions:
            world.perform(action)
    assert [each.id for each in done] == [JobId(2)]
    assert state.jobs[JobId(1)].state is JobState.PENDING


class Fixed:
    """A policy that always wants the same."""

    name = "fixed"

    def __init__(self, wanted: Mapping[JobId, Placement]) -> None:
        self._wanted = wanted

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Shape]:
        return {job: placement.shape for job, placement in self._wanted.items()}


def step(state: Snapshot, *events: Event, allocate: bool = True) -> Decision:
    return decide(state, events, Fifo(), allocate=allocate)


def kinds(actions: tuple[Action, ...]) -> list[str]:
    return [type(action).__name__ for action in actions]


def test_the_plan_of_a_fulfilled_wish_is_empty() -> None:
    here = snapshot(node("a"), running(1, on("a", 0)), running(2, on("a", 1)))
    assert plan(here, {each.id: each.placement for each in here.jobs.values() if each.placement}) == []


def test_a_launch_waits_until_the_devices_are_free() -> None:
    here = snapshot(node("a", 2), running(1, on("a", 0, 1)), job(2))
    wanted: dict[JobId, Placement] = {JobId(1): on("a", 0), JobId(2): on("a", 1)}
    [stop] = plan(here, wanted)
    assert isinstance(stop, Stop)
    assert (stop.mode, stop.target) == ("checkpoint", Shape(1))
    decision = decide(here, [], Fixed(wanted), allocate=True)
    assert decision.snapshot.jobs[JobId(1)].target == Shape(1)


def test_cancelling_a_waiting_job_needs_no_round() -> None:
    decision = step(snapshot(node("a"), job(1)), CancelAsked(0, JobId(1)), allocate=False)
    assert [each.state for each in decision.ended] == [JobState.CANCELLED]


def test_a_cancel_overtakes_a_checkpoint_and_is_sent_once() -> None:
    stopping = running(1, on("a", 0))
    here = snapshot(node("a"), stopping)
    first = decide(here, [HoldAsked(0, JobId(1))], Fifo(), allocate=False)
    assert [(action.mode, action.reason) for action in first.actions if isinstance(action, Stop)] == [
        ("checkpoint", "hold")
    ]
    second = step(first.snapshot, CancelAsked(1, JobId(1)), allocate=False)
    assert [action.mode for action in second.actions if isinstance(action, Stop)] == ["kill"]
    assert step(second.snapshot, allocate=False).actions == ()


def test_hold_stops_a_resizable_job_and_release_resumes_it() -> None:
    here = step(snapshot(node("a"), running(1, on("a", 0))), HoldAsked(0, JobId(1))).snapshot
    stopped = Exited(3.0, JobId(1), 1, NodeId("a"), Exit(0, stopped=True, asked="checkpoint"))
    held = step(here, stopped).snapshot
    assert held.jobs[JobId(1)].state is JobState.HELD
    again = step(held, ReleaseAsked(9.0, JobId(1)))
    assert again.snapshot.jobs[JobId(1)].attempt == 2
    assert again.snapshot.jobs[JobId(1)].state is JobState.STARTING


def test_the_first_times_of_an_attempt_trigger_a_round() -> None:
    mine, other = running(1, on("a", 0), since=0.0), job(2)
    times = Profiled(20.0, JobId(1), 1, 1, timings=(TimingSums(1, 1, 8, 0, 1, 1.0, 1, 1.0),))
    here = replace(snapshot(node("a", 1), mine, other, now=20.0), round_at=20.0)
    assert due(here, [times])
    told = replace(mine, profile=replace(mine.profile, samples_per_second=8.0))
    assert not due(replace(here, jobs={mine.id: told, other.id: other}), [times])
    assert [next_round(replace(here, now=5.0, round_at=5.0, jobs={1: each, 2: other})) for each in (mine, told)] == [
        60.0,
        15.0,
    ]


def test_wishes_in_quick_succession_leave_no_job_behind() -> None:
    asks = {"hold": HoldAsked, "release": ReleaseAsked, "requeue": RequeueAsked}
    for names in product(asks, repeat=3):
        for state in (JobState.PENDING, JobState.HELD):
            mine = job(1, state=state, wish=DesiredState.HOLD if state is JobState.HELD else DesiredState.RUN)
            after = step(snapshot(node("a"), mine), *(asks[name](0.0, JobId(1)) for name in names)).snapshot
            left = after.jobs[JobId(1)].state
            assert left is (JobState.HELD if names[-1] == "hold" else JobState.STARTING), (names, state)


def test_a_requeued_job_that_had_failed_too_often_is_tried_again() -> None:
    held = job(1, state=JobState.HELD, wish=DesiredState.HOLD, quick_failures=3)
    state = step(snapshot(node("a"), held), RequeueAsked(0.0, JobId(1)), allocate=False).snapshot
    assert step(state).snapshot.jobs[JobId(1)].state is JobState.STARTING


def test_three_quick_failures_hold_a_job_that_has_tries_left() -> None:
    state = snapshot(node("a"), job(1, spec_=black_box(retries=10)))
    now = 0.0
    for _ in range(3):
        decision = step(replace(state, now=now))
        assert "Launch" in kinds(decision.actions)
        attempt = decision.snapshot.jobs[JobId(1)].attempt
        now += 1.0
        state = step(replace(decision.snapshot, now=now), Exited(now, JobId(1), attempt, NodeId("a"), Exit(1))).snapshot
        now += 100.0
    held = state.jobs[JobId(1)]
    assert held.state is JobState.HELD
    assert "3 times" in held.notices[-1]


ENDS = {
    "it never came up": Exit(None, lost=True),
    "its port was taken": Exit(1, unlaunched="port"),
    "its servers did not meet": Exit(1, unlaunched="network"),
    "gpq asked for too much memory": Exit(1, excused="out of memory"),
    "it stops again and again": Exit(75, stopped=True),
    "it fails again and again": Exit(1),
}


@pytest.mark.parametrize("exit_", ENDS.values(), ids=ENDS.keys())
def test_no_job_starts_more_than_three_times_in_half_a_minute(exit_: Exit) -> None:
    """Whoever's fault it is that each attempt ends at once."""
    state = snapshot(node("a"), running(1, on("a", 0), since=-1000.0, spec_=spec(retries=20)))
    decision = step(state, RequeueAsked(0.0, JobId(1)))
    launches: list[float] = []
    for tick in range(1200):
        now, mine = tick / 2, decision.snapshot.jobs[JobId(1)]
        ends = [Exited(now, JobId(1), mine.attempt, NodeId("a"), exit_)] if mine.state in HOLDS_DEVICES else []
        decision = step(replace(decision.snapshot, now=now), *ends)
        launches += [now for action in decision.actions if isinstance(action, Launch)]
    assert max(sum(begin <= at < begin + 30.0 for at in launches) for begin in launches) <= 3
    kept = decision.snapshot.jobs[JobId(1)]
    if kept.state is JobState.HELD:
        assert (len(launches), kept.quick_failures) == (3, 3)
    else:  # the reason may be over at any time
        assert max(after - at for at, after in pairwise(launches)) <= 61.0


def test_a_time_limit_stops_the_job_and_says_so() -> None:
    here = snapshot(node("a"), running(1, on("a", 0), since=0.0, spec_=black_box(time_limit=60.0)), now=59.0)
    assert step(here).actions == ()
    assert next_round(replace(here, round_at=59.0)) == 60.0
    late = step(replace(here, now=60.0))
    assert [(a.mode, a.reason) for a in late.actions if isinstance(a, Stop)] == [("kill", "time")]
    over = step(late.snapshot, Exited(61.0, JobId(1), 1, NodeId("a"), Exit(None, signal=15, asked="kill")))
    assert [each.state for each in over.ended] == [JobState.TIMEOUT]


def test_orders_are_repeated_to_a_server_that_may_have_missed_them() -> None:
    start = step(snapshot(node("a")), Submitted(0, JobId(1), black_box()))
    [launch] = [action for action in start.actions if isinstance(action, Launch)]
    [again] = repeat(start.snapshot, NodeId("a"))
    assert isinstance(again, Launch)
    assert (again.job, again.attempt, again.placement) == (launch.job, launch.attempt, launch.placement)
    stopping = step(start.snapshot, CancelAsked(1, JobId(1))).snapshot
    assert kinds(tuple(repeat(stopping, NodeId("a")))) == ["Launch", "Stop"] or kinds(
        tuple(repeat(stopping, NodeId("a")))
    ) == ["Stop"]
    assert repeat(stopping, NodeId("b")) == []


def test_an_attempt_that_is_over_is_forgotten_by_its_node() -> None:
    here = snapshot(node("a"), running(1, on("a", 0)))
    assert kinds(step(here, Exited(1.0, JobId(1), 1, NodeId("a"), Exit(0))).actions) == ["Forget"]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("low", "high"), [(1, 2), (4, 4)])
def test_a_job_whose_range_changed_while_it_ran_is_resized_into_it(name: str, low: int, high: int) -> None:
    there = running(1, on("a", 0, 1, 2), spec_=spec(gpus=low, up_to=high))
    decision = decide(snapshot(node("a"), there), [], brief(name), allocate=True)
    [stop] = [each for each in decision.actions if isinstance(each, Stop)]
    assert stop.target is not None
    assert low <= stop.target.replicas <= high
