"""The rules that every policy keeps, whatever its aim: on random clusters and queues of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpq.core.answers import fault
from gpq.core.feasibility.mobility import is_fixed
from gpq.core.feasibility.shapes import gpu_range, shape_on, usable
from gpq.core.goodput import goodput as gp
from gpq.core.model.jobs import HOLDS_DEVICES, DesiredState, Job, JobState, Level, StopReason
from gpq.core.model.nodes import DeviceState, Node, NodeState
from gpq.core.model.placements import Placement, Shape
from gpq.core.model.policy import shape_of
from gpq.core.model.profile import Declared, LossPoint, Noise, Profile, ProfileRow, Progress
from gpq.core.model.snapshot import Config, Oracle, Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.placement import place
from gpq.policies.registry import POLICIES, policy
from tests.support.builders import DECLARED, PARAMS, brief, job, node, snapshot, spec
from tests.support.examples import examples

NAMES = sorted(POLICIES)
NOW = 10_000.0
SLICE = "A100 MIG 3g.40gb"
TYPES = ("A100", "RTX", "T4", SLICE)
ROWS = tuple(
    ProfileRow(n, k, m, float(gp.grad_time(PARAMS, m)), float(gp.step_time(PARAMS, n, k, m)), 50.0)
    for n, k in ((1, 1), (1, 2), (2, 4))
    for m in (16, 64)
)
LOSSES = tuple(LossPoint(100.0 * i, 1.0 / (1 + i)) for i in range(8))

on_every_policy = pytest.mark.parametrize("name", NAMES)
drawn = settings(
    max_examples=examples(40),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass(frozen=True, slots=True)
class Known:
    """An oracle for a job that scales linearly and does not fit into the memory of one type."""

    remaining_steps: float
    too_small: str

    def step_seconds(self, shape: Shape) -> float | None:
        return None if shape.gpu_type == self.too_small else 1.0 / shape.replicas


@st.composite
def machines(draw: st.DrawFn, number: int, types: Sequence[str]) -> Node:
    states = st.sampled_from([NodeState.UP] * 8 + [NodeState.DRAINED, NodeState.UNREACHABLE])
    made = node(f"n{number}", draw(st.sampled_from([4, 2, 1, 3, 6])), state=draw(states))
    conditions = st.sampled_from([DeviceState.OK] * 9 + [DeviceState.FOREIGN, DeviceState.DEGRADED, DeviceState.LOST])
    alike = draw(st.integers(0, 3)) > 0
    kind, memory = draw(st.sampled_from(types)), draw(st.sampled_from([16_000, 80_000]))
    devices = tuple(
        replace(
            device,
            type=kind if alike else draw(st.sampled_from(types)),
            memory_mib=memory if alike else draw(st.sampled_from([16_000, 80_000])),
            state=draw(conditions),
        )
        for device in made.devices
    )
    return replace(made, devices=devices)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    stage = draw(st.sampled_from([2, 1, 3, 2, 3, 0]))
    if stage == 0:
        return Profile()
    declared = draw(st.sampled_from([DECLARED, Declared(adaptive=False, batch_size=64, max_atomic_batch=64)]))
    if stage == 1:
        return Profile(declared=declared)
    progress = Progress(3, 10, 30_000, 400, 450.0, draw(st.sampled_from([0.01, 0.3, 0.9]))) if stage == 3 else None
    return Profile(
        declared=declared,
        rows=ROWS[: draw(st.sampled_from([2, 4, 6]))],
        noise=Noise(1.0, 500.0, 1000),
        progress=progress,
        samples_per_second=draw(st.sampled_from([0.0, 800.0])),
        losses=LOSSES if draw(st.booleans()) else (),
    )


@st.composite
def jobs(draw: st.DrawFn, number: int, free: dict[NodeId, dict[str, list[DeviceId]]]) -> Job:
    level, gpus = (
        draw(st.sampled_from([Level.SCRIPT, Level.SIGNAL, Level.SCRIPT, Level.BLACK_BOX])),
        draw(st.sampled_from([2, 1, 3, 4, 5])),
    )
    asked = spec(
        level=level,
        user=draw(st.sampled_from(["ana", "bo"])),
        gpus=gpus,
        up_to=draw(st.sampled_from([0, gpus, gpus + 3])),
        rigid=draw(st.sampled_from([False] * 7 + [True])),
        priority=draw(st.integers(-1, 1)),
        time_limit=draw(st.sampled_from([None, None, 20_000.0])),
        gpu_type=draw(st.sampled_from(["", "", "", "", "", "T4", "a100"])),
        min_gpu_memory_mib=draw(st.sampled_from([0, 0, 40_000])),
    )
    made = job(
        number,
        at=draw(st.sampled_from([0.0, 500.0, 9_990.0])),
        spec_=asked,
        profile=draw(profiles()),
        service=draw(st.sampled_from([0.0, 3_000.0, 90_000.0])),
        run_seconds=draw(st.sampled_from([0.0, 600.0])),
        attempt=draw(st.integers(0, 2)),
    )
    placement = _seat(made, gpus + draw(st.integers(0, 2)), free) if draw(st.booleans()) else None
    if placement is None:
        waits = draw(st.sampled_from([JobState.PENDING] * 5 + [JobState.HELD]))
        wish = (
            DesiredState.HOLD
            if waits is JobState.HELD
            else draw(st.sampled_from([DesiredState.RUN] * 5 + [DesiredState.HOLD]))
        )
        return replace(made, state=waits, wish=wish, not_before=draw(st.sampled_from([0.0] * 5 + [NOW + 60])))
    state = draw(st.sampled_from([JobState.RUNNING] * 8 + [JobState.STARTING, JobState.STOPPING]))
    since = draw(st.sampled_from([600.0, 9_000.0, 600.0, NOW - 5]))
    stops = state is JobState.STOPPING
    return replace(
        made,
        state=state,
        attempt=made.attempt + 1,
        placement=placement,
        launched_at=since,
        started_at=None if state is JobState.STARTING else since,
        wish=draw(st.sampled_from([DesiredState.RUN] * 8 + [DesiredState.HOLD, DesiredState.CANCEL])),
        stop=draw(st.sampled_from([StopReason.PREEMPT, StopReason.RESIZE, StopReason.HOLD])) if stops else None,
        stop_sent_at=NOW - 20 if stops else None,
        last_replicas=placement.replicas,
    )


def _seat(made: Job, gpus: int, free: dict[NodeId, dict[str, list[DeviceId]]]) -> Placement | None:
    """Takes devices of one type, as many as `gpus` allows, from one server or (scripts) several."""
    for kind in TYPES:
        fewest, most = gpu_range(made, 100, kind)
        if kind == SLICE and fewest > 1:
            continue
        missing, parts = min(max(gpus, fewest), most), []
        for name in sorted(free):
            here = free[name].get(kind, [])
            count = min(missing, len(here))
            if count and (made.spec.level is Level.SCRIPT or count == missing):
                parts.append((name, tuple(here[:count])))
                missing -= count
        if not missing:
            for name, devices in parts:
                free[name][kind] = free[name][kind][len(devices) :]
            return Placement(tuple(parts), kind)
    return None


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    types = draw(st.sampled_from([TYPES[:1], TYPES[:1], TYPES[:3], TYPES[-1:], TYPES]))
    nodes = [draw(machines(number, types)) for number in range(draw(st.sampled_from([3, 4, 2, 1])))]
    free: dict[NodeId, dict[str, list[DeviceId]]] = {each.id: {} for each in nodes}
    for each in nodes:
        for device in each.devices:
            free[each.id].setdefault(device.type, []).append(device.id)
    queue = [draw(jobs(number, free)) for number in range(1, draw(st.sampled_from([8, 6, 10, 3])) + 1)]
    oracles: dict[JobId, Oracle] = {}
    if draw(st.booleans()):
        oracles = {each.id: Known(1000.0 * each.id, draw(st.sampled_from(["", "T4"]))) for each in queue}
    made = snapshot(*nodes, *queue, now=NOW)
    return replace(made, config=Config(interval=60.0, seed=7), oracles=oracles)


def must_stay(each: Job, here: Snapshot) -> bool:
    return each.placement is not None and (each.wish is not DesiredState.RUN or is_fixed(each, here))


def check_allowed(here: Snapshot, number: JobId, placement: Placement, *, gang: bool) -> None:
    """The job keeps what it holds, or may have the placement."""
    each = here.jobs[number]
    if placement == each.placement:
        return
    assert each.wish is DesiredState.RUN
    assert each.state in HOLDS_DEVICES or (each.state is JobState.PENDING and here.now >= each.not_before)
    fewest, most = gpu_range(each, 1000, placement.gpu_type)
    assert fewest <= placement.replicas <= most
    assert not gang or placement.replicas == each.spec.min_gpus
    assert each.spec.level is Level.SCRIPT or len(placement.parts) == 1
    devices = [d for n in here.nodes.values() for d in n.devices if (n.id, d.id) in placement.devices]
    assert len({device.type for device in devices}) == 1
    assert all(usable(device, each.spec) for device in devices)
    assert all(here.nodes[where].state is NodeState.UP for where, _ in placement.parts)


@on_every_policy
@drawn
@given(here=snapshots())
def test_every_named_shape_can_be_placed_and_is_allowed_for_the_job(name: str, here: Snapshot) -> None:
    allocation = brief(name).allocate(here)
    assert not fault(allocation, here)
    placed = place(here, allocation)
    assert set(placed) == set(allocation)
    given_away = [device for placement in placed.values() for device in placement.devices]
    assert len(given_away) == len(set(given_away))
    for number, placement in placed.items():
        assert shape_of(allocation[number]) == shape_on(placement, here)
        check_allowed(here, number, placement, gang=POLICIES[name].gang)


@on_every_policy
@drawn
@given(here=snapshots())
def test_immovable_jobs_keep_their_shapes_and_devices(name: str, here: Snapshot) -> None:
    allocation = brief(name).allocate(here)
    placed = place(here, allocation)
    for number, each in here.jobs.items():
        if must_stay(each, here):
            assert each.placement is not None
            assert shape_of(allocation[number]) == shape_on(each.placement, here)
            assert placed[number] == each.placement


@on_every_policy
@drawn
@given(here=snapshots())
def test_the_order_of_a_snapshot_does_not_change_the_answer(name: str, here: Snapshot) -> None:
    first = brief(name).allocate(here)
    assert brief(name).allocate(here) == first
    backwards = replace(
        here,
        nodes=dict(reversed(here.nodes.items())),
        jobs=dict(reversed(here.jobs.items())),
        oracles=dict(reversed(here.oracles.items())),
    )
    assert brief(name).allocate(backwards) == first


@on_every_policy
def test_an_empty_snapshot_causes_no_error(name: str) -> None:
    assert policy(name).allocate(Snapshot()) == {}
    assert policy(name).allocate(snapshot(node("a"))) == {}
    assert policy(name).allocate(snapshot(job(1))) == {}
