"""What a job will make of each shape over the next minutes, where earlier jobs of its program told
how the noise scale grows.

The batch is not chosen by this: it follows the noise scale of the moment.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

from gpq.core.goodput.batches import GoodputTable
from gpq.core.goodput.noise_curve import ahead
from gpq.core.model.jobs import Job
from gpq.core.model.profile import Noise, Prior
from gpq.core.model.units import JobId, Seconds
from gpq.policies.goodput.candidates import Candidate
from gpq.policies.goodput.round_cache import RoundCache, Shapes

Question = tuple[Candidate, Prior | None, float]  # and the GPUs at which it is expected to go on

LOOK_AHEAD: Seconds = 150.0  # as long as a move may take to pay (Config.hysteresis_seconds)
# share of what is expected at the end of it: the scale grows steeply at first, then slowly
LATER = 0.75


@dataclass
class Forecast:
    """Tables of goodput, the mean over LOOK_AHEAD; as they are now where no growth is known. Keeps
    unchanged ones."""

    now: RoundCache = field(default_factory=RoundCache)
    later: RoundCache = field(default_factory=RoundCache)
    _means: dict[JobId, tuple[GoodputTable, GoodputTable, GoodputTable]] = field(
        default_factory=dict
    )

    def tables(self, questions: Sequence[Question]) -> dict[JobId, GoodputTable | None]:
        """By job; None while it has no model."""
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
        """Keep only what is known of `jobs`."""
        self.now.forget_others(jobs)
        self.later.forget_others(jobs)
        for name in [name for name in self._means if name not in jobs]:
            del self._means[name]


def _noise_ahead(
    candidate: Candidate, prior: Prior, share: float, table: GoodputTable
) -> Noise | None:
    """The noise scale that it is to have by then; None where that is not known, or no other than
    now."""
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
