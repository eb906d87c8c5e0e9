"""The estimates that a policy keeps from one round to the next, so that it does not even compare an
unchanged profile."""

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
