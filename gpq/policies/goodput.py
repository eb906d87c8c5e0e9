"""The fairest sum of goodput: every job's gain over its fair share, bent by a power, weighted, and maximised exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpq.core import estimates
from gpq.core.fairness import shares_now, speed_at
from gpq.core.knapsack import solve
from gpq.core.models import HOLDS_DEVICES, Config, Job, JobId, JobState, Level, Seconds, Shape, Snapshot, Wish
from gpq.core.placement import place
from gpq.core.shapes import Supply, feasible, held_by, is_fixed, is_leaving, shape_on, supply
from gpq.core.weights import seconds_left, weights

EPSILON = 1e-3  # what no GPUs at all are worth, in fair shares
FIRST_START = 4  # GPUs, at most one node, of a script that was never profiled
GROWTH = 4  # times the replicas that were profiled: farther the model has not earned trust
LEAST_GAIN = 0.05  # a move must promise this much, however quick the restart: estimates are no better than that
REPAIRS = 12  # times that shapes which cannot be placed together are withdrawn


@dataclass(frozen=True, slots=True)
class _Choice:
    """A job to decide on: its shapes (None: nothing now) and what each is worth, ties in favour of the first."""

    job: Job
    shapes: tuple[Shape | None, ...]
    values: tuple[float, ...]


class Goodput:
    """Chooses n_j GPUs for every job j to maximise the sum of w_j (eps + f(n_j) g_j(n_j) / g_j(fair share))^p.

    g: modelled goodput, f: what a restart leaves of it, w: `weights`, p: the fairness power (1 = sum of speedups, 0 =
    Nash welfare, -1 = Pollux's harmonic mean). Jobs that must not be moved keep what they have.
    """

    name = "goodput"

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Shape]:
        kept = {
            job.id: shape_on(job.placement, snapshot)
            for job in snapshot.jobs.values()
            if job.placement is not None and (job.wish is not Wish.RUN or is_fixed(job, snapshot))
        }
        taken = {device: job for device, job in held_by(snapshot).items() if job in kept}
        waiting = [snapshot.jobs[name] for name in sorted(snapshot.jobs) if name not in kept and _ready(snapshot, name)]
        # The same for all who ask for the same, since none of them holds what is taken.
        kinds = {(job.spec.gpu_type, job.spec.min_gpu_memory_mib): job for job in waiting}
        offer_of = {kind: supply(snapshot, job, taken) for kind, job in kinds.items()}
        offers = {job.id: offer_of[job.spec.gpu_type, job.spec.min_gpu_memory_mib] for job in waiting}
        devices = {(node, device) for offer in offer_of.values() for node, ids in offer.items() for device in ids}
        for job in waiting:
            devices |= job.placement.devices if job.placement is not None else frozenset()
        choices = _choices(snapshot, waiting, offers)
        return kept | _solve(snapshot, choices, len(devices), kept)


def _ready(snapshot: Snapshot, name: JobId) -> bool:
    job = snapshot.jobs[name]
    if job.state in HOLDS_DEVICES:
        return True
    return job.state is JobState.PENDING and job.wish is Wish.RUN and snapshot.now >= job.not_before


def _choices(snapshot: Snapshot, jobs: list[Job], offers: Mapping[JobId, Supply]) -> list[_Choice]:
    shares = shares_now(snapshot)
    options = {job.id: feasible(job, snapshot, offers[job.id]) for job in jobs}
    weight = weights(snapshot, options, shares)
    # Where a job is being moved, it is: what stopped it stands, unless something is worth another restart.
    current = {
        job.id: shape_on(job.placement, snapshot)
        if job.placement is not None and not is_leaving(job, snapshot)
        else job.target
        for job in jobs
    }
    return [
        _choice(snapshot.config, job, current[job.id], options[job.id], offers[job.id], shares[job.id], weight[job.id])
        for job in jobs
    ]


def _choice(
    config: Config,
    job: Job,
    current: Shape | None,
    options: tuple[Shape, ...],
    offer: Supply,
    share: float,
    weight: float,
) -> _Choice:
    """Value of every shape within the growth cap; the shape it has comes first, then nothing, then by size."""
    if (
        job.placement is not None
        and current is not None
        and current not in options
        and current.replicas == job.replicas
    ):
        options = tuple(sorted({*options, current}, key=lambda shape: (shape.replicas, shape.nodes)))
    goodput = estimates.table(job, options)
    speeds = goodput.goodput if goodput is not None else np.zeros(len(options))
    if not speeds.any():  # nothing known: as if it scaled perfectly
        speeds = np.array([float(shape.replicas) for shape in options])
    fair = speed_at([(s.replicas, v) for s, v in zip(options, speeds.tolist(), strict=True) if v > 0], share)
    cap = _cap(job, offer)
    left = seconds_left(job, goodput) if goodput is not None else [None] * len(options)
    shapes: list[Shape | None] = [None]
    relative = [0.0]
    for shape, speed, seconds in zip(options, speeds.tolist(), left, strict=True):
        if speed > 0 and (shape == current or (shape.replicas <= cap and _tidy(shape, options, offer))):
            shapes.append(shape)
            rest = _restart_factor(config, job, current, shape, seconds)
            relative.append(speed / fair * rest if fair > 0 else 0.0)
    values = [weight * bent for bent in _power(np.array(relative) + EPSILON, config.fairness_power).tolist()]
    order = sorted(range(len(shapes)), key=lambda i: (shapes[i] != current, i))
    return _Choice(job, tuple(shapes[i] for i in order), tuple(values[i] for i in order))


def _power(utility: np.ndarray, p: float) -> np.ndarray:
    """u^p for p > 0, log u for p = 0, -u^p for p < 0: always growing, the more bent the smaller p is."""
    bent: np.ndarray = np.log(utility) if p == 0 else np.sign(p) * utility**p
    return bent


def _restart_factor(config: Config, job: Job, current: Shape | None, shape: Shape, seconds: Seconds | None) -> float:
    """f(n) = (H - R) / H where `shape` costs a restart, R its restart time, at most 1 / (1 + LEAST_GAIN); else 1.

    A job that was stopped pays when it goes on, so that two jobs do not take turns at every round. One that would end in
    `seconds` at this shape has no more than these to make up for the restart in.
    """
    if job.attempt == 0 or shape == current:
        return 1.0
    restart = job.restart_seconds if job.restart_seconds is not None else config.restart_seconds
    left = max(1.0 - restart / config.hysteresis_seconds if config.hysteresis_seconds > 0 else 1.0, 0.1)
    if seconds is not None and current is not None:
        left = min(left, seconds / (seconds + restart))
    return min(left, 1.0 / (1.0 + LEAST_GAIN))


def _cap(job: Job, offer: Supply) -> int:
    """Most GPUs it may be given now; a job that is not elastic has no choice anyway."""
    if job.spec.level is not Level.SCRIPT:
        return job.spec.min_gpus
    node = max((len(devices) for devices in offer.values()), default=0)
    return max(job.spec.min_gpus, min(FIRST_START, node), GROWTH * job.profile.max_replicas)


def _tidy(shape: Shape, options: tuple[Shape, ...], offer: Supply) -> bool:
    """Among several nodes, parts of a node are powers of two (or all that a job may have): the pieces then fit together
    and nodes are not left with crumbs. On one node every number is tidy."""
    if len(offer) <= 1 or shape.nodes > 1 or shape in (options[0], options[-1]):
        return True
    return shape.replicas & (shape.replicas - 1) == 0 or any(shape.replicas == len(ids) for ids in offer.values())


def _solve(
    snapshot: Snapshot, choices: list[_Choice], capacity: int, kept: Mapping[JobId, Shape]
) -> dict[JobId, Shape]:
    """The best choice that can also be placed: counts that fit the sum may not fit the nodes, so what cannot be placed
    is withdrawn and the rest chosen anew."""
    allocation: dict[JobId, Shape] = {}
    for _ in range(REPAIRS):
        items = [
            [(shape.replicas if shape else 0, value) for shape, value in zip(c.shapes, c.values, strict=True)]
            for c in choices
        ]
        picked = solve(items, capacity) or [choice.shapes.index(None) for choice in choices]
        chosen = [(choice.job.id, choice.shapes[option]) for choice, option in zip(choices, picked, strict=True)]
        allocation = {name: shape for name, shape in chosen if shape is not None}
        placed = place(snapshot, {**kept, **allocation})
        lost = [name for name in allocation if name not in placed]
        if not lost:
            break
        worst = max(lost, key=lambda name: (allocation[name].nodes > 1, -snapshot.jobs[name].spec.priority, name))
        choices = [_without(c, allocation[worst]) if c.job.id == worst else c for c in choices]
        allocation = {name: shape for name, shape in allocation.items() if name in placed}
    return allocation


def _without(choice: _Choice, shape: Shape) -> _Choice:
    """The choice less a shape that found no place, and less the larger ones that span nodes if it does."""
    left = [
        (other, value)
        for other, value in zip(choice.shapes, choice.values, strict=True)
        if other is None
        or not (other == shape or (shape.nodes > 1 and other.nodes > 1 and other.replicas >= shape.replicas))
    ]
    return _Choice(choice.job, tuple(s for s, _ in left), tuple(v for _, v in left))
