"""Small clusters on which one rule of a gang policy decides, and an oracle that tells lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpq.core.model.placements import Shape
from gpq.core.model.policy import Policy
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId


@dataclass(frozen=True, slots=True)
class Steps:
    """An oracle of a job whose every step takes a second."""

    remaining_steps: float

    def step_seconds(self, shape: Shape) -> float | None:
        return 1.0


def told(here: Snapshot, lengths: Mapping[int, float]) -> Snapshot:
    """What is left of these jobs, seconds."""
    return replace(here, oracles={JobId(number): Steps(seconds) for number, seconds in lengths.items()})


def named(policy: Policy, here: Snapshot) -> set[int]:
    """Who gets GPUs."""
    return {int(name) for name in policy.allocate(here)}
