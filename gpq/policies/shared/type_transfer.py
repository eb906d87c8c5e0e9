"""informed(): what jobs can learn about a GPU type from other types and from other jobs. Adds
scaled rows, measures nothing.

One number carries over: the ratio of the times that one GPU of each type takes for the same work.
It is xput_A(N) = xput_A(1) / xput_B(1) * xput_B(N) in Sia, SOSP'23, section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from statistics import median

from gpq.core.feasibility.shapes import gpu_types
from gpq.core.goodput.batches import limits_of
from gpq.core.model.jobs import Job
from gpq.core.model.profile import Declared, ProfileRow
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId

SCALED_WEIGHT = 1.0  # at most, in steps, for a scaled row: measurements there count for more
# two micro-batches within this factor take comparable times per example
COMPARABLE = 1.5

Pair = tuple[str, str]
Ratios = Mapping[Pair, float]


def inform(snapshot: Snapshot) -> Snapshot:
    """The snapshot with rows for types that jobs do not know yet. The same object if there is
    nothing to add.

    A type without rows gets those of the type that the job knows best, times the ratio of the two
    types. A type on which only one replica was timed gets the rows of several replicas. The ratio
    is the job's own, otherwise the median of jobs with the same declaration, otherwise the median
    of all, otherwise 1. Scaled rows keep their number of replicas and nodes.
    """
    types = gpu_types(snapshot)
    if len(types) <= 1:
        return snapshot
    medians = _median_ratios(snapshot)
    jobs: dict[JobId, Job] = {}
    for name in sorted(snapshot.jobs):
        job = snapshot.jobs[name]
        declaration = job.profile.declared
        if declaration is None or not job.profile.rows:
            continue
        own_rows = job.profile.basis
        rows = own_rows
        ratio = {**medians[None], **medians.get(declaration, {}), **ratios(own_rows)}
        for target, source in _gaps(own_rows, types):
            factor = ratio.get((target, source), 1.0)
            rows += _scale(own_rows, declaration, target, source, factor)
        if len(rows) > len(own_rows):
            jobs[name] = replace(job, profile=replace(job.profile, model_rows=rows))
    if not jobs:
        return snapshot
    return replace(snapshot, jobs={**snapshot.jobs, **jobs})


@lru_cache(maxsize=4096)
def ratios(rows: tuple[ProfileRow, ...]) -> Ratios:
    """(A, B) -> time on one GPU of A relative to that of B for the same work, for the types among
    `rows`.

    This is the median over comparable batches of steps with one replica, if both types have some.
    Otherwise it uses gradient times, which are those of one GPU with any number of replicas.
    """
    step_times: dict[str, list[tuple[int, float]]] = {}
    grad_times: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row.replicas == 1 and row.step_time > 0:
            step_times.setdefault(row.gpu_type, []).append(
                (row.atomic_batch, row.step_time / row.atomic_batch)
            )
        if row.grad_time > 0:
            grad_times.setdefault(row.gpu_type, []).append(
                (row.atomic_batch, row.grad_time / row.atomic_batch)
            )
    medians: dict[Pair, float] = {}
    for a in sorted({*step_times, *grad_times}):
        for b in sorted({*step_times, *grad_times} - {a}):
            for times in (step_times, grad_times):
                quotients = list(_quotients(times.get(a, []), times.get(b, [])))
                if quotients:
                    medians[a, b] = median(quotients)
                    break
    return medians


def _quotients(first: list[tuple[int, float]], second: list[tuple[int, float]]) -> Iterator[float]:
    """Time per example of each of `first` relative to the nearest batch of `second`, if they are
    comparable."""
    for batch, time in first:
        nearest, base = min(
            second,
            key=lambda pair: (max(pair[0], batch) / min(pair[0], batch), pair),
            default=(0, 0.0),
        )
        if nearest and max(nearest, batch) <= COMPARABLE * min(nearest, batch):
            yield time / base


def _median_ratios(snapshot: Snapshot) -> dict[Declared | None, dict[Pair, float]]:
    """Medians over jobs with the same declaration, and under None over all jobs and priors."""
    samples: dict[Declared | None, dict[Pair, list[float]]] = {None: {}}
    profiles = [
        (job.profile.declared, job.profile.basis) for _, job in sorted(snapshot.jobs.items())
    ]
    profiles += [(None, prior.rows) for _, prior in sorted(snapshot.priors.items())]
    for declaration, rows in profiles:
        for pair, ratio in ratios(rows).items():
            for group in dict.fromkeys((declaration, None)):
                samples.setdefault(group, {}).setdefault(pair, []).append(ratio)
    return {
        group: {pair: median(values) for pair, values in pairs.items()}
        for group, pairs in samples.items()
    }


@lru_cache(maxsize=4096)
def _gaps(rows: tuple[ProfileRow, ...], types: tuple[str, ...]) -> tuple[Pair, ...]:
    """(type to learn about, type to learn from): types without rows, and types with only one
    replica."""
    extents: dict[str, tuple[int, float]] = {}
    for row in rows:
        replicas, weight = extents.get(row.gpu_type, (0, 0.0))
        extents[row.gpu_type] = (max(replicas, row.replicas), weight + row.weight)
    gaps = []
    for name in types:
        sources = sorted(gpu_type for gpu_type in extents if gpu_type != name)
        if sources:
            source = max(sources, key=lambda gpu_type: extents[gpu_type])
            if name not in extents or extents[name][0] == 1 < extents[source][0]:
                gaps.append((name, source))
    return tuple(gaps)


@lru_cache(maxsize=4096)
def _scale(
    rows: tuple[ProfileRow, ...], declaration: Declared, target: str, source: str, ratio: float
) -> tuple[ProfileRow, ...]:
    """Rows of `source` as they would be on `target`, within the batch limits there. All of them, if
    none is within."""
    is_new = all(row.gpu_type != target for row in rows)
    source_rows = [row for row in rows if row.gpu_type == source and (is_new or row.replicas > 1)]
    limits = limits_of(declaration, target)
    if limits is not None:
        low, high = limits.min_atomic, limits.max_atomic
        source_rows = [row for row in source_rows if low <= row.atomic_batch <= high] or source_rows
    return tuple(
        replace(
            row,
            gpu_type=target,
            grad_time=row.grad_time * ratio,
            step_time=row.step_time * ratio,
            weight=min(row.weight, SCALED_WEIGHT),
        )
        for row in source_rows
    )
