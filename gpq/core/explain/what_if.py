"""What one more GPU would be worth to a running job, and what the others would lose by giving it,
in their own goodput."""

from __future__ import annotations

from dataclasses import dataclass

from gpq.core.explain.reasons import Reason, reason
from gpq.core.feasibility.mobility import held_by, is_fixed
from gpq.core.feasibility.shapes import by_type, feasible, shape_on, supply
from gpq.core.goodput import estimates
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.core.rounds.batch_orders import typed_shape


@dataclass(frozen=True, slots=True)
class Change:
    """`gpus` instead of the present number, and the ratio of its goodput then to that now."""

    job: JobId
    gpus: int
    ratio: float
    gpu_type: str = ""  # if there are several


def more(snapshot: Snapshot, job: Job) -> Change | None:
    """With the next larger number of GPUs that it could have here. None if there is none, or if
    nothing is known."""
    return _change(snapshot, job, +1)


def fewer(snapshot: Snapshot, job: Job) -> Change | None:
    return _change(snapshot, job, -1)


def _change(snapshot: Snapshot, job: Job, way: int) -> Change | None:
    if job.placement is None or not job.elastic:
        return None
    here = typed_shape(job.placement)
    counts = sorted({shape.replicas for shape in feasible(job, snapshot)}, reverse=way < 0)
    count = next((number for number in counts if (number - here.replicas) * way > 0), None)
    if count is None:
        return None
    there = [
        (_goodput(job, shape), shape.gpu_type)
        for shape in feasible(job, snapshot)
        if shape.replicas == count
    ]
    now, (best, gpu_type) = _goodput(job, here), max(there)
    return Change(job.id, count, best / now, gpu_type) if now > 0 and best > 0 else None


def _goodput(job: Job, shape: Shape) -> float:
    points = estimates.curve(job, [shape])
    return points[0].goodput if points else 0.0


def givers(snapshot: Snapshot, job: Job) -> list[Change]:
    """The other running jobs that could give GPUs. Those that would lose least come first."""
    runners = [
        runner
        for runner in snapshot.jobs.values()
        if runner.id != job.id and runner.state is JobState.RUNNING
    ]
    changes = [change for runner in runners if (change := fewer(snapshot, runner)) is not None]
    return sorted(changes, key=lambda change: (-change.ratio, change.job))


def free(snapshot: Snapshot, job: Job, gpu_type: str = "") -> int:
    """Unheld GPUs that the job could use now. Their servers answer and are not drained, and the
    GPUs are in order and reserved for nobody else. If a type is given, only GPUs of that type."""
    offer = by_type(supply(snapshot, job, held_by(snapshot)), snapshot)
    own = job.placement.devices if job.placement is not None else frozenset()
    return sum(
        (node, device) not in own
        for name, nodes in offer.items()
        if gpu_type in ("", name)
        for node, devices in nodes.items()
        for device in devices
    )


def reasons(snapshot: Snapshot, job: Job) -> list[Reason]:
    """Empty if its goodput is not known."""
    change = more(snapshot, job)
    if change is None:
        return []
    if change.ratio <= 1:
        return [reason("more-gpus-no-faster", gpus=change.gpus, ratio=change.ratio)]
    worth = {"gpus": change.gpus, "ratio": change.ratio}
    if snapshot.config.gang:
        return [reason("more-gpus-gang", policy=snapshot.config.policy, **worth)]
    own = job.replicas if change.gpu_type == typed_on(snapshot, job) else 0
    unused = free(snapshot, job, change.gpu_type)
    if unused >= change.gpus - own:
        return [reason(_obstacle(snapshot, job), unused=unused, **worth)]
    rivals = givers(snapshot, job)
    if not rivals:
        return [reason("more-gpus-no-giver", **worth)]
    return [reason("more-gpus", **worth), reason("givers", changes=rivals[:2])]


def _obstacle(snapshot: Snapshot, job: Job) -> str:
    """Why it does not have the free GPUs that would make it faster."""
    if job.idle:
        return "more-gpus-but-idle"
    if is_fixed(job, snapshot):
        return "more-gpus-but-just-moved"
    return "more-gpus-not-worth-restart"


def typed_on(snapshot: Snapshot, job: Job) -> str:
    """The type of its GPUs as shapes name it. "" if all GPUs have one type."""
    return shape_on(job.placement, snapshot).gpu_type if job.placement is not None else ""
