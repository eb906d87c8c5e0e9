"""How long a simulated job would take alone on a share of the cluster, which is the reference of
finish-time fairness.

The job starts at once, pays one start, and trains at the best batch size of every epoch, by the
true times. Nobody else is there. A share that is not a whole shape is interpolated between the two
around it (Sia's definition, schedulers.md 1.5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpq.core.goodput.batches import BatchLimits, candidate_batches
from gpq.core.model.nodes import Node
from gpq.core.model.units import Seconds
from gpq.sim.measurements.ground_truth import Task, Truth
from gpq.sim.measurements.timings import NotMeasured

Array = NDArray[np.float64]


class Alone:
    """Times alone on the nodes of one cluster."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        sizes: dict[str, list[int]] = {}
        for node in nodes:
            for kind, count in Counter(device.type for device in node.devices).items():
                sizes.setdefault(kind, []).append(count)
        self.sizes = {kind: tuple(sorted(sizes[kind], reverse=True)) for kind in sorted(sizes)}

    def seconds(self, task: Task, jobs: float) -> Seconds | None:
        """Seconds, start included, on 1 / `jobs` of the GPUs of every type that it may use: the
        mean over the types, weighted by their GPUs. None if the data do not say."""
        kinds = {
            kind: sum(sizes)
            for kind, sizes in self.sizes.items()
            if task.gpu_type.lower() in kind.lower()
        }
        times = [(gpus, self._on_type(task, kind, gpus / jobs)) for kind, gpus in kinds.items()]
        weighted_times = [(gpus, seconds) for gpus, seconds in times if seconds is not None]
        weight = sum(gpus for gpus, _ in weighted_times)
        if not weight:
            return None
        return sum(gpus * seconds for gpus, seconds in weighted_times) / weight

    def speed_on_one(self, truth: Truth, gpu_type: str, epoch: int) -> float:
        """Best true progress on one GPU during an epoch, base-batch steps per second. 0 if it
        cannot run on one."""
        speeds = best_speeds(truth, gpu_type, ((1,),))
        return float(speeds[min(epoch, len(speeds) - 1), 0])

    def _on_type(self, task: Task, kind: str, share: float) -> Seconds | None:
        truth = task.truth
        shapes = _shapes(self.sizes[kind], truth.most_replicas or sum(self.sizes[kind]))
        if task.rigid:
            shapes = tuple(counts for counts in shapes if sum(counts) <= task.replicas)
        speeds = best_speeds(truth, kind, shapes)
        counts = np.array([0.0, *(sum(counts) for counts in shapes)])
        best_so_far = np.maximum.accumulate(np.hstack([np.zeros((len(speeds), 1)), speeds]), axis=1)
        at_share = np.array([np.interp(share, counts, row) for row in best_so_far])
        if (at_share <= 0).any():
            return None
        work = np.diff([truth.progress(epoch) for epoch in range(truth.epochs + 1)])
        return task.restart + float((work / at_share).sum()) * task.slowdown


def _shapes(sizes: tuple[int, ...], most: int) -> tuple[tuple[int, ...], ...]:
    """Packed shapes: parts of the largest node, then whole nodes, the largest first."""
    whole_nodes = (sizes[:nodes] for nodes in range(2, len(sizes) + 1))
    node_parts = ((count,) for count in range(1, min(sizes[0], most) + 1))
    return (*node_parts, *(counts for counts in whole_nodes if sum(counts) <= most))


_REMEMBERED: dict[tuple[int, str, tuple[tuple[int, ...], ...]], tuple[Truth, Array]] = {}


def best_speeds(truth: Truth, kind: str, shapes: tuple[tuple[int, ...], ...]) -> Array:
    """True progress at the best batch size, epochs x shapes, base-batch steps per second. 0 without
    measurements."""
    entry = _REMEMBERED.get((id(truth), kind, shapes))
    if entry is not None and entry[0] is truth:
        return entry[1]
    speeds = np.zeros((truth.epochs, len(shapes)))
    for column, counts in enumerate(shapes):
        totals, seconds = _candidates(truth, kind, counts)
        for epoch in range(truth.epochs):
            best = 0.0
            for total, step in zip(totals, seconds, strict=True):
                sqr, var = truth.stats(total, epoch)
                best = max(best, (var + sqr) / (var * truth.base_batch / total + sqr) / step)
            speeds[epoch, column] = best
    _REMEMBERED[id(truth), kind, shapes] = truth, speeds
    return speeds


def _candidates(
    truth: Truth, kind: str, counts: tuple[int, ...]
) -> tuple[list[float], list[Seconds]]:
    """(batch sizes, seconds per step) measured on these GPUs."""
    least, most = truth.limits(kind)
    base = truth.fixed_batch or truth.base_batch
    limits = BatchLimits(
        base, truth.fixed_batch or truth.max_batch, least, most, True, accumulate_alone=True
    )
    atomic, accum, feasible = candidate_batches(limits, np.array([sum(counts)], dtype=np.int64))
    pairs = {
        (float(m), float(s))
        for m, s, ok in zip(atomic[0], accum[0], feasible[0], strict=True)
        if ok
    }
    totals, seconds = [], []
    for m, s in sorted(pairs):
        if sum(counts) == 1 and s == 0 and m > truth.base_batch:
            continue  # alone it accumulates, as in the run
        try:
            step, sync = truth.times(counts, m, kind)
        except NotMeasured:
            continue
        totals.append(sum(counts) * m * (s + 1.0))
        seconds.append(step + s * (step - sync))
    return totals, seconds
