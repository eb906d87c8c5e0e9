"""Why a round gives a job other GPUs, in one line each: who gets them, who asked for it, what it
gains. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpq.core.feasibility.device_status import condition, drain_line, gpus, reservation_line
from gpq.core.feasibility.mobility import UNKNOWN, drained_under, is_fixed
from gpq.core.feasibility.reservations import reserved_under
from gpq.core.freedoms import blame, is_cramped
from gpq.core.goodput import estimates
from gpq.core.model.jobs import Job, JobSpec, JobState, StopReason
from gpq.core.model.nodes import DeviceState
from gpq.core.model.placements import Placement, Shape
from gpq.core.model.profile import ACCUMULATE
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.rounds.batch_orders import typed_shape

AFTER = {StopReason.HOLD: " after its user held it", StopReason.REQUEUE: " after `gpq requeue`"}

Placements = Mapping[JobId, Placement]


@dataclass(frozen=True, slots=True)
class Reallocation:
    """What a round changed for one job: GPUs before and after (0: none), and the ratio of its
    goodput then to that before. None if that is not known, or if it had or has no GPUs."""

    job: JobId
    before: int
    after: int
    ratio: float | None
    why: str


def motives(
    snapshot: Snapshot, placements: Placements, secured: Mapping[str, int] | None = None
) -> dict[JobId, str]:
    """One line for every job whose placement this round changes: why. `secured`: the GPUs of the
    floors that this round gives to users whom the policy had left short."""
    reasons: dict[JobId, str] = {}
    for name in sorted(snapshot.jobs):
        job, new_placement = snapshot.jobs[name], placements.get(name)
        if job.placement == new_placement:
            continue
        if job.state is JobState.PENDING and new_placement is not None:
            reasons[name] = _launch(job, new_placement)
        elif job.state is JobState.RUNNING and not is_fixed(job, snapshot):
            reasons[name] = (
                _leave(snapshot, job, new_placement)
                or _for_floor(snapshot, job, placements, secured or {})
                or _change(snapshot, job, new_placement, placements)
            )
    return reasons


def reallocations(
    snapshot: Snapshot, placements: Placements, reasons: Mapping[JobId, str]
) -> tuple[Reallocation, ...]:
    """The changes of all jobs in `reasons`, by id."""
    changes = []
    for name, why in sorted(reasons.items()):
        job, new_placement = snapshot.jobs[name], placements.get(name)
        before, after, ratio = job.replicas, 0, None
        if job.placement is None and job.target is not None:
            # It was stopped a moment ago to resume with another number. It had these then.
            before = job.last_replicas
        if new_placement is not None:
            after = new_placement.replicas
            if job.placement is not None:
                ratio = goodput_ratio(job, new_placement)
        changes.append(Reallocation(name, before, after, ratio, why))
    return tuple(changes)


def _launch(job: Job, new_placement: Placement) -> str:
    count = gpus(new_placement.replicas)
    if not job.attempt:
        return f"starts with {count}"
    text = f"resumes with {count}" if job.movable else f"restarts with {count}"
    if job.last_replicas and job.last_replicas != new_placement.replicas:
        user_wish = own_wish(job.spec, job.last_replicas)
        why = f": {user_wish}" if user_wish else _gain(job, new_placement)
        return f"{text} instead of {job.last_replicas}{_after(job)}{why}"
    return f"{text}{_after(job)}"


def _after(job: Job) -> str:
    """How the attempt before this launch ended, if no decision of a round ended it."""
    if job.stop is not None:
        return AFTER.get(job.stop, "")
    if job.exit is None:
        return ""
    if job.exit.fenced or job.exit.lost:
        return " after it was lost with its server"
    if job.exit.excused:
        return " after a batch that did not fit"
    if job.exit.stopped or job.exit.unlaunched or job.exit.code == 0:
        return ""
    return " after a failure"


def own_wish(spec: JobSpec, gpu_count: int) -> str:
    """`its user asked for 2 to 4 GPUs` if `gpu_count` GPUs are not what the job should now have
    (`gpq edit --gpus`). Otherwise ""."""
    if spec.min_gpus <= gpu_count <= (spec.max_gpus or gpu_count):
        return ""
    return f"its user asked for {asked_gpus(spec)}"


def asked_gpus(spec: JobSpec) -> str:
    """`2 GPUs`, `2 to 4 GPUs`, `2 GPUs or more`."""
    if not spec.max_gpus:
        return f"{gpus(spec.min_gpus)} or more"
    if spec.max_gpus == spec.min_gpus:
        return gpus(spec.min_gpus)
    return f"{spec.min_gpus} to {gpus(spec.max_gpus)}"


def _for_floor(
    snapshot: Snapshot, job: Job, placements: Placements, secured: Mapping[str, int]
) -> str:
    """ "" unless another user gets its devices because of their floor."""
    new_placement = placements.get(job.id)
    users = [snapshot.jobs[name].spec.user for name in _takers(job, new_placement, placements)]
    user = next((user for user in users if user in secured and user != job.spec.user), "")
    if not user or job.idle or own_wish(job.spec, job.replicas):
        return ""
    change = f"stops to free its {gpus(job.replicas)}"
    if new_placement is not None:
        change = f"{job.replicas} -> {gpus(new_placement.replicas)}"
        if new_placement.replicas > job.replicas:
            return ""
        if new_placement.replicas == job.replicas:
            change = f"moves to {new_placement}"
    return f"{change}: user {user} gets their floor of {gpus(secured[user])}"


def _change(
    snapshot: Snapshot, job: Job, new_placement: Placement | None, placements: Placements
) -> str:
    user_wish = own_wish(job.spec, job.replicas)
    if new_placement is None:
        if user_wish:
            return f"stops and waits for {gpus(job.spec.min_gpus)}: {user_wish}"
        purpose = _for_whom(snapshot, job, new_placement, placements)
        return f"stops to free its {gpus(job.replicas)}: {purpose}"
    ratio = goodput_ratio(job, new_placement)
    if new_placement.replicas == job.replicas:
        purpose = "it makes room for larger jobs"
        if ratio is not None and ratio > 1.0:
            purpose = f"it is faster there, goodput x{ratio:.2f} expected"
        elif takers := _takers(job, new_placement, placements):
            purpose = f"job {takers[0]} needs its place"
        return f"moves to {new_placement}: {purpose}"
    text = f"{job.replicas} -> {gpus(new_placement.replicas)}"
    is_growth = new_placement.replicas > job.replicas
    if is_growth and is_cramped(job):  # its loop cannot be split
        return f"{text}: these hold its base batch at once, because {blame(job, ACCUMULATE)}"
    if user_wish:
        return f"{text}: {user_wish}"
    if is_growth:
        return f"{text}{_gain(job, new_placement)}"
    if job.idle:
        return f"{text}: it left GPUs unused"
    if ratio is not None and ratio >= 1.0:
        return f"{text}: fewer are faster, goodput x{ratio:.2f} expected"
    return f"{text}: {_for_whom(snapshot, job, new_placement, placements)}"


def _for_whom(
    snapshot: Snapshot, job: Job, new_placement: Placement | None, placements: Placements
) -> str:
    """Who gets what the job gives: first a waiting job, then a growing one. Jobs on its own devices
    come first. If jobs swap places, another job may be named."""
    takers = _takers(job, new_placement, placements)
    need = _need(snapshot, takers, placements) or _need(snapshot, sorted(placements), placements)
    if need:
        return need
    if takers:
        return f"job {takers[0]} takes its place"
    return f"the policy {snapshot.config.policy} keeps them free"


def _takers(job: Job, new_placement: Placement | None, placements: Placements) -> list[JobId]:
    """Jobs that get devices that the job gives back."""
    freed_devices = _devices(job.placement) - _devices(new_placement)
    return [name for name in sorted(placements) if placements[name].devices & freed_devices]


def _devices(placement: Placement | None) -> frozenset[tuple[NodeId, DeviceId]]:
    return placement.devices if placement is not None else frozenset()


def _need(snapshot: Snapshot, names: Sequence[JobId], placements: Placements) -> str:
    """Why one of these jobs gets more GPUs. "" if none does."""
    for name in names:
        if snapshot.jobs[name].placement is None:
            return f"job {name} needs room"
    for name in names:
        rival = snapshot.jobs[name]
        if placements[name].replicas > rival.replicas:
            user_wish = own_wish(rival.spec, rival.replicas)
            if user_wish:
                return f"job {name} must have more: {user_wish}"
            return f"job {name} gains more from them"
    return ""


def _leave(snapshot: Snapshot, job: Job, new_placement: Placement | None) -> str:
    """ "" if nothing drives it away."""
    why = [drain_line(snapshot, name) for name in drained_under(job, snapshot)]
    why += [
        reservation_line(snapshot, reservation) for reservation in reserved_under(job, snapshot)
    ]
    why += [
        condition(node, device, snapshot.now)
        for node, ids in job.parts
        for device in snapshot.nodes.get(node, UNKNOWN).devices
        if device.id in ids and device.state is not DeviceState.OK
    ]
    if not why:
        return ""
    where = f"stops and waits for {gpus(job.spec.min_gpus)} elsewhere"
    if new_placement is not None:
        where = f"moves to {new_placement}"
    return f"{where}: {', and '.join(why)}"


def _gain(job: Job, new_placement: Placement) -> str:
    if not job.profile.rows:
        return ": its goodput at that size is not known yet"
    ratio = goodput_ratio(job, new_placement)
    if ratio is None:
        return ""
    return f": goodput x{ratio:.2f} expected"


def goodput_ratio(job: Job, new_placement: Placement) -> float | None:
    """Ratio of the modelled goodput of `new_placement` to that of the present shape, or of the last
    one. None if not known."""
    if job.placement:
        before = typed_shape(job.placement)
    else:
        over = {row.nodes for row in job.profile.rows if row.replicas == job.last_replicas}
        if len(over) != 1:
            return None  # its times do not tell over how many servers it was
        before = Shape(job.last_replicas, over.pop(), new_placement.gpu_type)
    points = estimates.curve(job, [before, typed_shape(new_placement)])
    return points[1].goodput / points[0].goodput if len(points) == 2 else None
