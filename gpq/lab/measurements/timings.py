"""Measured step times of one application on one GPU type. Interpolates between measurements, never
beyond them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from math import fsum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpq.core.feasibility.device_status import gpus
from gpq.core.model.units import Seconds
from gpq.errors import Refused
from gpq.lab.measurements.tables import Column, Table, read

MOST_NODES = 16  # in the published measurements. A placement on more counts as one on this many

TIMES = (
    Column("local_bsz", least=1.0),
    Column("step_time", least=0.0, above=True),
    Column("sync_time", least=0.0),
)
PLACEMENTS = (Column("placement", text=True), *TIMES)
SCALABILITY = (
    Column("num_nodes", whole=True, least=1.0),
    Column("num_replicas", whole=True, least=1.0),
    *TIMES,
)

Counts = tuple[int, ...]  # GPUs on each node
Pair = tuple[Seconds, Seconds]  # the step, and the part that is synchronisation
Curve = tuple[list[float], list[Pair]]  # sorted micro-batches and their times
Point = tuple[int, int, float]  # nodes, replicas, micro-batch


class NotMeasured(Refused):
    """Nobody measured this, so any number would be invented."""


def normalise(counts: Counts) -> Counts:
    """The lexicographically smallest rotation: a ring of replicas is the same wherever it
    starts."""
    sizes = tuple(count for count in counts if count)
    if not sizes or min(sizes) < 0:
        raise ValueError(f"no placement: {counts}")
    return min(sizes[i:] + sizes[:i] for i in range(len(sizes)))


class StepTimes:
    """`times` answers from the measured curve of the placement. If there is none, it interpolates
    linearly over (nodes, replicas, micro-batch) of all measurements, as the published simulators
    do. Keeps its answers."""

    __slots__ = (
        "_answers",
        "_curves",
        "_interpolator",
        "_path",
        "_points",
        "_ranges",
        "largest",
        "name",
        "smallest",
    )

    def __init__(self, name: str, placements: Path, scalability: Path) -> None:
        """`name` is for errors. Reads both files."""
        table = read(placements, PLACEMENTS)
        self.name, self._path = name, placements
        self.smallest = float(table.numbers["local_bsz"].min())
        self.largest = float(table.numbers["local_bsz"].max())
        self._curves = _curves(table)
        self._points = _points(self._curves, read(scalability, SCALABILITY))
        self._interpolator: Callable[[Point], NDArray[np.float64]] | None = None
        self._ranges: dict[Counts, tuple[int, int]] = {}
        self._answers: dict[tuple[Counts, float], Pair] = {}

    def times(self, counts: Counts, atomic: float) -> Pair:
        """(step, synchronisation within it), seconds, of one micro-batch of `atomic` examples on
        every replica."""
        key = (counts, atomic)
        pair = self._answers.get(key)
        if pair is None:
            placement = normalise(counts)
            curve = self._curves.get(placement)
            if curve is None:
                pair = self._at(placement, atomic)
                if np.isnan(pair[0]):
                    problem = f"was not measured on {_prose(placement)}"
                    raise self._refusal(placement, f"{problem} at {atomic:g} examples per GPU")
            else:
                pair = self._on(placement, curve, atomic)
            self._answers[key] = pair
        return pair

    def measured(self, counts: Counts) -> tuple[int, int]:
        """The smallest and the largest micro-batch with measured times on these GPUs."""
        bounds = self._ranges.get(counts)
        if bounds is None:
            placement = normalise(counts)
            curve = self._curves.get(placement)
            if curve is None:
                sizes = sorted({size for (_, _, size), _ in self._points})
                sizes = [size for size in sizes if not np.isnan(self._at(placement, size)[0])]
            else:
                sizes = curve[0]
            if not sizes:
                raise self._refusal(placement, f"was not measured on {_prose(placement)}")
            bounds = self._ranges[counts] = int(np.ceil(sizes[0])), int(np.floor(sizes[-1]))
        return bounds

    def _on(self, placement: Counts, curve: Curve, atomic: float) -> Pair:
        sizes, pairs = curve
        if not sizes[0] <= atomic <= sizes[-1]:
            problem = (
                f"was measured on {_prose(placement)} at {sizes[0]:g} to {sizes[-1]:g} examples"
                " per GPU"
            )
            raise self._refusal(placement, f"{problem}, not at {atomic:g}")
        right = bisect_left(sizes, atomic)
        if sizes[right] == atomic:
            return pairs[right]
        part = (atomic - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        (step, sync), (next_step, next_sync) = pairs[right - 1], pairs[right]
        return step + part * (next_step - step), sync + part * (next_sync - sync)

    def _at(self, placement: Counts, atomic: float) -> Pair:
        """NaN outside the convex hull of the measurements."""
        if self._interpolator is None:
            self._interpolator = _interpolator(self._points)
        pair = self._interpolator(
            (min(len(placement), MOST_NODES), sum(placement), atomic)
        ).reshape(2)
        return float(pair[0]), float(pair[1])

    def _refusal(self, placement: Counts, problem: str) -> NotMeasured:
        nodes = max(nodes for (nodes, _, _), _ in self._points)
        replicas = max(replicas for (_, replicas, _), _ in self._points)
        on_one = max(
            (replicas for (nodes, replicas, _), _ in self._points if nodes == 1), default=0
        )
        reach = f"up to {gpus(on_one)} on one node and up to {replicas} GPUs on {nodes} nodes"
        hint = (
            f"{self._path} and {self._path.name.replace('placements', 'scalability')} have {reach}"
        )
        return NotMeasured(
            f"{self.name} {problem}", f"{hint}. Choose a cluster within that with --nodes"
        )


def _curves(table: Table) -> dict[Counts, Curve]:
    rows: dict[Counts, dict[float, Pair]] = defaultdict(dict)
    for i, digits in enumerate(table.texts["placement"]):
        if not re.fullmatch("[1-9]+", digits):
            raise table.wrong(
                i, f"placement is {digits!r}, must be digits from 1 to 9, the GPUs on each node"
            )
        placement, size = normalise(tuple(map(int, digits))), float(table.numbers["local_bsz"][i])
        if size in rows[placement]:
            raise table.wrong(i, f"placement {digits} with local_bsz {size:g} appears twice")
        rows[placement][size] = _pair(table, i)
    return {
        placement: (sorted(pairs), [pairs[m] for m in sorted(pairs)])
        for placement, pairs in rows.items()
    }


def _points(curves: dict[Counts, Curve], scalability: Table) -> list[tuple[Point, Pair]]:
    """Means over the placements of the same nodes and replicas, then other measurements, mostly of
    larger placements. Duplicates stay, as in the published simulators. Without them, ties in the
    triangulation are resolved otherwise."""
    groups: dict[Point, list[Pair]] = defaultdict(list)
    for placement, curve in curves.items():
        for size, pair in zip(*curve, strict=True):
            groups[len(placement), sum(placement), size].append(pair)
    points: list[tuple[Point, Pair]] = []
    for point in sorted(groups):
        steps, syncs = zip(*groups[point], strict=True)
        points.append((point, (fsum(steps) / len(steps), fsum(syncs) / len(syncs))))
    numbers = scalability.numbers
    for i in range(len(scalability)):
        point = (
            int(numbers["num_nodes"][i]),
            int(numbers["num_replicas"][i]),
            float(numbers["local_bsz"][i]),
        )
        if point[0] > point[1]:
            raise scalability.wrong(
                i, f"num_nodes is {point[0]}, more than num_replicas, {point[1]}"
            )
        points.append((point, _pair(scalability, i)))
    return points


def _pair(table: Table, i: int) -> Pair:
    step, sync = float(table.numbers["step_time"][i]), float(table.numbers["sync_time"][i])
    if sync > step:
        raise table.wrong(i, f"sync_time is {sync:g}, more than the whole step_time, {step:g}")
    return step, sync


def _interpolator(points: list[tuple[Point, Pair]]) -> Callable[[Point], NDArray[np.float64]]:
    """Piecewise linear on a Delaunay triangulation, in the measurements' own units as published.
    Points that span no volume, for example on one node only, have none, and all answers are NaN."""
    from scipy.interpolate import LinearNDInterpolator
    from scipy.spatial import QhullError

    try:
        coordinates, pairs = (
            np.array(part, dtype=np.float64) for part in zip(*points, strict=True)
        )
        linear = LinearNDInterpolator(coordinates, pairs)
    except QhullError:
        return lambda point: np.full(2, np.nan)
    return lambda point: np.asarray(linear(point), dtype=np.float64)


def _prose(placement: Counts) -> str:
    spread = f"{len(placement)} nodes ({'+'.join(map(str, placement))})"
    if len(placement) == 1:
        spread = "1 node"
    return f"{gpus(sum(placement))} of {spread}"
