"""Every policy respects the habits of loops: it gives no order and no shape that needs a freedom which a job has lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.core.freedoms import gpus_kept, least_at_once, with_habits
from gpq.core.model.actions import Action, Launch, Retune, Stop
from gpq.core.model.jobs import Job, Level, StopReason
from gpq.core.model.placements import BatchOrder, Placement, Shape
from gpq.core.model.profile import ACCUMULATE, FREEDOMS, RESIZE, RETUNE, SPLIT, Declared, Habit, Noise, Profile
from gpq.core.model.snapshot import Snapshot
from gpq.core.rounds.rounds import decide, due, next_round
from gpq.core.state.apply_events import fold
from gpq.policies.registry import POLICIES
from tests.policies.test_house_rules import NOW, ROWS, drawn, on_every_policy
from tests.support.builders import black_box, brief, job, node, on, program, running, snapshot, spec
from tests.support.sim_world import SimWorld

SMALL = Declared(adaptive=True, batch_size=64, max_batch_size=1024, max_atomic_batch=32, dataset_size=10_000, epochs=10)


def habit(*freedoms: str, code: str = "two-passes") -> Habit:
    return Habit(code, tuple(each for each in FREEDOMS if each in freedoms), "the loop does something", "do not")


def taught(declared: Declared, *freedoms: str, **more: object) -> Profile:
    """The progress of a job that has measured itself, whose loop takes these freedoms."""
    known = Profile(declared=declared, rows=ROWS, noise=Noise(1.0, 5_000.0, 1000), samples_per_second=800.0)
    known = replace(known, **more)  # type: ignore[arg-type]
    return with_habits(known, (habit(*freedoms),)) if freedoms else known


def needs(here: Snapshot, each: Job, action: Action) -> list[str]:
    """The lost freedoms that an action needs."""
    declared, lost = each.profile.declared, each.profile.lost
    if declared is None or not lost or each.spec.level is not Level.SCRIPT or each.spec.rigid:
        return []
    shape: Shape | None = None
    order: BatchOrder | None = None
    if isinstance(action, Launch):
        shape, order = action.placement.shape, action.order
    elif isinstance(action, Retune):
        assert each.placement is not None
        shape, order = None, action.order
    elif isinstance(action, Stop) and action.reason in (StopReason.RESIZE, StopReason.PREEMPT):
        shape = action.target
        if RESIZE in lost:
            return [f"resize: it is stopped ({action.reason})"]
    found = []
    replicas = shape.replicas if shape is not None else each.replicas
    if shape is not None and RESIZE in lost and replicas != gpus_kept(each):
        found.append(f"resize: {replicas} GPUs instead of {gpus_kept(each)}")
    if shape is not None and ACCUMULATE in lost and replicas < least_at_once(declared):
        there = max(
            sum(device.type == kind for n in here.nodes.values() for device in n.devices) for kind in types(here)
        )
        if least_at_once(declared) <= min(each.spec.max_gpus or there, there) and RESIZE not in lost:
            found.append(f"accumulate: {replicas} GPUs hold no {declared.batch_size}")
    if order is not None and ACCUMULATE in lost and order.accum_steps:
        found.append(f"accumulate: {order}")
    if order is not None and RETUNE in lost and order.atomic_batch:
        total = replicas * order.atomic_batch * (order.accum_steps + 1)
        if not declared.batch_size <= total < declared.batch_size + replicas * (order.accum_steps + 1):
            found.append(f"retune: {order} on {replicas}")
    return found


def types(here: Snapshot) -> set[str]:
    return {device.type for each in here.nodes.values() for device in each.devices}


@st.composite
def habited(draw: st.DrawFn) -> Snapshot:
    """A small cluster, and jobs that have measured themselves. Most have habits, and some have more than their habits
    allow by now."""
    kinds = draw(st.sampled_from([("A100", "A100"), ("A100", "T4")]))
    nodes = [node(name, draw(st.sampled_from([4, 2, 6])), type=kind) for name, kind in zip("ab", kinds, strict=True)]
    free = {each.id: [device.id for device in each.devices] for each in nodes}
    jobs = []
    for number in range(1, draw(st.integers(2, 6)) + 1):
        declared = replace(SMALL, max_atomic_batch=draw(st.sampled_from([32, 20, 64, 4])), adaptive=draw(st.booleans()))
        taken = draw(st.sampled_from([(ACCUMULATE,), (RESIZE,), (RETUNE,), (ACCUMULATE, SPLIT, RETUNE), FREEDOMS, ()]))
        gpus = draw(st.sampled_from([1, 1, 2, 3]))
        asked = spec(gpus=gpus, up_to=draw(st.sampled_from([0, gpus, 4])), user=draw(st.sampled_from(["ana", "bo"])))
        where = draw(st.sampled_from([None, *(name for name, ids in free.items() if len(ids) >= gpus)]))
        profile = taught(declared, *taken)
        last = draw(st.sampled_from([0, gpus, gpus + 1]))
        at = draw(st.sampled_from([0.0, 500.0]))
        if where is None:
            jobs.append(job(number, at=at, spec_=asked, profile=profile, attempt=min(last, 1), last_replicas=last))
            continue
        held, free[where] = tuple(free[where][:gpus]), free[where][gpus:]
        accum = draw(st.integers(0, 3))
        jobs.append(
            running(
                number,
                Placement(((where, held),), kinds["ab".index(where)]),
                at=at,
                since=draw(st.sampled_from([600.0, 9_000.0])),
                spec_=asked,
                profile=replace(profile, atomic_batch=16, accum_steps=accum, order_seq=1),
                order=draw(st.sampled_from([BatchOrder(1, 16, accum), BatchOrder(1)])),
            )
        )
    return snapshot(*nodes, *jobs, now=NOW)


@on_every_policy
@drawn
@given(here=habited())
def test_no_action_of_a_round_needs_a_lost_freedom(name: str, here: Snapshot) -> None:
    for action in decide(here, [], brief(name), allocate=True).actions:
        if isinstance(action, Launch | Retune | Stop):
            assert needs(here, here.jobs[action.job], action) == []


@on_every_policy
@pytest.mark.parametrize("lost", [(ACCUMULATE, SPLIT), (ACCUMULATE, SPLIT, RETUNE), (RESIZE,), FREEDOMS])
def test_no_order_of_a_whole_run_needs_a_freedom_lost_since_the_first_report(name: str, lost: tuple[str, ...]) -> None:
    """Jobs arrive while others run, grow, shrink and change their batches. One has habits, the others have none."""
    strict = habit(*lost)
    programs = [
        program(0.0, work=3_000.0, declared=SMALL, habits=(strict,), spec=spec(up_to=6)),
        program(30.0, work=3_000.0, declared=SMALL, spec=spec(up_to=6)),
        program(60.0, work=2_000.0, declared=SMALL, habits=(strict,), spec=spec(gpus=2, up_to=4)),
        program(90.0, work=2_000.0, declared=SMALL, spec=spec(gpus=2, up_to=2)),
    ]
    world, rule = SimWorld(programs, [node("a", 4), node("b", 2)]), brief(name)
    state, ended, seen = snapshot(interval=60.0), 0, 0
    while (events := world.wait(next_round(state))) is not None:
        wake = next_round(state)
        state = replace(state, now=world.now())
        told = fold(state, events).snapshot
        decision = decide(state, events, rule, allocate=due(state, events) or state.now >= wake)
        for action in decision.actions:
            if isinstance(action, Launch | Retune | Stop) and action.job in told.jobs:
                assert needs(told, told.jobs[action.job], action) == []
                seen += bool(told.jobs[action.job].profile.habits)
            world.perform(action)
        state, ended = decision.snapshot, ended + len(decision.ended)
    assert ended == len(programs)
    assert seen or RESIZE in lost, "no action ever touched a job with a habit"


def crowded(each: Job, *others: Job) -> Snapshot:
    return snapshot(node("a", 4), each, *others, now=NOW)


def acts(name: str, here: Snapshot) -> list[Action]:
    return [
        each
        for each in decide(here, [], brief(name), allocate=True).actions
        if isinstance(each, Launch | Retune | Stop)
    ]


@on_every_policy
def test_a_job_that_may_not_accumulate_moves_to_gpus_that_hold_its_batch_when_free(name: str) -> None:
    small = running(1, on("a", 0), profile=taught(SMALL, ACCUMULATE, atomic_batch=32, accum_steps=1))
    [stop] = [each for each in acts(name, crowded(small)) if isinstance(each, Stop)]
    assert (stop.reason, stop.target is not None and stop.target.replicas >= 2) == (StopReason.RESIZE, True)
    assert "hold its base batch at once" in stop.why
    full = running(2, on("a", 1, 2, 3), spec_=black_box(3))
    assert not [each for each in acts(name, crowded(small, full)) if isinstance(each, Stop)], (
        "the job stops without need"
    )


@on_every_policy
def test_a_job_that_may_not_accumulate_and_fits_nowhere_stays_where_it_is(name: str) -> None:
    tiny = replace(SMALL, max_atomic_batch=4)  # 16 GPUs would hold its batch
    small = running(1, on("a", 0), profile=taught(tiny, ACCUMULATE, atomic_batch=4, accum_steps=15))
    assert [each for each in acts(name, crowded(small)) if not isinstance(each, Retune)] == []
    [launch] = acts(name, crowded(job(1, profile=taught(tiny, ACCUMULATE), attempt=1)))
    assert isinstance(launch, Launch)
    assert launch.order.accum_steps == 0, "a job that fits nowhere must not wait for ever"


@on_every_policy
def test_a_job_that_may_not_be_resized_keeps_its_number_of_gpus(name: str) -> None:
    free = running(1, on("a", 0), profile=taught(SMALL, atomic_batch=32))
    stays = replace(free, profile=taught(SMALL, RESIZE, atomic_batch=32))
    waits = job(2, spec_=spec(gpus=4, up_to=4, priority=5))
    for here in (crowded(stays), crowded(stays, waits)):
        assert not [each for each in acts(name, here) if isinstance(each, Stop)]
    if not POLICIES[name].gang:
        assert [each for each in acts(name, crowded(free)) if isinstance(each, Stop)], (
            "the job would gain from more GPUs"
        )
    again = job(1, profile=taught(SMALL, RESIZE), attempt=1, last_replicas=3)
    [launch] = acts(name, crowded(again))
    assert isinstance(launch, Launch)
    assert launch.placement.replicas == 3


@on_every_policy
def test_a_batch_that_needs_a_lost_freedom_is_withdrawn_at_any_cost(name: str) -> None:
    uses = taught(SMALL, RETUNE, RESIZE, atomic_batch=32, accum_steps=3)
    [retune] = acts(name, crowded(running(1, on("a", 0), profile=uses, order=BatchOrder(1, 32, 3))))
    assert isinstance(retune, Retune)
    assert (retune.order.atomic_batch * (retune.order.accum_steps + 1), retune.order.seq) == (64, 2)
    assert "two-passes" in retune.why
    pieces = taught(replace(SMALL, max_atomic_batch=64), ACCUMULATE, atomic_batch=16, accum_steps=3)
    here = crowded(running(1, on("a", 0), spec_=spec(gpus=1, up_to=1), profile=pieces))
    [retune] = acts(name, here)
    assert isinstance(retune, Retune)
    assert (retune.order.accum_steps, retune.order.atomic_batch) == (0, 64)
