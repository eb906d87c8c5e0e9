"""What a policy keeps of its estimates from one round to the next, so that an unchanged profile is
not even compared."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from gpq.core.goodput import estimates
from gpq.core.goodput.batches import GoodputTable
from gpq.core.model.jobs import Job
from gpq.core.model.placements import Shape
from gpq.core.model.profile import Profile
from gpq.core.model.units import JobId

Shapes = tuple[Shape, ...]


@dataclass
class Memory:
    """Answers as `estimates.tables`. Knows a profile again by its parts."""

    _known: dict[JobId, tuple[Profile, Shapes, GoodputTable | None]] = field(default_factory=dict)

    def tables(self, asked: Sequence[tuple[Job, Shapes]]) -> dict[JobId, GoodputTable | None]:
        """Best batch and goodput of every shape of each job, None for one that has no model."""
        changed = [(job, shapes) for job, shapes in asked if not self._is_known(job, shapes)]
        for (job, shapes), table in zip(changed, estimates.tables(changed), strict=True):
            self._known[job.id] = (job.profile, shapes, table)
        return {job.id: self._known[job.id][2] for job, _ in asked}

    def _is_known(self, job: Job, shapes: Shapes) -> bool:
        known = self._known.get(job.id)
        if known is None:
            return False
        profile, (old, old_shapes, _) = job.profile, known
        same = old.basis is profile.basis and old.noise_basis is profile.noise_basis
        same = same and old.declared is profile.declared
        return same and (old_shapes is shapes or old_shapes == shapes)

    def forget_others(self, jobs: Container[JobId]) -> None:
        """Keep only what is known of `jobs`."""
        for name in [name for name in self._known if name not in jobs]:
            del self._known[name]
