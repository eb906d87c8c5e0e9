"""What a member's daemon and the arbiter of a team say to each other: JSON lines as in `protocol`,
with other requests. Each request is a level. To repeat it changes nothing."""

from __future__ import annotations

import msgspec

from gpq.core.team.claims import Statement

MAX_LINE = 1 << 20  # bytes
MAX_DEPTH = 16
LONGEST_TAKE = 15.0  # seconds
AHEAD = 60.0  # seconds. An epoch is a time, and one that is further in the future counts nowhere


class TeamRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag=str.lower):
    """A message to the arbiter. Who sends it is what the kernel says."""


class Hello(TeamRequest, frozen=True, kw_only=True):
    """Who is there? Answered by `Welcome`."""

    team: str


class Tell(TeamRequest, frozen=True, kw_only=True):
    """All that the daemon has to tell. Answered by `Receipt`. `seq` grows."""

    seq: int
    statement: Statement


class Take(TeamRequest, frozen=True, kw_only=True):
    """The newest `gpq.core.team.grants.Grants`, as soon as they differ from those of this round, or
    after `LONGEST_TAKE`."""

    round: int = -1
    epoch: int = 0


class View(TeamRequest, frozen=True, kw_only=True):
    """`kind` says what is answered: "queue" a `Queue`, "members" a `Membership`, "report" the
    `GpuHours`, "servers" the `TeamServers`, "audit" the `AuditLines`, and "why" the `Reasons`."""

    kind: str
    lines: int = 100  # of the audit, the newest
    member: str = ""  # whose `job`, for "why"
    job: int = 0
    since: str = ""  # of the report, the first UTC day
    until: str = ""  # the first day after it


class Amend(TeamRequest, frozen=True, kw_only=True):
    """A change of the roster, or a recall. Answered by `Receipt`. `value` is the uid to add, the
    share, whether the member is an admin (1 or 0), or the job to recall."""

    action: str  # one of `gpq.arbiter.roster.CHANGES`, or "recall"
    member: str
    value: float = 0.0


class Welcome(msgspec.Struct):
    """`member` is what the roster calls the sender. `alone`: came by a socket of their own."""

    epoch: int
    member: str
    admin: bool
    alone: bool = False


class Receipt(msgspec.Struct):
    seq: int = 0


class QueueRow(msgspec.Struct):
    """A job as all members may see it."""

    member: str
    job: int
    state: str
    gpus: int
    age: float  # seconds since its submission
    name: str = ""
    servers: list[str] = []
    why: str = ""  # it waits


class Queue(msgspec.Struct):
    """The jobs of all, and how many wait that nobody told more of."""

    rows: list[QueueRow]
    more: dict[str, int]


class Reasons(msgspec.Struct):
    """Why a job waits, or has these GPUs, the headline first. Empty: there is nothing to say."""

    lines: list[str]


class MemberRow(msgspec.Struct):
    name: str
    share: float
    admin: bool
    paused: bool
    silent: bool
    floor: int
    devices: int  # that the member's jobs hold
    borrowed: float
    debt: float  # GPU-seconds
    gpu_hours: float  # that they held since the ledger began


class Membership(msgspec.Struct):
    rows: list[MemberRow]
    devices: int  # of the team


class Look(msgspec.Struct):
    """What `gpq top --team` shows."""

    members: Membership
    queue: Queue


class GpuHours(msgspec.Struct):
    """From the first to the last UTC day with GPU hours. Former members have no share."""

    since: str  # "" if nobody had a GPU
    until: str
    gpu_hours: dict[str, float]  # by member
    shares: dict[str, float]  # that they have now


class TeamServer(msgspec.Struct):
    """`address` and `port` are those of an admin. "": no admin reaches it by ssh. `kind` is "cuda"
    or "cpu"."""

    name: str
    address: str
    port: int  # 0: as ssh's configuration says
    state: str
    kind: str
    types: list[str]
    devices: int
    free: int
    members: list[str]  # whose daemons have it
    holders: dict[str, int]  # devices by member


class TeamServers(msgspec.Struct):
    rows: list[TeamServer]


class AuditLines(msgspec.Struct):
    """The newest lines, and the number of the first line of all that does not follow from the one
    before. 0: all do."""

    lines: list[str]
    broken: int
