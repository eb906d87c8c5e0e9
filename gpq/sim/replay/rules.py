"""The rules of a simulated run: the machines, the timer, the cost of a restart, what policies may
know."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpq.core.model.nodes import Node
from gpq.core.model.snapshot import Config
from gpq.core.model.units import Seconds


@dataclass(frozen=True, slots=True)
class Rules:
    """Defaults are those of the OSDI'21 artifact (pollux.md 1.14): a fixed timer, and nothing known
    in advance."""

    nodes: tuple[Node, ...]
    interval: Seconds = 60.0
    # a job over several nodes that shares one with another such job runs at 1 - this
    interference: float = 0.0
    known_length: bool = False  # jobs declare how long they are
    priors: bool = False  # policies may use what earlier jobs of the same program taught
    events: bool = False  # rounds also when a job arrives, ends, or first runs at a new size
    noise: float = 0.0  # standard deviation of the logarithm of what is measured
    seed: int = 0
    # jobs arrive with step times of one GPU of each type (as in Sia's artifact)
    profiled: bool = False
    config: Config = field(default_factory=Config)  # settings of the policy
    arguments: tuple[tuple[str, bool], ...] = ()  # of the class of the policy
