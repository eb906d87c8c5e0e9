"""The nouns: jobs, shapes, placements, the snapshot. Decides nothing.

Frozen data. Units: seconds (wall clock, or a difference of two), MiB, examples. Machines are in `nodes`, what was measured
of a job is in `profile`, ids are in `units`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpq.core.model.accounts import Account, MeanShare
from gpq.core.model.nodes import Fitness, Link, Node, Reservation
from gpq.core.model.profile import RESIZE, Prior, Profile, RankPulse
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds, Word


class JobState(Word):
    PENDING = "pending"
    HELD = "held"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


TERMINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT})
HOLDS_DEVICES = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})
ANY_NUMBER = 1 << 30  # of GPUs: more than any cluster has


class Level(Word):
    """What a job lets gpq do with it (training.md 5.5)."""

    BLACK_BOX = "black-box"  # run as it is, never moved
    SIGNAL = "signal"  # checkpoints on a signal, may be stopped and started again with the same number of GPUs
    SCRIPT = "script"  # launched with one replica per GPU; what it can do, it declares itself


class Wish(Word):
    """What the user wants of a job; the next rounds bring it about."""

    RUN = "run"
    HOLD = "hold"
    CANCEL = "cancel"
    REQUEUE = "requeue"


class On(Word):
    """How a job has to end for another to start after it."""

    OK = "ok"
    NOTOK = "notok"  # failed, cancelled, or beyond its time limit
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Dependency:
    """Written `12:ok`."""

    job: JobId
    on: On = On.OK

    def __str__(self) -> str:
        return f"{self.job}:{self.on}"


@dataclass(frozen=True, slots=True)
class Seat:
    """Which element of an array a job is. The array's id is a job's id that no job has; its elements' ids follow it."""

    array: JobId
    index: int
    size: int  # elements of the array
    limit: int = 0  # that may hold GPUs at once; 0: any number
    params: tuple[tuple[str, str], ...] = ()  # of a sweep: name and value, put into the arguments already


class StopReason(Word):
    RESIZE = "resize"
    PREEMPT = "preempt"
    HOLD = "hold"
    REQUEUE = "requeue"
    CANCEL = "cancel"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Attributes:
    """What the shell that submitted a job had beside its variables, and what its processes have."""

    umask: int
    nice: int
    limits: tuple[tuple[str, int, int], ...] = ()  # name of a resource, soft, hard; -1 and what is not named: unlimited


