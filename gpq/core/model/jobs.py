"""The data types of a job: what was asked, and what it is. Decides nothing.

Frozen data. Units: seconds (wall clock, or a difference of two), MiB, examples. Machines are in
`nodes`, measurements of a job in `profile`, ids in `units`, and where it runs in `placements`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpq.core.model.accounts import Account, Gain, Mark, RestartTimes
from gpq.core.model.placements import BatchOrder, Exit, FilesAt, Layout, Placement, Shape
from gpq.core.model.profile import RESIZE, Profile, RankPulse
from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds, Word
from gpq.job_request import JobRequest


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
TORCHRUN = "torchrun"
ANY_NUMBER = 1 << 30  # of GPUs: more than any cluster has


class Level(Word):
    """What a job lets gpq do with it (training.md 5.5)."""

    BLACK_BOX = "black-box"  # run unchanged, never moved
    # checkpoints on a signal, so gpq may restart it with the same number of GPUs
    SIGNAL = "signal"
    SCRIPT = "script"  # launched with one replica per GPU. It declares itself what it can do


class DesiredState(Word):
    """What the user wants of a job. The next rounds act on it."""

    RUN = "run"
    HOLD = "hold"
    CANCEL = "cancel"
    REQUEUE = "requeue"


class On(Word):
    """How a job must end so that another one may start after it."""

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
    """Which element of an array a job is. No job has the array's id. The ids of its elements follow
    it."""

    array: JobId
    index: int
    size: int  # elements of the array
    limit: int = 0  # that may hold GPUs at once. 0: any number
    # of a sweep: name and value, already put into the arguments
    params: tuple[tuple[str, str], ...] = ()


class StopReason(Word):
    RESIZE = "resize"
    PREEMPT = "preempt"
    HOLD = "hold"
    REQUEUE = "requeue"
    CANCEL = "cancel"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Attributes:
    """What the submitting shell had besides its variables. The job's processes get the same."""

    umask: int
    nice: int
    # name of a resource, soft, hard. -1 and unnamed ones: unlimited
    limits: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Proof:
    """What `gpq check` found of a program (wire.Proof). `at` is the time in UTC."""

    program: str
    same: tuple[str, ...] = ()  # of FREEDOMS
    lost: tuple[str, ...] = ()  # of FREEDOMS
    message: str = ""
    at: str = ""


class JobSpec(JobRequest[tuple[str, ...]], frozen=True, kw_only=True):
    """What was asked, checked and with the defaults of config.toml. Only `Edited` changes it."""

    user: str
    uid: int
    level: Level = Level.BLACK_BOX
    env: tuple[tuple[str, str], ...] = ()
    # a digest of what a server must have (gpq.core.feasibility.environments). "" = nothing
    environment: str = ""
    requeue_on_lost: Seconds = 0.0  # the lease. 0 = off
    grace: Seconds = 120.0
    after: tuple[Dependency, ...] = ()  # starts after these have ended as required
    seat: Seat | None = None  # its place in an array
    notify: tuple[str, ...] = ()
    notify_on: tuple[str, ...] = ()  # which events (gpq.outward.WORDS)
    # None (an older submission or another program) means the server's own
    attributes: Attributes | None = None
    proof: Proof | None = None  # what `gpq check` found of the script before the submission

    @property
    def archives(self) -> tuple[str, ...]:
        """The archives that a server needs before it starts."""
        return tuple(filter(None, (self.code, self.stdin)))


Allotment = Shape | Layout


