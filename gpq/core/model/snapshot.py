"""Everything that a decision may look at, the jobs, the servers and the configuration at one
moment, and the protocol of a policy, which decides on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpq.core.model.accounts import MeanShare, Standing
from gpq.core.model.jobs import Job
from gpq.core.model.nodes import Fitness, Link, Node, Reservation
from gpq.core.model.placements import Shape
from gpq.core.model.profile import Prior
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds


@dataclass(frozen=True, slots=True)
class Config:
    """What the core needs from the configuration. All of it is an argument, because the core reads
    no file."""

    interval: Seconds = 60.0
    policy: str = "goodput"
    gang: bool = False  # the policy gives every job exactly the GPUs that it asked for
    fairness_power: float = 0.25  # p of the power utility. -1 = Pollux's harmonic mean
    # weigh jobs of known length by the time that their progress saves all, not by rank and share
    cost_to_go: bool = False
    restart_seconds: Seconds = 30.0  # assumed for a job whose restart was not measured yet
    hysteresis_seconds: Seconds = 150.0  # H of the restart factor (H - R) / H
    batch_hysteresis: float = 0.05  # a batch change must promise this much more goodput
    batch_growth: float = 2.0  # at most this factor a change
    settle_seconds: Seconds = 15.0  # gpq does not move a job again before it ran this long
    retry_seconds: Seconds = 5.0  # wait after a failed attempt, doubled each time
    quick_failure_seconds: Seconds = 30.0  # an attempt that fails sooner counts towards the hold
    max_quick_failures: int = 3
    # an attempt that is lost sooner counts as a crash of its server or its shim
    crash_seconds: Seconds = 3600.0
    max_crashes: int = 3
    # gpq reports a GPU that a job has not used for this long, and takes it after twice that. 0 =
    # off
    idle_after: Seconds = 1800.0
    # secret, so that nobody foresees the master ports. Several daemons on one server have different
    # ones
    port_salt: int = 0
    seed: int = 0  # for policies that search at random
    events: bool = True  # also run a round when something happens, not only by the timer
    by_user: bool = True  # fair shares by user first, then by job. Off: by job
    # how much users count who do not count 1, such as 2 for twice the GPUs
    user_weights: tuple[tuple[str, float], ...] = ()
    floors: bool = True  # nobody stays below their floor. Off: only the weights of jobs
    # how long a user may have less than their floor if that makes more of the GPUs
    floor_patience: Seconds = 600.0
    # a job that gpq cannot stop may use more than its user's floor for at most this long
    borrow_limit: Seconds = 7200.0

    def restart_cost(self, job: Job) -> Seconds:
        """The seconds that its restart takes: measured, otherwise assumed."""
        if job.restart_seconds is None:
            return self.restart_seconds
        return job.restart_seconds


class Oracle(Protocol):
    """What a simulator tells a policy that no job could tell. A live daemon has none, and policies
    then use estimates."""

    @property
    def remaining_steps(self) -> float:
        """Optimizer steps still to do at the batch size that the job asked for."""

    def step_seconds(self, shape: Shape) -> Seconds | None:
        """True time of one of these steps at a packed `shape`. None if it cannot run."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a round may look at. Ended jobs are not in it, but the store has them."""

    now: Seconds = 0.0
    config: Config = field(default_factory=Config)
    nodes: Mapping[NodeId, Node] = field(default_factory=dict)
    jobs: Mapping[JobId, Job] = field(default_factory=dict)
    next_id: int = 1  # ids are never reused
    round_at: Seconds = 0.0  # of the last allocation
    # by `priors.program_of`, the latest at the end
    priors: Mapping[str, Prior] = field(default_factory=dict)
    oracles: Mapping[JobId, Oracle] = field(default_factory=dict)  # only in the simulator
    drained: Mapping[NodeId, str] = field(
        default_factory=dict
    )  # gpq starts nothing new there, and why. Reports do not change it
    # by id. Some of them are over
    reservations: Mapping[int, Reservation] = field(default_factory=dict)
    next_reservation: int = 1
    # by the names of both ends, sorted
    links: Mapping[tuple[NodeId, NodeId], Link] = field(default_factory=dict)
    # by `JobSpec.environment`. Not kept
    checks: Mapping[tuple[NodeId, str], Fitness] = field(default_factory=dict)
    rates: Mapping[tuple[NodeId, NodeId], float] = field(
        default_factory=dict
    )  # bytes per second from one to the other, of files copied since the daemon started
    # unused since then. Not kept
    idle: Mapping[tuple[NodeId, DeviceId], Seconds] = field(default_factory=dict)
    # first and last id of jobs of a lost database: they may still run
    lost_ids: tuple[tuple[int, int], ...] = ()
    # average shares over the lives of live jobs
    means: Mapping[JobId, MeanShare] = field(default_factory=dict)
    means_at: Seconds = 0.0  # counted up to this time. 0: not yet since the daemon started
    # as they were when last kept
    means_kept: Mapping[JobId, MeanShare] = field(default_factory=dict)
    means_kept_at: Seconds = 0.0
    # by user: devices that refuse the jobs of just this one, such as those of a server where they
    # have no account
    refusals: Mapping[str, frozenset[tuple[NodeId, DeviceId]]] = field(default_factory=dict)
    standings: Mapping[str, Standing] = field(default_factory=dict)  # by user
    standings_at: Seconds = 0.0  # of the round that counted them

    @property
    def holders(self) -> list[Job]:
        """Jobs in HOLDS_DEVICES, by id. There are few, however many jobs there are."""
        return sorted(
            (job for job in self.jobs.values() if job.placement is not None), key=lambda job: job.id
        )

    def expected_on(self, node: NodeId) -> list[Job]:
        """Jobs with an attempt on `node` whose end there is not known yet, by id."""
        return [
            job
            for job in self.holders
            if node in job.nodes and all(name != node for name, _ in job.exits)
        ]