@dataclass(frozen=True, slots=True)
class Proof:
    """What `gpq check` found of a program (wire.Proof). `at`: when, UTC."""

    program: str
    same: tuple[str, ...] = ()  # of FREEDOMS
    lost: tuple[str, ...] = ()  # of FREEDOMS
    message: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What was asked. Changes by `Edited` alone."""

    argv: tuple[str, ...]  # the command; for a script: its path, then its arguments
    cwd: str
    user: str
    uid: int
    level: Level = Level.BLACK_BOX
    name: str = ""
    env: tuple[tuple[str, str], ...] = ()
    python: str = ""  # interpreter of a script
    python_asked: bool = False  # its user named it; else a server's own one, or that of `setup`, comes first
    setup: str = ""  # shell command, run once on each server before the first launch there
    modules: tuple[str, ...] = ()  # that the interpreter must find
    environment: str = ""  # what has to be there, as a digest (gpq.core.feasibility.environments); "" = nothing
    min_gpus: int = 1
    max_gpus: int = 0  # 0 = as many as pay off
    rigid: bool = False  # a script that is never resized
    gpu_type: str = ""  # substring of the device type, case-insensitive
    min_gpu_memory_mib: int = 0
    priority: int = 0
    time_limit: Seconds | None = None  # of run time, over all attempts
    retries: int = 0
    requeue_on_lost: Seconds = (
        0.0  # the lease: ends itself after so long a silence, and is then started elsewhere; 0 = off
    )
    signal: str = "TERM"
    grace: Seconds = 120.0  # from the stop order to KILL
    resume_argv: tuple[str, ...] = ()  # appended from the second attempt on
    done_file: str = ""  # the job writes it at its end, so that an exit with 0 after a stop order counts; "" = none
    batch_size: int = 0  # M0, overrides what the script declares; 0 = the script's
    max_batch_size: int = 0
    min_atomic_batch: int = 0
    max_atomic_batch: int = 0
    tags: tuple[str, ...] = ()
    after: tuple[Dependency, ...] = ()  # starts once these have ended so
    begin: Seconds = 0.0  # starts no earlier
    background: bool = False  # takes only what nobody else wants, and leaves it when somebody does
    seat: Seat | None = None  # in an array
    notify: tuple[str, ...] = ()  # names of targets of config.toml, "desktop", "mailto:ADDRESS": never a URL
    notify_on: tuple[str, ...] = ()  # of what (gpq.outward.WORDS)
    code: str = ""  # SHA-256 of the archive that its code was frozen in; "" runs what lies in `cwd` then
    code_cwd: str = ""  # the working directory in it, relative
    code_from: str = ""  # what was frozen, for people: commit, dirty or not, how many files
    attributes: Attributes | None = None  # None: an older submission's, or another program's: the server's own
    accept: tuple[str, ...] = ()  # codes of habits that the library may suspect as it likes: they take no freedom
    proof: Proof | None = None  # what `gpq check` found of the script before it was submitted


@dataclass(frozen=True, slots=True)
class Shape:
    """How many GPUs, over how many nodes (Pollux's K, N), of which type. The type is named where there are several types
    of devices (`shapes.is_mixed`), and is "" where all are of one."""

    replicas: int
    nodes: int = 1
    gpu_type: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """A shape whose nodes a policy chose itself: (node, how many of its GPUs), sorted by node. Of one type of GPUs."""

    parts: tuple[tuple[NodeId, int], ...]
    gpu_type: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for a node that is named twice, or of which nothing is taken."""
        if len({node for node, _ in self.parts}) < len(self.parts) or any(count < 1 for _, count in self.parts):
            raise ValueError(f"a layout names a server twice, or takes nothing of one: {self.parts}")

    @property
    def shape(self) -> Shape:
        return Shape(sum(count for _, count in self.parts), len(self.parts), self.gpu_type)


Allotment = Shape | Layout


@dataclass(frozen=True, slots=True)
class Placement:
    """Exactly which devices: (node, its devices), sorted by node. Node rank is the position. `gpu_type` follows from the
    devices (all of one type) and does not count when two placements are compared."""

    parts: tuple[tuple[NodeId, tuple[DeviceId, ...]], ...]
    gpu_type: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError for a node that is named twice, or without devices, or with one of them twice: a job that
        held such a placement would never be over."""
        if len({node for node, _ in self.parts}) < len(self.parts):
            raise ValueError(f"a placement names a server twice: {self}")
        for _, devices in self.parts:
            if not devices or len(set(devices)) < len(devices):
                raise ValueError(f"a placement names a server without devices, or one of them twice: {self}")

    @property
    def replicas(self) -> int:
        if len(self.parts) == 1:  # most often
            return len(self.parts[0][1])
        return sum(len(devices) for _, devices in self.parts)

    @property
    def shape(self) -> Shape:
        return Shape(self.replicas, len(self.parts))

    @property
    def counts(self) -> tuple[tuple[NodeId, int], ...]:
        """(node, how many devices), sorted by node: the parts of a `Layout`."""
        return tuple((node, len(devices)) for node, devices in self.parts)

    @property
    def devices(self) -> frozenset[tuple[NodeId, DeviceId]]:
        return frozenset((node, device) for node, devices in self.parts for device in devices)

    def __str__(self) -> str:
        return " + ".join(f"{node}:{','.join(devices)}" for node, devices in self.parts)


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The batch that a job is told to use. `seq` grows; 0/0 leaves the choice to the library."""

    seq: int = 0
    atomic_batch: int = 0
    accum_steps: int = 0


@dataclass(frozen=True, slots=True)
class Exit:
    """How an attempt ended on one node (wire.ExitRecord)."""

    code: int | None
    signal: int | None = None
    stopped: bool = False
    asked: str = ""
    ended_at: Seconds = 0.0  # by the daemon's clock; 0: not known
    oom: bool = False
    note: str = ""
    lost: bool = False  # nobody saw it: the node rebooted, the shim was killed, or the node was silent beyond the lease
    fenced: bool = False  # ended by its lease
    unlaunched: str = ""  # the user's program did not begin: "port" was taken, "network": its servers did not meet
    excused: str = ""  # why its end is no failure of the job's: gpq chose a batch that did not fit
    cause: str = ""  # what failed first there
    victim: bool = False  # it failed because processes of another node of the attempt were gone
    finished: bool = False  # code 0 after a stop was asked for, and `evidence` says that it had come to its end
    evidence: str = ""

    @property
    def status(self) -> int:
        """As a shell would give it: the code, 128 + n for signal n, 1 when it is not known."""
        if self.code is not None:
            return self.code
        return 128 + self.signal if self.signal else 1


@dataclass(frozen=True, slots=True)
class FilesAt:
    """Where a job's newest checkpoint lies, if it has one: the node, and the folder that others may share with it."""

    node: NodeId
    storage: str = ""
    proved: bool = False  # an attempt that was stopped there, or before, said by its exit code that it keeps one
    stays: str = ""  # why it cannot be brought to another folder, until an attempt has written there again
    looked_at: Seconds = 0.0  # when that was found


@dataclass(frozen=True, slots=True)
class Job:
    id: JobId
    spec: JobSpec
    submitted_at: Seconds
    state: JobState = JobState.PENDING
    wish: Wish = Wish.RUN
    attempt: int = 0  # of the latest launch; 0 = none yet; the fence
    lost_attempts: tuple[int, int] = (0, 0)  # first and last number that a database that was lost may have given out
    placement: Placement | None = None  # held exactly in HOLDS_DEVICES
    order: BatchOrder = field(default_factory=BatchOrder)
    port: int = 0  # leased to this attempt on its first node
    launched_at: Seconds | None = None  # of this attempt
    started_at: Seconds | None = None  # of this attempt: its processes run
    first_started_at: Seconds | None = None
    ended_at: Seconds | None = None
    started_nodes: tuple[NodeId, ...] = ()
    exits: tuple[tuple[NodeId, Exit], ...] = ()  # of this attempt, as they come in
    stop: StopReason | None = None  # asked of this attempt
    stop_sent_at: Seconds | None = None
    target: Shape | None = None  # what it was stopped to go on with, until it does
    stop_forced: bool = False  # a cancel that overtook a graceful stop
    exit: Exit | None = None  # of the latest attempt that ended
    service: float = 0.0  # GPU-seconds held by attempts that ended
    run_seconds: Seconds = 0.0  # of attempts that ended
    restarts: int = 0  # launches after the first
    resizes: int = 0  # of those, with another number of GPUs
    failures: int = 0  # attempts that failed
    quick_failures: int = 0  # of those, the latest in a row that ended within quick_failure_seconds
    crashes: int = 0  # attempts in a row that were lost soon after their start: does it take its server down?
    not_before: Seconds = 0.0  # waits after a failure
    awaits: tuple[Dependency, ...] = ()  # of `spec.after`: those that have not ended yet
    unmet: str = ""  # how one of them ended otherwise than it was to; until its user lets it run all the same
    restart_seconds: Seconds | None = None  # measured: stopping, then launch to first step; not what it waited between
    stop_seconds: Seconds | None = None  # what the stop took of the restart that is now being measured
    last_replicas: int = 0  # of the latest launch
    report_offset: int = 0  # of this attempt's report file: what lies before it is in `profile`
    profile: Profile = field(default_factory=Profile)
    pulses: tuple[RankPulse, ...] = ()  # of replicas on nodes where none has made a step for a while
    files: FilesAt | None = None  # None: it has run nowhere yet
    staged_seconds: Seconds = (
        0.0  # that this attempt waited for files: no part of what a restart takes where they are shared
    )
    notices: tuple[str, ...] = ()  # the latest few lines for the user
    idle: bool = False  # it had GPUs for long without using them, and none that it used since
    account: Account = field(default_factory=Account)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def next_attempt(self) -> int:
        """Numbers are never reused."""
        return max(self.attempt, self.lost_attempts[1]) + 1

    @property
    def resumable(self) -> bool:
        """Does it go on from a checkpoint after a stop? Exactly as if it had not stopped only if it is `movable`."""
        return self.spec.level is Level.SIGNAL or (
            self.spec.level is Level.SCRIPT and self.profile.declared is not None
        )

    @property
    def elastic(self) -> bool:
        """May its number of GPUs change while it runs? Only once the script has declared itself to the library, and while
        no habit of its loop stands against it."""
        return (
            self.resumable
            and self.spec.level is Level.SCRIPT
            and not self.spec.rigid
            and RESIZE not in self.profile.lost
        )

    @property
    def movable(self) -> bool:
        """May gpq stop it and start it again, with nothing lost of what it did and nothing changed?"""
        return self.elastic or self.spec.level is Level.SIGNAL

    @property
    def replicas(self) -> int:
        return self.placement.replicas if self.placement else 0

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Where its attempt is placed, the node of rank 0 first."""
        return tuple(node for node, _ in self.placement.parts) if self.placement else ()

    def service_at(self, now: Seconds) -> float:
        """Attained service, GPU-seconds, the running attempt included."""
        held = max(now - self.launched_at, 0.0) * self.replicas if self.placement and self.launched_at else 0.0
        return self.service + held


@dataclass(frozen=True, slots=True)
class Config:
    """What the core needs to know of the configuration. All of it is an argument; the core reads no file."""

    interval: Seconds = 60.0
    policy: str = "goodput"
    fairness_power: float = 0.25  # p of the power utility; -1 = Pollux's harmonic mean
    restart_seconds: Seconds = 30.0  # assumed of a job whose restart was not yet measured
    hysteresis_seconds: Seconds = 150.0  # H of the restart factor (H - R) / H
    batch_hysteresis: float = 0.05  # a batch change must promise this much more goodput
    batch_growth: float = 2.0  # at most this factor a change
    settle_seconds: Seconds = 15.0  # a job is not moved again before it ran this long
    retry_seconds: Seconds = 5.0  # wait after a failed attempt, doubled each time
    quick_failure_seconds: Seconds = 30.0  # an attempt that fails sooner counts towards the hold
    max_quick_failures: int = 3
    crash_seconds: Seconds = 3600.0  # an attempt that is lost sooner counts as a crash of its server or of its shim
    max_crashes: int = 3
    idle_after: Seconds = 1800.0  # a GPU that a job does not use for so long is named, after twice that taken; 0 = off
    port_salt: int = 0  # shifts master ports, so that daemons beside each other use different ones
    seed: int = 0  # of policies that search at random
    events: bool = True  # a round also when something happens, not by the timer alone
    # What `goodput` uses beyond Pollux; each may be switched off (`make bench-policy` shows what it gives):
    by_user: bool = True  # fair shares by user first, then by job; off: by job
    use_length: bool = True  # what is left of declared lengths
    fairness_floor: bool = True  # who falls far short of the fair share counts for more
    use_priors: bool = True  # profiles of earlier jobs of the same program
    measured_restart: bool = True  # each job's own restart time; off: `restart_seconds` for all


class Oracle(Protocol):
    """What a simulator lets a policy know that no job could tell. Live there is none: policies then use estimates."""

    @property
    def remaining_steps(self) -> float:
        """Optimiser steps still to do at the batch that the job asked for."""
        ...

    def step_seconds(self, shape: Shape) -> Seconds | None:
        """True time of one of these steps at a packed `shape`; None where it cannot run."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a round may look at. Jobs that ended are not in it; the store has them."""

    now: Seconds = 0.0
    config: Config = field(default_factory=Config)
    nodes: Mapping[NodeId, Node] = field(default_factory=dict)
    jobs: Mapping[JobId, Job] = field(default_factory=dict)
    next_id: int = 1  # ids are never reused
    round_at: Seconds = 0.0  # of the last allocation
    priors: Mapping[str, Prior] = field(default_factory=dict)  # by `priors.program_of`, those learnt last at the end
    oracles: Mapping[JobId, Oracle] = field(default_factory=dict)  # of the simulator alone
    drained: Mapping[NodeId, str] = field(
        default_factory=dict
    )  # nothing new is placed there, and why; news undoes it not
    reservations: Mapping[int, Reservation] = field(default_factory=dict)  # by id; also some that are over
    next_reservation: int = 1
    links: Mapping[tuple[NodeId, NodeId], Link] = field(default_factory=dict)  # by the names of both ends, sorted
    checks: Mapping[tuple[NodeId, str], Fitness] = field(default_factory=dict)  # by `JobSpec.environment`; not kept
    rates: Mapping[tuple[NodeId, NodeId], float] = field(
        default_factory=dict
    )  # bytes a second from one to the other, of files that were brought since the daemon started
    idle: Mapping[tuple[NodeId, DeviceId], Seconds] = field(default_factory=dict)  # not used since; not kept
    lost_ids: tuple[tuple[int, int], ...] = ()  # first and last, of jobs of a database that was lost: they may yet run
    means: Mapping[JobId, MeanShare] = field(default_factory=dict)  # shares averaged over the lives of live jobs
    means_at: Seconds = 0.0  # counted up to then; 0: not yet since the daemon started
    means_kept: Mapping[JobId, MeanShare] = field(default_factory=dict)  # as they were when last kept
    means_kept_at: Seconds = 0.0

    @property
    def holders(self) -> list[Job]:
        """Jobs in HOLDS_DEVICES, by id: few, however many there are."""
        return sorted((job for job in self.jobs.values() if job.placement is not None), key=lambda job: job.id)

    def expected_on(self, node: NodeId) -> list[Job]:
        """Jobs with an attempt on `node` whose end there is not known yet, by id."""
        return [job for job in self.holders if node in job.nodes and all(name != node for name, _ in job.exits)]


def arrival(job: Job) -> tuple[int, Seconds, JobId]:
    """Sorts by priority, then submission."""
    return -job.spec.priority, job.submitted_at, job.id