@dataclass(frozen=True, slots=True)
class Job:
    id: JobId
    spec: JobSpec
    submitted_at: Seconds
    state: JobState = JobState.PENDING
    wish: DesiredState = DesiredState.RUN
    attempt: int = 0  # of the latest launch. 0 = none yet. Also the fence
    # first and last number that a lost database may have used
    lost_attempts: tuple[int, int] = (0, 0)
    placement: Placement | None = None  # held exactly in HOLDS_DEVICES
    order: BatchOrder = field(default_factory=BatchOrder)
    port: int = 0  # leased to this attempt on its first server
    launched_at: Seconds | None = None  # of this attempt
    started_at: Seconds | None = None  # of this attempt: its processes run
    first_started_at: Seconds | None = None
    ended_at: Seconds | None = None
    started_nodes: tuple[NodeId, ...] = ()
    exits: tuple[tuple[NodeId, Exit], ...] = ()  # of this attempt, as they arrive
    stop: StopReason | None = None  # asked of this attempt
    stop_sent_at: Seconds | None = None
    target: Shape | None = None  # the shape for which it was stopped, until it has it
    fresh: bool = False  # its next start has an empty checkpoint folder
    stop_forced: bool = False  # a cancel that overtook a graceful stop
    exit: Exit | None = None  # of the latest attempt that ended
    service: float = 0.0  # GPU-seconds held by ended attempts
    run_seconds: Seconds = 0.0  # of ended attempts
    restarts: int = 0  # launches after the first
    resizes: int = 0  # launches after the first with another number of GPUs
    failures: int = 0  # attempts that failed
    quick_failures: int = 0  # of those, the latest in a row that ended within quick_failure_seconds
    soon_ends: int = 0  # attempts in a row that ended that soon without a stop, failed or not
    # attempts in a row that were lost soon after their start: does it crash its server?
    crashes: int = 0
    not_before: Seconds = 0.0  # waits after a failure
    awaits: tuple[Dependency, ...] = ()  # those of `spec.after` that have not ended yet
    # how one of them ended otherwise than required, until that one runs again or its user releases
    # the job
    unmet: str = ""
    unmet_by: tuple[tuple[JobId, JobState], ...] = ()  # all that ended so
    # measured: stopping, and launch to first step. Not the wait in between. Its first start until
    # there was a restart
    restart_seconds: Seconds | None = None
    # the stop's part of the restart that is now being measured
    stop_seconds: Seconds | None = None
    restart_times: tuple[RestartTimes, ...] = ()  # the latest few, the newest last
    marks: tuple[Mark, ...] = ()  # of this attempt or, while it waits, of the last one
    gains: tuple[Gain, ...] = ()  # the latest few resizes, the newest last
    last_replicas: int = 0  # of the latest launch
    report_offset: int = 0  # of this attempt's report file: everything before it is in `profile`
    profile: Profile = field(default_factory=Profile)
    # of replicas on servers where none has made a step for a while
    pulses: tuple[RankPulse, ...] = ()
    files: FilesAt | None = None  # None: it has never run
    staged_seconds: Seconds = (
        # this attempt waited for files. Shared folders have no such wait, so it is not part of a
        # restart
        0.0
    )
    notices: tuple[str, ...] = ()  # the latest few lines for the user
    idle: bool = False  # it had GPUs for long without using them, and has used none since
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
        """Does it resume from a checkpoint after a stop? Only a `movable` job resumes exactly."""
        return self.spec.level is Level.SIGNAL or (
            self.spec.level is Level.SCRIPT and self.profile.declared is not None
        )

    @property
    def elastic(self) -> bool:
        """May its number of GPUs change while it runs? Only after the script has declared itself to
        the library, and while no habit of its loop prevents it."""
        return (
            self.resumable
            and self.spec.level is Level.SCRIPT
            and not self.spec.rigid
            and RESIZE not in self.profile.lost
        )

    @property
    def movable(self) -> bool:
        """May gpq stop and restart it without losing work or changing results?"""
        return self.elastic or self.spec.level is Level.SIGNAL

    @property
    def replicas(self) -> int:
        return self.placement.replicas if self.placement else 0

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The servers of its attempt, that of rank 0 first."""
        return tuple(node for node, _ in self.parts)

    @property
    def parts(self) -> tuple[tuple[NodeId, tuple[DeviceId, ...]], ...]:
        """(server, devices) of its placement."""
        return self.placement.parts if self.placement else ()

    def service_at(self, now: Seconds) -> float:
        """GPU-seconds received, including the running attempt."""
        if not self.placement or not self.launched_at:
            return self.service
        return self.service + max(now - self.launched_at, 0.0) * self.replicas


def arrival(job: Job) -> tuple[int, Seconds, JobId]:
    """Sorts by priority, then by submission."""
    return -job.spec.priority, job.submitted_at, job.id


MAX_NOTICES = 12


def with_notices(job: Job, *lines: str) -> Job:
    """`job` with more lines for its user, the newest last, each only once. Empty ones are no
    lines."""
    notices = job.notices
    for line in filter(None, lines):
        if notices[-1:] != (line,):
            notices = (*(other for other in notices if other != line), line)[-MAX_NOTICES:]
    return job if notices is job.notices else replace(job, notices=notices)


def without_hold(job: Job) -> Job:
    """`job` without the line on why it was held, which advises what no longer applies."""
    return replace(job, notices=tuple(line for line in job.notices if not line.startswith("held")))


def note_for_waiters(ended: Job) -> str:
    """The line for jobs that waited for this one, or "". They start, but may lack what it was to
    make."""
    if ended.state is not JobState.COMPLETED or ended.exit is None or not ended.exit.note:
        return ""
    return f"job {ended.id}, which it comes after, completed with a note: {ended.exit.note}"
