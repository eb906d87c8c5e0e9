"""The requests of clients, one struct each, and the contents of a submission."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from gpq.job_request import NO_WORDS, JobRequest


class Request(
    msgspec.Struct, frozen=True, tag_field="op", tag=str.lower, forbid_unknown_fields=True
):
    """Base of all requests. The tag is the name in lower case."""


class AttributesMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attributes of the shell that submits a job, apart from its variables. `limits`: [soft, hard]
    by the names of RLIMIT_* in lower case. -1 is unlimited, and so are names that are missing."""

    umask: int
    nice: int
    limits: dict[str, tuple[int, int]] = {}


class ProofMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `gpq check` found about a program before it was submitted."""

    program: str  # digest of the script, its own modules, and the versions of torch and gpq
    same: list[str]  # freedoms whose shapes trained the same
    # freedoms that gpq does not use, because a shape differs, fails or is `told`
    lost: list[str]
    message: str = ""  # those shapes
    at: str = ""  # when gpq check ran, UTC


class SpecMessage(JobRequest[list[str]], frozen=True, forbid_unknown_fields=True):
    """A job as the command line parsed it. It has no user and no uid, because the daemon takes
    them from the socket."""

    env: dict[str, str] = msgspec.field(default_factory=dict)
    # starts after these have ended: `12:ok`, `@:any`, `train:notok`
    after: list[str] = msgspec.field(default_factory=list)
    attributes: AttributesMessage | None = None  # None: those of the server
    proof: ProofMessage | None = None  # what `gpq check` found about the script

    def __post_init__(self) -> None:
        """Words that were not given are an empty list, as if they had travelled."""
        for name in self.__struct_fields__:
            if getattr(self, name) == NO_WORDS:
                msgspec.structs.force_setattr(self, name, [])


class ArrayMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Many jobs of one submission, which differ only in `{index}` and the `{name}`s of
    `params`."""

    indices: list[int]
    params: list[dict[str, str]] = []  # values of a sweep, one per index
    limit: int = 0  # how many of the jobs may have GPUs at once. 0: any number


class Submit(Request, frozen=True):
    spec: SpecMessage
    held: bool = False
    dry_run: bool = False  # answer a DryRun and keep nothing
    array: ArrayMessage | None = None


class Status(Request, frozen=True):
    """`jobs`: selectors as typed (ids, ranges, names, @, all). Empty: live jobs and the `recent`
    jobs that ended last. `waiting`: the most rows for waiting jobs, for a screen. 0: no limit."""

    jobs: list[str] = []
    recent: int = 20
    user: str = ""
    states: list[str] = []
    # such as `user=ana`, `tag~cifar`, `sort=-goodput` (gpq.control.query_language)
    query: list[str] = []
    waiting: int = 0


class History(Request, frozen=True):
    """Jobs that ended, the `limit` latest that match (0: all). `jobs`: as in Status, but a name
    means all jobs with that name. `since` and `until` limit their ends, in seconds since the
    epoch."""

    jobs: list[str] = []
    user: str = ""
    states: list[str] = []
    since: float | None = None
    until: float | None = None
    limit: int = 20


class Report(Request, frozen=True):
    """A report on a time, in seconds since the epoch. Without `since` it begins at the first job.
    `by`: "user", "job", "server" or "day", with days in the daemon's time zone."""

    since: float | None = None
    until: float | None = None
    by: str = "user"


class Show(Request, frozen=True):
    job: str


class Why(Request, frozen=True):
    job: str


class Logs(Request, frozen=True):
    """A piece of the log of one attempt from `offset`. Waits up to `wait` seconds if there is
    none yet."""

    job: str
    attempt: int = 0  # 0: the first. The answer lists all attempts
    node: str = ""
    offset: int = 0
    limit: int = 262_144
    wait: float = 0.0
    tail: int = 0  # begin at most this many bytes before the end, instead of at `offset`


class Select(Request, frozen=True):
    """Which jobs the selectors mean now, for a command that then names their ids."""

    jobs: list[str]


class Cancel(Request, frozen=True):
    """Answers when every process of the jobs is gone, or after `wait` seconds with the rest."""

    jobs: list[str]
    wait: float = 180.0


class Hold(Request, frozen=True):
    jobs: list[str]


class Release(Request, frozen=True):
    jobs: list[str]


class Requeue(Request, frozen=True):
    """`fresh`: jobs that have ended start from the beginning, or none does (False). None: those
    that completed do."""

    jobs: list[str]
    fresh: bool | None = None


class Edit(Request, frozen=True):
    """`changes`: fields of SpecMessage with their new values. Adds `tags` and removes
    `untags`."""

    jobs: list[str]
    changes: dict[str, object] = {}
    tags: list[str] = []
    untags: list[str] = []
    array_limit: int | None = None


class Wait(Request, frozen=True):
    """Answers with the rows of the jobs when all have ended, or after `wait` seconds."""

    jobs: list[str]
    wait: float = 30.0


class Nodes(Request, frozen=True):
    names: list[str] = []


class Drain(Request, frozen=True):
    """Place nothing new on a server. A second request changes the reason, if it has one."""

    node: str
    reason: str = ""


class Undrain(Request, frozen=True):
    node: str


class Reserve(Request, frozen=True):
    """Keep GPUs of a server (indices or UUIDs, none: all) for one user, or from gpq. Times are in
    seconds since the epoch, and a start in the past means now."""

    node: str
    start: float
    end: float
    gpus: list[str] = []
    user: str = ""


class Unreserve(Request, frozen=True):
    id: int


class Clean(Request, frozen=True):
    """Remove for good the jobs that ended more than `older` seconds ago. `dry_run`: only say how
    many."""

    older: float
    dry_run: bool = False


class Top(Request, frozen=True):
    """Everything that `gpq top` draws, in one answer. `jobs` and `query` as in Status, but only a
    few ended jobs are included, or the last hundred if the query asks for ended states."""

    jobs: list[str] = []
    query: list[str] = []


class Complete(Request, frozen=True):
    """Words for shell completion. `kind` is "jobs", "nodes", "users" or "names". Jobs are those
    that `command` ("cancel") can act on, without those in `given`, the words on the line. Without a
    command, all jobs."""

    kind: str
    prefix: str = ""
    command: str = ""
    given: list[str] = []


class Errand(Request, frozen=True):
    """Let a server run a check for `gpq doctor` (gpq_agent.node.doctor.checks) for at most `wait`
    seconds."""

    node: str
    errand: str
    fields: dict[str, object] = {}
    wait: float = 30.0


class Measured(Request, frozen=True):
    """Store how long an all-reduce between two servers took."""

    nodes: list[str]
    latency: float  # seconds
    bandwidth: float  # bytes per second
    backend: str = "gloo"


class Info(Request, frozen=True):
    """Ask about the daemon itself."""


class Reload(Request, frozen=True):
    """Read config.toml again, and add and remove servers. `force`: even if jobs run there."""

    force: bool = False


class Shutdown(Request, frozen=True):
    """Stop the daemon. Jobs keep running."""


PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill_placeholders(text: str, words: Mapping[str, str]) -> str:
    """`text` with each `{name}` of `words` replaced. Other braces stay as they are."""
    if "{" not in text:
        return text
    return PLACEHOLDER.sub(lambda match: words.get(match[1], match[0]), text)


def placeholders(text: str) -> set[str]:
    """The names of all placeholders in `text`."""
    return set(PLACEHOLDER.findall(text))
