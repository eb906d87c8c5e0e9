"""Optimus (EuroSys'18, as in Pollux's artifact) and SLAQ (SoCC'17): one more GPU to the job that
gains most.

Optimus gives it where it saves the most time. SLAQ gives it where the loss falls fastest, so that
the quality over all jobs rises soonest. Both use the same loop and the same way to choose nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from gpq.core.feasibility.shapes import node_counts, pack
from gpq.core.goodput.batches import limits_of, split_base
from gpq.core.goodput.goodput import iteration_time
from gpq.core.goodput.models import model_of
from gpq.core.model.jobs import Allotment, Job
from gpq.core.model.placements import Layout, Shape
from gpq.core.model.policy import Policy
from gpq.core.model.profile import LossPoint
from gpq.core.model.snapshot import Oracle, Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.core.placement import FreeDevices, emptiest
from gpq.lab.policies.sizing import Contender, entrants

Gain = Callable[[int], float]  # of k + 1 GPUs over k, in the unit of the policy
StepSeconds = Callable[[int], Seconds | None]
Array = NDArray[np.float64]
LEAST_POINTS = 4
CONVERGED = 0.01  # share of the fall so far that an epoch must gain, or training has converged
# how far the floor may be below the lowest loss, in units of the fall so far
_FLOORS = np.geomspace(1e-3, 30.0, 60)
UNKNOWN_EPOCH = 0.1  # share of the steps so far that counts as an epoch if none was declared


class Optimus(Policy):
    """First every job gets its minimum, in the order of submission. Then one GPU at a time goes to
    the job with the largest (T(K) - T(K+1)) Q, as long as a job gains. T is the time of a step at
    the job's own batch size, Q the number of steps that it has left.

    A job that keeps its number of GPUs is not moved. The cost of a restart does not count, as in
    the paper.
    """

    name = "optimus"
    sentence = "Optimus (EuroSys'18): the next GPU goes where it saves the most time"
    own_batch = True

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        round_ = entrants(snapshot)
        gains = {c.job.id: _time_saved(c, snapshot) for c in round_.contenders}
        return allot(snapshot, round_.fixed_shapes, round_.contenders, gains)


def _time_saved(contender: Contender, snapshot: Snapshot) -> Gain:
    oracle = snapshot.oracles.get(contender.job.id)
    steps, seconds = remaining_steps(contender.job, oracle), step_seconds(contender, oracle)

    def gain(replicas: int) -> float:
        current, faster = seconds(replicas), seconds(replicas + 1)
        if current is None or faster is None:
            return 0.0
        return (current - faster) * steps

    return gain


class Slaq(Policy):
    """First every job gets its minimum, jobs with the fastest falling loss first. Then one GPU at a
    time goes to the job whose loss it lowers most until the next round. The unit is the largest
    change of that job's loss so far.

    A job without a loss curve counts as if its whole loss could still fall, so new jobs come first.
    Jobs that have nearly converged get little, by design. The cost of a restart does not count.
    """

    name = "slaq"
    sentence = "SLAQ (SoCC'17): GPUs go to the jobs whose loss falls fastest"
    own_batch = True
    by_loss = True

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        round_ = entrants(snapshot)
        falls = {c.job.id: _fall(c, snapshot) for c in round_.contenders}
        order = sorted(
            round_.contenders,
            key=lambda c: (-c.job.spec.priority, -falls[c.job.id](c.least) / c.least),
        )
        return allot(
            snapshot,
            round_.fixed_shapes,
            order,
            {name: _one_more(fall) for name, fall in falls.items()},
        )


def _fall(contender: Contender, snapshot: Snapshot) -> Gain:
    """The share of its loss that this many GPUs remove in a round. Without a curve k / (k + 1), as
    if one GPU removed half of it."""
    job = contender.job
    curve = loss_curve(job.profile.losses)
    seconds, steps = step_seconds(contender, snapshot.oracles.get(job.id)), steps_done(job)

    def fall(replicas: int) -> float:
        if curve is None:
            return replicas / (replicas + 1.0)
        step = seconds(replicas)
        if step is None:
            return 0.0
        return curve.gain(steps, snapshot.config.interval / step)

    return fall


def _one_more(fall: Gain) -> Gain:
    return lambda replicas: fall(replicas + 1) - fall(replicas)


def allot(
    snapshot: Snapshot,
    fixed_shapes: Mapping[JobId, Shape],
    contenders: Sequence[Contender],
    gains: Mapping[JobId, Gain],
) -> dict[JobId, Allotment]:
    """What jobs keep, and layouts for the `counts` of the contenders."""
    return {
        **fixed_shapes,
        **layouts(snapshot, contenders, counts(contenders, gains), fixed_shapes),
    }


def counts(contenders: Sequence[Contender], gains: Mapping[JobId, Gain]) -> dict[JobId, int]:
    """In this order, each job gets its minimum while there are GPUs. Then one GPU at a time goes
    where the gain is largest and positive, and the earlier job wins a tie. O(GPUs log jobs)."""
    devices: dict[str, set[tuple[NodeId, str]]] = {}
    for contender in contenders:
        offer_devices = {(node, device) for node, ids in contender.offer.items() for device in ids}
        devices.setdefault(contender.gpu_type, set()).update(offer_devices)
    free = {gpu_type: len(pairs) for gpu_type, pairs in devices.items()}
    replicas: dict[JobId, int] = {}
    for contender in contenders:
        if free[contender.gpu_type] >= contender.least:
            replicas[contender.job.id] = contender.least
            free[contender.gpu_type] -= contender.least
    heap = [
        (-gains[c.job.id](c.least), order, c.least)
        for order, c in enumerate(contenders)
        if c.job.id in replicas and c.least < c.most
    ]
    heapify(heap)
    while heap:
        gain, order, count = heappop(heap)
        contender = contenders[order]
        if gain >= 0 or free[contender.gpu_type] < 1:
            continue
        count += 1
        replicas[contender.job.id] = count
        free[contender.gpu_type] -= 1
        if count < contender.most:
            heappush(heap, (-gains[contender.job.id](count), order, count))
    return replicas


def layouts(
    snapshot: Snapshot,
    contenders: Sequence[Contender],
    replicas: Mapping[JobId, int],
    fixed_jobs: Iterable[JobId],
) -> dict[JobId, Layout]:
    """Nodes for these counts. A job that keeps its count stays on its nodes. The others, fewest
    GPUs first, take the node with most free GPUs, then the next, as in Pollux's Optimus. Jobs that
    need one node come first. If one of those does not fit, everybody moves. If it still does not
    fit, it waits."""
    stayers = {c.job.id for c in contenders if replicas.get(c.job.id) == c.job.replicas}
    homes = _laid_out(contenders, replicas, FreeDevices(snapshot, fixed_jobs), stayers)
    if any(c.job.id in replicas and c.job.id not in homes for c in contenders):
        new_homes = _laid_out(contenders, replicas, FreeDevices(snapshot, fixed_jobs), set())
        if len(new_homes) > len(homes):
            return new_homes
    return homes


def _laid_out(
    contenders: Sequence[Contender],
    replicas: Mapping[JobId, int],
    board: FreeDevices,
    stayers: set[JobId],
) -> dict[JobId, Layout]:
    homes: dict[JobId, Layout] = {}
    for contender in contenders:
        placement = contender.job.placement
        if contender.job.id in stayers and placement is not None:
            board.take(placement)
            homes[contender.job.id] = Layout(placement.counts, contender.gpu_type)
    seekers = [c for c in contenders if c.job.id in replicas and c.job.id not in homes]

    def turn(contender: Contender) -> int:
        """Jobs that need one node for several GPUs come first, the largest before the others. Then
        jobs that may spread, the smallest first."""
        count = replicas[contender.job.id]
        return count if contender.spreads or count == 1 else -count

    seekers.sort(key=turn)
    for contender in seekers:
        layout = _emptiest(board, contender, replicas[contender.job.id])
        if layout is None:
            continue
        placement = board.find(contender.job, layout)
        if placement is not None:
            board.take(placement)
            homes[contender.job.id] = layout
    return homes


def _emptiest(board: FreeDevices, contender: Contender, count: int) -> Layout | None:
    """That many GPUs on the nodes with most free ones. If there are fewer, all of them, as long as
    they are enough for its minimum."""
    parts = emptiest(board.counts(board.kind(contender.job, contender.gpu_type)), count)
    least = contender.least
    if not contender.spreads:
        parts, least = parts[:1], count
    if sum(devices for _, devices in parts) < least:
        return None
    return Layout(
        tuple(sorted((board.nodes[at].id, devices) for at, devices in parts)), contender.gpu_type
    )


def step_seconds(contender: Contender, oracle: Oracle | None) -> StepSeconds:
    """Seconds of a step at the requested batch size on this many GPUs, packed on the largest nodes.
    None if unknown, or if each GPU would get less than the smallest micro-batch."""
    sizes, level = node_counts(contender.offer), contender.job.spec.level
    model = model_of(contender.job.profile, contender.gpu_type) if oracle is None else None
    declaration = contender.job.profile.declared
    limits = limits_of(declaration, contender.gpu_type) if declaration is not None else None

    def seconds(replicas: int) -> Seconds | None:
        shape = pack(replicas, sizes, level, contender.gpu_type)
        if shape is None or (limits is not None and replicas * limits.min_atomic > limits.base):
            return None
        if oracle is not None:
            return oracle.step_seconds(shape)
        if model is None:
            return None
        return float(
            iteration_time(
                model.params, shape.nodes, shape.replicas, *split_base(model.limits, replicas)
            )
        )

    return seconds


def remaining_steps(job: Job, oracle: Oracle | None) -> float:
    """Steps left at the requested batch size: the oracle knows it. Otherwise the declared length
    says it, then the loss curve. Otherwise it is as many as were done."""
    if oracle is not None:
        return oracle.remaining_steps
    declaration, left = job.profile.declared, job.profile.length_left
    if declaration is not None and left is not None and declaration.batch_size > 0:
        return left / declaration.batch_size
    steps, curve = steps_done(job), loss_curve(job.profile.losses)
    if curve is None:
        return max(steps, 1.0)
    epoch = UNKNOWN_EPOCH * steps
    if declaration is not None and declaration.dataset_size > 0 and declaration.batch_size > 0:
        epoch = declaration.dataset_size / declaration.batch_size
    return curve.remaining_steps(steps, epoch)


def steps_done(job: Job) -> float:
    """Steps at the base batch size."""
    steps = 0.0
    if job.profile.progress is not None:
        steps = max(steps, job.profile.progress.base_steps)
    if job.profile.losses:
        steps = max(steps, job.profile.losses[-1].base_steps)
    return steps


@dataclass(frozen=True, slots=True)
class Curve:
    """How a loss will fall: l(k) = 1 / (b0 k + b1) + b2 (Optimus, 3.1). k counts steps at the base
    batch size. `fall`: the largest change of the loss so far, from highest to lowest."""

    b0: float  # > 0
    b1: float  # >= 0
    b2: float
    fall: float  # > 0

    def loss(self, steps: float) -> float:
        return 1.0 / (self.b0 * steps + self.b1) + self.b2

    def gain(self, steps: float, extra_steps: float) -> float:
        """What `extra_steps` after `steps` remove from the loss, in units of `fall`, so that jobs
        are comparable."""
        start, end = self.b0 * steps + self.b1, self.b0 * (steps + extra_steps) + self.b1
        if start <= 0:
            return 1.0
        return (1.0 / start - 1.0 / end) / self.fall

    def remaining_steps(self, steps: float, epoch: float) -> float:
        """Steps until `epoch` more steps gain less than `CONVERGED` of `fall`: b0 epoch / (b0 k +
        b1)^2 = CONVERGED fall."""
        end = (sqrt(self.b0 * epoch / (CONVERGED * self.fall)) - self.b1) / self.b0
        return max(end - steps, 0.0)


@lru_cache(maxsize=1024)
def loss_curve(points: tuple[LossPoint, ...]) -> Curve | None:
    """Non-negative least squares of b0 k + b1 to 1 / (l - b2), weighted so that errors count as
    errors of l. This tries a series of floors b2 and keeps the best. None if there are too few
    points, or if the loss does not fall."""
    if len(points) < LEAST_POINTS:
        return None
    steps = np.array([point.base_steps for point in points])
    raw = np.array([point.loss for point in points])
    # each loss but the first and last is limited to the range of its neighbours, so that a spike is
    # no change
    middle = np.median(np.stack([raw[:-2], raw[1:-1], raw[2:]]), axis=0)
    losses = np.concatenate([raw[:1], middle, raw[-1:]])
    has_fallen = np.isfinite(losses).all() and losses.max() > losses.min()
    if not has_fallen or steps.max() <= 0:
        return None
    fall = float(losses.max() - losses.min())
    best_error, best = np.inf, None
    for floor in losses.min() - fall * _FLOORS:
        if losses.min() >= 0 > floor:
            floor = 0.0  # a loss that was never negative stays so
        error, curve = _curve(steps, losses, floor)
        if curve is not None and (best is None or error < best_error):
            best_error, best = error, curve
        if floor == 0.0:
            break
    return best


def _curve(steps: Array, losses: Array, floor: float) -> tuple[float, Curve | None]:
    """(mean squared error, the curve) above a floor. None if it does not fall."""
    from scipy.optimize import nnls

    fall, length = float(losses.max() - losses.min()), float(steps.max())
    above = losses - floor
    weight = above**2  # an error e of 1 / above is an error above^2 e of the loss
    solution, _ = nnls(np.stack([steps / length * weight, weight], axis=1), weight / above)
    b0, b1 = float(solution[0]), float(solution[1])
    if b0 <= 0:
        return np.inf, None
    error = float(
        np.mean((1.0 / np.maximum(b0 * steps / length + b1, 1e-300) + floor - losses) ** 2)
    )
    return error, Curve(b0 / length, b1, float(floor), fall)
