"""Facts in the past tense: what users asked, what rounds ordered, what servers reported. Frozen
data that decides nothing.

The journal is the sequence of these, except the `EPHEMERAL` ones, whose effect is only in the
current state. If a field changes its meaning, raise `JOURNAL_VERSION` and write a migration.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpq.core.model.accounts import AttemptAccount, Promise
from gpq.core.model.jobs import Dependency, Job, JobSpec, StopReason
from gpq.core.model.nodes import Node, Reservation
from gpq.core.model.placements import BatchOrder, Exit, Placement, Shape
from gpq.core.model.profile import Declared, Habit, LossPoint, Noise, Progress, RankPulse, RankTime
from gpq.core.model.units import JobId, NodeId, Seconds

JOURNAL_VERSION = 1

# -- about servers ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """gpq starts nothing new there. A second request changes the reason."""

    at: Seconds
    node: NodeId
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class NodeUndrained:
    at: Seconds
    node: NodeId
    by: str = ""


@dataclass(frozen=True, slots=True)
class NodeReserved:
    at: Seconds
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class NodeUnreserved:
    at: Seconds
    id: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    at: Seconds
    node: Node


@dataclass(frozen=True, slots=True)
class NodeSilent:
    at: Seconds
    node: NodeId
    reason: str
    since: Seconds = 0.0  # last heard of. 0 means `at`


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    at: Seconds
    node: NodeId


@dataclass(frozen=True, slots=True)
class LinkMeasured:
    """Somebody timed an all-reduce between two servers. `nodes` are sorted."""

    at: Seconds
    nodes: tuple[NodeId, NodeId]
    latency: Seconds
    bandwidth: float  # bytes per second
    backend: str = "gloo"


@dataclass(frozen=True, slots=True)
class EnvironmentSeen:
    """A server checked for what jobs need there."""

    at: Seconds
    node: NodeId
    environment: str
    fit: bool
    reason: str = ""
    fix: str = ""


# -- the end of an attempt or of a job, concluded from reports (`attempt_end.conclude`) ------------


@dataclass(frozen=True, slots=True)
class Succeeded:
    at: Seconds
    job: JobId
    exit: Exit
    # of the ended attempt. None: there was none, or gpq did not keep it yet
    tally: AttemptAccount | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    at: Seconds
    job: JobId
    exit: Exit
    # of the ended attempt. None: there was none, or gpq did not keep it yet
    tally: AttemptAccount | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """The attempt is over but the job is not: it was asked to stop, or it failed and has another
    try."""

    at: Seconds
    job: JobId
    exit: Exit
    failed: bool = False
    quick: bool = False  # it failed within Config.quick_failure_seconds
    crashed: bool = False  # it was lost within Config.crash_seconds
    not_before: Seconds = 0.0
    soon: bool = False  # it ended within Config.quick_failure_seconds, and nobody had asked it to
    # of the ended attempt. None: there was none, or gpq did not keep it yet
    tally: AttemptAccount | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    at: Seconds
    job: JobId
    exit: Exit = field(default_factory=lambda: Exit(code=None))
    # of the ended attempt. None: there was none, or gpq did not keep it yet
    tally: AttemptAccount | None = None


@dataclass(frozen=True, slots=True)
class TimeLimitReached:
    at: Seconds
    job: JobId
    exit: Exit = field(default_factory=lambda: Exit(code=None))
    # of the ended attempt. None: there was none, or gpq did not keep it yet
    tally: AttemptAccount | None = None


End = Succeeded | Failed | Stopped | Cancelled | TimeLimitReached


# -- from requests ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submitted:
    at: Seconds
    job: JobId
    spec: JobSpec
    awaits: tuple[Dependency, ...] = ()  # of `spec.after`: those that had not ended then


@dataclass(frozen=True, slots=True)
class CancelAsked:
    at: Seconds
    job: JobId
    by: str = ""


@dataclass(frozen=True, slots=True)
class HoldAsked:
    at: Seconds
    job: JobId
    by: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseAsked:
    at: Seconds
    job: JobId
    by: str = ""


@dataclass(frozen=True, slots=True)
class RequeueAsked:
    at: Seconds
    job: JobId
    by: str = ""
    past: Job | None = None  # a job that had ended, and now comes back
    awaits: tuple[Dependency, ...] = ()  # of its `spec.after`: those that have not ended
    fresh: bool = False  # it starts from the beginning
    said: str = ""  # where it starts, for its user


@dataclass(frozen=True, slots=True)
class Edited:
    """A job has new settings from now on. `awaits` replaces its own, and `said` describes the
    change."""

    at: Seconds
    job: JobId
    spec: JobSpec
    awaits: tuple[Dependency, ...] = ()
    said: str = ""
    by: str = ""
    past: Job | None = None  # a job that has ended: its next start has these settings


@dataclass(frozen=True, slots=True)
class JobsRemoved:
    """These jobs ended long ago, and now everything about them goes, also from the journal. A job
    that another event of the same pass changes, or that a job then names in --after, stays."""

    at: Seconds
    jobs: tuple[JobId, ...]


# -- from rounds -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launched:
    at: Seconds
    job: JobId
    attempt: int
    placement: Placement
    order: BatchOrder
    why: str = ""
    port: int = 0
    promise: Promise | None = None  # of a resize whose goodput is known


@dataclass(frozen=True, slots=True)
class StopSent:
    at: Seconds
    job: JobId
    attempt: int
    reason: StopReason
    why: str = ""
    target: Shape | None = None  # of a resize


@dataclass(frozen=True, slots=True)
class Retuned:
    """gpq ordered a new batch for a running job."""

    at: Seconds
    job: JobId
    attempt: int
    order: BatchOrder
    why: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    at: Seconds
    job: JobId
    why: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    at: Seconds
    job: JobId


@dataclass(frozen=True, slots=True)
class Idled:
    """A job has not used GPUs for so long that it gets fewer."""

    at: Seconds
    job: JobId
    why: str = ""


# -- from the nodes of an attempt ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The processes of an attempt run on one server."""

    at: Seconds
    job: JobId
    attempt: int
    node: NodeId
    storage: str = ""  # of that node
    since: Seconds = 0.0  # when they started, perhaps reported late. 0: `at`
    note: str = ""  # attributes of the submitting shell that the server does not allow


