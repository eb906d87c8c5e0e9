"""Small clusters on which one rule of a gang policy decides, and an oracle that knows the lengths of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpq.core.model.placements import Shape
from gpq.core.model.policy import Policy
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId


@dataclass(frozen=True, slots=True)
class Steps:
    """An oracle for a job whose every step takes one second."""

    remaining_steps: float

    def step_seconds(self, shape: Shape) -> float | None:
        return 1.0


def told(here: Snapshot, lengths: Mapping[int, float]) -> Snapshot:
    """The remaining time of these jobs, in seconds."""
    return replace(here, oracles={JobId(number): Steps(seconds) for number, seconds in lengths.items()})


def named(policy: Policy, here: Snapshot) -> set[int]:
    """The jobs that get GPUs."""
    return {int(name) for name in policy.allocate(here)}
