"""What a job will make of each shape over the next minutes, where earlier jobs of its program told how the noise scale grows.

The batch is not chosen by this: it follows the noise scale of the moment.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace

from gpq.core.candidates import Candidate
from gpq.core.goodput import GoodputTable
from gpq.core.memory import Memory
from gpq.core.models import JobId, Noise, Prior, Seconds
from gpq.core.noise_curve import ahead

LOOK_AHEAD: Seconds = 150.0  # as long as a move may take to pay (Config.hysteresis_seconds)
LATER = 0.75  # share of what is expected at the end of it: the scale grows steeply at first, then slowly


@dataclass
class Outlook:
    """Tables of goodput, the mean over LOOK_AHEAD; as they are now where no growth is known. Keeps unchanged ones."""

    now: Memory = field(default_factory=Memory)
    later: Memory = field(default_factory=Memory)
    _means: dict[JobId, tuple[GoodputTable, Noise | None, GoodputTable]] = field(default_factory=dict)

    def table(self, candidate: Candidate, prior: Prior | None, share: float) -> GoodputTable | None:
        """None while the job has no model. `share`: GPUs at which it is expected to go on."""
        job, shapes = candidate.job, candidate.options.shapes
        declared, progress = job.profile.declared, job.profile.progress
        table = self.now.table(job, shapes)
        if table is None or prior is None or not prior.noise_curve or progress is None or declared is None:
            return table
        within = candidate.options.replicas <= max(share, 1.0)
        steps = LOOK_AHEAD * float(table.goodput[within].max(initial=0.0)) / declared.batch_size
        present = job.profile.noise_basis
        coming = ahead(prior.noise_curve, present, progress.base_steps, progress.base_steps + steps)
        if coming is present:
            return table
        known = self._means.get(job.id)
        if known is not None and known[0] is table and known[1] is coming:
            return known[2]
        later = self.later.table(replace(job, profile=replace(job.profile, model_noise=coming)), shapes)
        mean = table if later is None else _mean(table, later)
        self._means[job.id] = (table, coming, mean)
        return mean

    def forget_others(self, jobs: Container[JobId]) -> None:
        """Keep only what is known of `jobs`."""
        self.now.forget_others(jobs)
        self.later.forget_others(jobs)
        for name in [name for name in self._means if name not in jobs]:
            del self._means[name]


def _mean(now: GoodputTable, later: GoodputTable) -> GoodputTable:
    return replace(
        now,
        goodput=(1.0 - LATER) * now.goodput + LATER * later.goodput,
        throughput=(1.0 - LATER) * now.throughput + LATER * later.throughput,
    )
