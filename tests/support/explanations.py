"""Why a job waits or runs, in the words that a user reads."""

from __future__ import annotations

from collections.abc import Mapping

from gpq.control.sentences import Texts, texts
from gpq.core.explain import explain as reasons
from gpq.core.model.jobs import Job
from gpq.core.model.placements import Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId


def explain(snapshot: Snapshot, allocation: Mapping[JobId, Shape] | None, job: Job) -> Texts:
    return texts(reasons.explain(snapshot, allocation, job))
