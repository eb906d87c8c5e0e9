"""informed(): what jobs may learn about a GPU type from other types and from other jobs. Adds
scaled rows, measures nothing.

One number carries over: the ratio of the times that one GPU of each type takes for the same work
(Sia, SOSP'23, section 3.3: xput_A(N) = xput_A(1) / xput_B(1) * xput_B(N)).
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

SCALED_WEIGHT = 1.0  # at most, of a scaled row, in steps: what was measured there counts for more
# times: two atomic batches no farther apart take times per example that may be compared
COMPARABLE = 1.5

Pair = tuple[str, str]
Ratios = Mapping[Pair, float]


def informed(snapshot: Snapshot) -> Snapshot:
    """The snapshot with rows for the types that jobs do not know yet; the same object where there
    is nothing to add.

    A type without rows gets those of the type that the job knows best, times the ratio of the two
    types; one on which only one replica was timed gets the rows of several replicas. The ratio: the
    job's own; the median of jobs that declared the same; the median of all; else 1. What is scaled
    keeps its number of replicas and of nodes.
    """
    types = gpu_types(snapshot)
    if len(types) <= 1:
        return snapshot
    known = _known(snapshot)
    jobs: dict[JobId, Job] = {}
    for name in sorted(snapshot.jobs):
        job = snapshot.jobs[name]
        declared = job.profile.declared
        if declared is None or not job.profile.rows:
            continue
        own = job.profile.basis
        rows = own
        for target, source in _gaps(own, types):
            rows += _scaled(own, declared, target, source, _ratio(job, (target, source), known))
        if len(rows) > len(own):
            jobs[name] = replace(job, profile=replace(job.profile, model_rows=rows))
    return replace(snapshot, jobs={**snapshot.jobs, **jobs}) if jobs else snapshot


@lru_cache(maxsize=4096)
def ratios(rows: tuple[ProfileRow, ...]) -> Ratios:
    """(A, B) -> time on one GPU of A over that of B for the same work, for the types among `rows`.

    The median over comparable batches, of one replica's steps where both types have some; else of
    gradient times, which are those of one GPU with any number of replicas.
    """
    alone: dict[str, list[tuple[int, float]]] = {}
    computing: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row.replicas == 1 and row.step_time > 0:
            alone.setdefault(row.gpu_type, []).append(
                (row.atomic_batch, row.step_time / row.atomic_batch)
            )
        if row.grad_time > 0:
            computing.setdefault(row.gpu_type, []).append(
                (row.atomic_batch, row.grad_time / row.atomic_batch)
            )
    found: dict[Pair, float] = {}
    for a in sorted({*alone, *computing}):
        for b in sorted({*alone, *computing} - {a}):
            for times in (alone, computing):
                quotients = list(_quotients(times.get(a, []), times.get(b, [])))
                if quotients:
                    found[a, b] = median(quotients)
                    break
    return found


def _quotients(first: list[tuple[int, float]], second: list[tuple[int, float]]) -> Iterator[float]:
    """Time per example of each of `first` over that of the nearest batch of `second`, where they
    are comparable."""
    for batch, time in first:
        other, base = min(
            second,
            key=lambda pair: (max(pair[0], batch) / min(pair[0], batch), pair),
            default=(0, 0.0),
        )
        if other and max(other, batch) <= COMPARABLE * min(other, batch):
            yield time / base


def _known(snapshot: Snapshot) -> dict[Declared | None, dict[Pair, float]]:
    """Medians over the jobs that declared the same, and under None over all jobs and priors."""
    seen: dict[Declared | None, dict[Pair, list[float]]] = {None: {}}
    profiles = [
        (job.profile.declared, job.profile.basis) for _, job in sorted(snapshot.jobs.items())
    ]
    profiles += [(None, prior.rows) for _, prior in sorted(snapshot.priors.items())]
    for declared, rows in profiles:
        for pair, ratio in ratios(rows).items() if rows else ():
            for group in dict.fromkeys((declared, None)):
                seen.setdefault(group, {}).setdefault(pair, []).append(ratio)
    return {
        group: {pair: median(found) for pair, found in pairs.items()}
        for group, pairs in seen.items()
    }


def _ratio(job: Job, pair: Pair, known: Mapping[Declared | None, Mapping[Pair, float]]) -> float:
    for found in (ratios(job.profile.basis), known.get(job.profile.declared, {}), known[None]):
        if pair in found:
            return found[pair]
    return 1.0


@lru_cache(maxsize=4096)
def _gaps(rows: tuple[ProfileRow, ...], types: tuple[str, ...]) -> tuple[Pair, ...]:
    """(type to learn of, type to learn from): types without rows, and types with one replica
    alone."""
    most: dict[str, tuple[int, float]] = {}
    for row in rows:
        replicas, weight = most.get(row.gpu_type, (0, 0.0))
        most[row.gpu_type] = (max(replicas, row.replicas), weight + row.weight)
    gaps = []
    for name in types:
        others = sorted(other for other in most if other != name)
        if others:
            source = max(others, key=lambda other: most[other])
            if name not in most or most[name][0] == 1 < most[source][0]:
                gaps.append((name, source))
    return tuple(gaps)


@lru_cache(maxsize=4096)
def _scaled(
    rows: tuple[ProfileRow, ...], declared: Declared, target: str, source: str, ratio: float
) -> tuple[ProfileRow, ...]:
    """Rows of `source` as they would be on `target`, within the limits of the batch there; all,
    where none is within."""
    fresh = all(row.gpu_type != target for row in rows)
    chosen = [row for row in rows if row.gpu_type == source and (fresh or row.replicas > 1)]
    limits = limits_of(declared, target)
    if limits is not None:
        inside = [
            row for row in chosen if limits.min_atomic <= row.atomic_batch <= limits.max_atomic
        ]
        chosen = inside or chosen
    return tuple(
        replace(
            row,
            gpu_type=target,
            grad_time=row.grad_time * ratio,
            step_time=row.step_time * ratio,
            weight=min(row.weight, SCALED_WEIGHT),
        )
        for row in chosen
    )
