"""What a job will make of each shape over the next minutes, if earlier jobs of its program showed
how the noise scale grows, and of two servers, if other jobs measured the network between them.

This does not choose the batch size, which follows the present noise scale.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from gpq.core.goodput import estimates
from gpq.core.goodput.batches import GoodputTable
from gpq.core.goodput.goodput import overlap
from gpq.core.goodput.noise_curve import ahead
from gpq.core.goodput.observations import is_usable
from gpq.core.model.jobs import Job
from gpq.core.model.nodes import Link
from gpq.core.model.placements import Shape
from gpq.core.model.profile import Noise, Prior, Profile, ProfileRow
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.policies.goodput.candidates import Candidate

Question = tuple[Candidate, Prior | None, float]  # and the GPUs that it is expected to have
Shapes = tuple[Shape, ...]
Links = Mapping[tuple[NodeId, NodeId], Link]
LOOK_AHEAD: Seconds = 150.0  # the time in which a move must pay off (Config.hysteresis_seconds)
# weight of the table at the end of it, because the scale grows steeply at first, then slowly
LATER = 0.75
LENT_WEIGHT = 5.0  # steps that such a row counts for
BYTES = 4.0  # for the gradient of a parameter
USUAL_OVERLAP = 2.0  # gamma of the step model if it was not measured (measured.usual)


@dataclass
class RoundCache:
    """Answers like `estimates.tables`. Recognises a profile by its parts."""

    _answers: dict[JobId, tuple[Profile, Shapes, GoodputTable | None]] = field(default_factory=dict)

    def tables(self, questions: Sequence[tuple[Job, Shapes]]) -> dict[JobId, GoodputTable | None]:
        """Best batch size and goodput of every shape of each job. None for a job without a
        model."""
        new_questions = [
            (job, shapes) for job, shapes in questions if not self._is_known(job, shapes)
        ]
        for (job, shapes), table in zip(
            new_questions, estimates.tables(new_questions), strict=True
        ):
            self._answers[job.id] = (job.profile, shapes, table)
        return {job.id: self._answers[job.id][2] for job, _ in questions}

    def _is_known(self, job: Job, shapes: Shapes) -> bool:
        entry = self._answers.get(job.id)
        if entry is None:
            return False
        profile, (old_profile, old_shapes, _) = job.profile, entry
        is_same = (
            old_profile.basis is profile.basis and old_profile.noise_basis is profile.noise_basis
        )
        is_same = is_same and old_profile.declared is profile.declared
        return is_same and (old_shapes is shapes or old_shapes == shapes)

    def forget_others(self, jobs: Container[JobId]) -> None:
        """Forget all jobs but `jobs`."""
        for name in [name for name in self._answers if name not in jobs]:
            del self._answers[name]


@dataclass
class Forecast:
    """Tables of goodput, averaged over LOOK_AHEAD, or as they are now if no growth is known. Keeps
    unchanged ones."""

    now: RoundCache = field(default_factory=RoundCache)
    later: RoundCache = field(default_factory=RoundCache)
    _means: dict[JobId, tuple[GoodputTable, GoodputTable, GoodputTable]] = field(
        default_factory=dict
    )

    def tables(self, questions: Sequence[Question]) -> dict[JobId, GoodputTable | None]:
        """By job. None while it has no model."""
        tables = self.now.tables(
            [(candidate.job, candidate.options.shapes) for candidate, _, _ in questions]
        )
        later_jobs: dict[JobId, tuple[Job, Shapes]] = {}
        for candidate, prior, share in questions:
            job, table = candidate.job, tables[candidate.job.id]
            if table is None or prior is None:
                continue
            noise = _noise_ahead(candidate, prior, share, table)
            if noise is not None:
                later_job = replace(job, profile=replace(job.profile, model_noise=noise))
                later_jobs[job.id] = later_job, candidate.options.shapes
        later_tables = self.later.tables(list(later_jobs.values()))
        for name in later_jobs:
            present_table, later_table = tables[name], later_tables[name]
            if present_table is not None and later_table is not None:
                tables[name] = self._mean(name, present_table, later_table)
        return tables

    def _mean(
        self, name: JobId, present_table: GoodputTable, later_table: GoodputTable
    ) -> GoodputTable:
        entry = self._means.get(name)
        if entry is None or entry[0] is not present_table or entry[1] is not later_table:
            entry = self._means[name] = (
                present_table,
                later_table,
                _mean(present_table, later_table),
            )
        return entry[2]

    def forget_others(self, jobs: Container[JobId]) -> None:
        """Forget all jobs but `jobs`."""
        self.now.forget_others(jobs)
        self.later.forget_others(jobs)
        for name in [name for name in self._means if name not in jobs]:
            del self._means[name]


def _noise_ahead(
    candidate: Candidate, prior: Prior, share: float, table: GoodputTable
) -> Noise | None:
    """The noise scale expected by then. None if it is unknown, or the same as now."""
    profile = candidate.job.profile
    if not prior.noise_curve or profile.progress is None or profile.declared is None:
        return None
    is_within_share = candidate.options.replicas <= max(share, 1.0)
    steps = (
        LOOK_AHEAD
        * float(table.goodput[is_within_share].max(initial=0.0))
        / profile.declared.batch_size
    )
    base_steps, noise_now = profile.progress.base_steps, profile.noise_basis
    noise_ahead = ahead(prior.noise_curve, noise_now, base_steps, base_steps + steps)
    if noise_ahead is noise_now:
        return None
    return noise_ahead


def _mean(present_table: GoodputTable, later_table: GoodputTable) -> GoodputTable:
    return replace(
        present_table,
        goodput=(1.0 - LATER) * present_table.goodput + LATER * later_table.goodput,
        throughput=(1.0 - LATER) * present_table.throughput + LATER * later_table.throughput,
    )


def slowest(links: Links) -> Link | None:
    """The link that an all-reduce over all servers waits for: the least bandwidth, then the highest
    latency."""
    return min(links.values(), key=lambda link: (link.bandwidth, -link.latency), default=None)


def sync_seconds(link: Link, parameters: int) -> float:
    """For two replicas at the two ends of a link: each sends and receives every gradient once, as
    the measurement did."""
    return link.latency + BYTES * parameters / link.bandwidth


def with_links(job: Job, prior: Prior | None, links: Links) -> Prior | None:
    """`prior` with a row of two nodes, if the job has reported its size and times, and neither was
    measured over nodes. The same object if there is nothing to add, and for the same question.

    So the network term of its model is that of this network before the first launch on two nodes,
    not a tenth above that within one node. The first such row that the program measures replaces
    it.
    """
    link, declaration = slowest(links), job.profile.declared
    if link is None or declaration is None or declaration.parameters <= 0:
        return prior
    return _with_link_rows(job.profile.basis, prior, declaration.parameters, link)


@lru_cache(maxsize=4096)
def _with_link_rows(
    rows: tuple[ProfileRow, ...], prior: Prior | None, parameters: int, link: Link
) -> Prior | None:
    prior = prior or Prior()
    usable_rows = [row for row in (*rows, *prior.rows) if is_usable(row)]
    if any(row.nodes > 1 for row in usable_rows):
        return prior
    # the row of each type that counts most, the first among equals
    usable_rows.sort(key=lambda row: (row.gpu_type, -row.weight))
    loans: dict[str, ProfileRow] = {}
    for row in usable_rows:
        if row.gpu_type not in loans:
            is_whole = row.replicas == 1 or row.grad_time <= 0
            grad_time = row.step_time if is_whole else row.grad_time
            step_time = float(overlap(USUAL_OVERLAP, grad_time, sync_seconds(link, parameters)))
            loans[row.gpu_type] = replace(
                row, nodes=2, replicas=2, step_time=step_time, weight=LENT_WEIGHT
            )
    if not loans:
        return prior
    rows = (*prior.rows, *loans.values())
    return Prior(rows, prior.noise, prior.max_replicas, prior.noise_curve)
