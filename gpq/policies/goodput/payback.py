"""Moves that cannot earn their pause back: which jobs a round leaves alone or lets wait a moment.

A restart stops a job for R seconds. A job that ends within R stays as it is. A job that has just
arrived makes nobody pause if enough GPUs come free by themselves within R, or if its fair share is
idle.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from gpq.core.feasibility.mobility import held_by, patience
from gpq.core.model.jobs import JobState, arrival
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds
from gpq.policies.goodput.candidates import Candidate, Options
from gpq.policies.goodput.groups import Array, Group, Mask

Devices = set[tuple[NodeId, DeviceId]]


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Jobs on which a round does not decide: they keep their GPUs, or wait."""

    ending: frozenset[JobId] = frozenset()
    waiting: frozenset[JobId] = frozenset()


def left_alone(
    snapshot: Snapshot, groups: Sequence[Group], times_by_group: Sequence[Array]
) -> LeftAlone:
    """`times_by_group`: seconds that each job still takes at each shape, infinite if unknown."""
    rows = [
        (candidate, seconds)
        for group, times in zip(groups, times_by_group, strict=True)
        for candidate, seconds in zip(group.rows, times, strict=True)
    ]
    lefts = {row.job.id: left for row, seconds in rows if (left := _left(row, seconds)) < np.inf}
    ending = {
        row.job.id
        for row, _ in rows
        if lefts.get(row.job.id, np.inf) <= snapshot.config.restart_cost(row.job)
    }
    candidates = [row for row, _ in rows]
    return LeftAlone(frozenset(ending), frozenset(_waiting(snapshot, candidates, lefts)))


def paying(
    snapshot: Snapshot,
    groups: Sequence[Group],
    shares: Mapping[JobId, float],
    waiting: Container[JobId],
) -> list[Mask]:
    """Which other shapes can pay, for each group: rows x options."""
    held_devices = set(held_by(snapshot))
    masks = []
    for group in groups:
        mask = np.ones((len(group.rows), len(group.options.shapes)), dtype=bool)
        for row, candidate in enumerate(group.rows):
            if candidate.job.id in waiting:
                mask[row] = False
            elif not candidate.job.attempt:
                need = max(ceil(shares[candidate.job.id]), candidate.job.spec.min_gpus, 1)
                mask[row] = _undisturbing(group.options, held_devices, need)
        masks.append(mask)
    return masks


def _undisturbing(options: Options, held_devices: Devices, need: int) -> Mask:
    """The shapes that fit on idle GPUs, if as many as it needs are idle. Otherwise all shapes."""
    mask = np.ones(len(options.shapes), dtype=bool)
    for kind, supply in options.offer.types.items():
        devices = {(node, device) for node, ids in supply.items() for device in ids}
        idle = len(devices - held_devices)
        of_kind = np.array([shape.gpu_type == kind for shape in options.shapes])
        if idle >= min(need, options.most):
            mask &= ~of_kind | (options.replicas <= idle)
    return mask


def _waiting(
    snapshot: Snapshot, candidates: Sequence[Candidate], lefts: Mapping[JobId, Seconds]
) -> set[JobId]:
    """Jobs that have just arrived, and find too few idle GPUs now but enough before anybody could
    have restarted to make room. `lefts`: seconds to the ends of running jobs, if known."""
    limit = patience((row.job for row in candidates), snapshot.config)
    newcomers = [
        row.job.id
        for row in candidates
        if not row.job.attempt and snapshot.now - row.job.submitted_at < limit
    ]
    if not newcomers:
        return set()
    coming = {
        device
        for row in candidates
        if lefts.get(row.job.id, np.inf) <= limit and row.job.placement is not None
        for device in row.job.placement.devices
    }
    held_devices = set(held_by(snapshot))
    waiting_jobs = set()
    taken: Devices = set()
    for row in sorted(candidates, key=lambda row: arrival(row.job)):
        if row.job.id not in newcomers:
            continue
        usable = _devices(row.options) - taken
        idle, need = usable - held_devices, max(row.job.spec.min_gpus, 1)
        if len(idle) < need <= len(idle | usable & coming):
            waiting_jobs.add(row.job.id)
        taken |= set(sorted(idle | usable & coming)[:need])
    return waiting_jobs


def _left(candidate: Candidate, seconds: Array) -> Seconds:
    """To its end at its present shape. Infinite if unknown, or if it does not run."""
    column = candidate.options.index.get(candidate.current) if candidate.current else None
    if candidate.job.state is not JobState.RUNNING or column is None:
        return float("inf")
    return float(seconds[column])


def _devices(options: Options) -> Devices:
    return {(node, device) for node, ids in options.offer.devices.items() for device in ids}