@dataclass(frozen=True, slots=True)
class StartRefused:
    """The server did not start the attempt, and never will."""

    at: Seconds
    job: JobId
    attempt: int
    node: NodeId
    reason: str
    transient: bool  # e.g. the port was taken: try again. Otherwise the job is at fault
    code: int | None = None  # if a shell has an exit code for the reason
    stays: str = ""  # why its checkpoint can never be copied there


@dataclass(frozen=True, slots=True)
class Exited:
    """No process of the attempt is left on one server."""

    at: Seconds
    job: JobId
    attempt: int
    node: NodeId
    exit: Exit


@dataclass(frozen=True, slots=True)
class Staged:
    """gpq copied files of the job to a server before an attempt starts there."""

    at: Seconds
    job: JobId
    attempt: int
    source: NodeId
    node: NodeId
    bytes: int  # that were sent
    seconds: Seconds  # from the first question to the verification


@dataclass(frozen=True, slots=True)
class TimingSums:
    """Step times of one configuration (wire.Timing), in seconds."""

    nodes: int
    replicas: int
    atomic_batch: int
    accum_steps: int
    accum_count: int
    accum_sum: Seconds
    step_count: int
    step_sum: Seconds


@dataclass(frozen=True, slots=True)
class Profiled:
    """What a training process reported. Its report file was read up to `offset`. -1: these notices
    are of its server."""

    at: Seconds
    job: JobId
    attempt: int
    offset: int
    declared: Declared | None = None
    timings: tuple[TimingSums, ...] = ()
    noise: Noise | None = None
    progress: Progress | None = None
    ready: bool = False  # the first step of this attempt is done
    warm: bool = False  # and its interpreter had waited for it
    restore_seconds: Seconds = 0.0  # in which it read its checkpoint
    retuned: BatchOrder | None = None  # this order took effect
    checkpoint_seconds: Seconds | None = None
    checkpoint_bytes: int = 0  # 0: not reported
    checkpoint_step: int = 0
    metrics: tuple[tuple[str, float], ...] = ()
    losses: tuple[LossPoint, ...] = ()
    ranks: tuple[RankTime, ...] = ()  # the newest window
    notices: tuple[str, ...] = ()
    habits: tuple[Habit, ...] = ()


@dataclass(frozen=True, slots=True)
class Pulsed:
    """No replica of an attempt on one server has made a step for a while: where they are. None:
    they make progress again."""

    at: Seconds
    job: JobId
    attempt: int
    node: NodeId
    ranks: tuple[RankPulse, ...]


# -- all of them -----------------------------------------------------------------------------------

Event = (
    Submitted
    | CancelAsked
    | HoldAsked
    | ReleaseAsked
    | RequeueAsked
    | Edited
    | NodeDrained
    | NodeUndrained
    | NodeReserved
    | NodeUnreserved
    | JobsRemoved
    | Launched
    | StopSent
    | Retuned
    | Held
    | Released
    | Idled
    | NodeSeen
    | NodeSilent
    | NodeRemoved
    | LinkMeasured
    | EnvironmentSeen
    | Started
    | StartRefused
    | Staged
    | Exited
    | Profiled
    | Pulsed
    | End
)
EPHEMERAL: tuple[type, ...] = (
    NodeSeen, NodeSilent, EnvironmentSeen, Profiled, Pulsed, JobsRemoved,
)  # fmt: skip
# These need an allocation at once. Everything else waits for the timer.
TRIGGERS: tuple[type, ...] = (
    Submitted, CancelAsked, HoldAsked, ReleaseAsked, RequeueAsked, Edited, NodeDrained,
    NodeUndrained, NodeReserved, NodeUnreserved, NodeRemoved, StartRefused, Succeeded, Failed,
    Stopped, Cancelled, TimeLimitReached,
)  # fmt: skip
