"""What clients ask: a struct for each request, and what a submission holds."""

from __future__ import annotations

import msgspec


class Request(
    msgspec.Struct, frozen=True, tag_field="op", tag=str.lower, forbid_unknown_fields=True
):
    """Base of all requests; the tag is the lower-case name."""


class AttributesMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the shell that submits a job has beside its variables. `limits`: [soft, hard] by the
    names of RLIMIT_*, in small letters; -1 is unlimited, and so is what has no name there."""

    umask: int
    nice: int
    limits: dict[str, tuple[int, int]] = {}


class ProofMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `gpq check` found of a program before it was submitted."""

    program: str  # a digest of the script, its own modules, and the versions of torch and gpq
    same: list[str]  # freedoms in whose shapes it trained the same
    # freedoms that the job does without, since a shape differed, failed or was told
    lost: list[str]
    message: str = ""  # these shapes
    at: str = ""  # when it was found, UTC


class SpecMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job as the CLI parsed it. User and uid are not in it: the daemon takes them from the
    socket's peer."""

    argv: list[str]
    cwd: str
    level: str  # "black-box" | "signal" | "script"
    name: str = ""
    env: dict[str, str] = {}
    python: str = ""
    python_asked: bool = False  # else a server's own interpreter, or that of `setup`, comes first
    setup: str = ""
    modules: list[str] = []  # that the interpreter must find
    min_gpus: int = 1
    max_gpus: int = 0
    rigid: bool = False
    gpu_type: str = ""
    min_gpu_memory_mib: int = 0
    priority: int = 0
    time_limit: float | None = None
    retries: int = 0
    requeue_on_lost: float | None = None  # seconds; 0: off, None: as config.toml says
    signal: str = "TERM"
    grace: float | None = None  # None: as config.toml says
    resume_argv: list[str] = []
    done_file: str = ""  # written by the job at its end; relative to `cwd`
    batch_size: int = 0
    max_batch_size: int = 0
    min_atomic_batch: int = 0
    max_atomic_batch: int = 0
    tags: list[str] = []
    notify: list[str] | None = (
        None  # names of targets, "desktop", "mailto:ADDRESS"; []: nobody, None: as config.toml says
    )
    # "start", "restart", "retry", "fail", "end"; None: as config.toml says
    notify_on: list[str] | None = None
    # SHA-256 of the archive in the state directory's `snapshots` that it is to run in; "": none
    code: str = ""
    code_cwd: str = ""  # the working directory in it, relative
    code_from: str = ""  # what was frozen, for people
    after: list[str] = []  # `12:ok`, `@:any`, `train:notok`: starts once those have ended so
    begin: float = 0.0  # starts no earlier; seconds since the epoch
    background: bool = False  # takes only what nobody else wants
    attributes: AttributesMessage | None = None  # None: the server's own
    accept: list[str] = []  # codes of habits that are only suspected, and count for nothing
    proof: ProofMessage | None = None  # what `gpq check` found of the script


class ArrayMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Many jobs of one submission, alike but for `{index}` and the `{name}`s of `params` in what is
    run."""

    indices: list[int]
    params: list[dict[str, str]] = []  # of a sweep: one for each index
    limit: int = 0  # of them that may hold GPUs at once; 0: any number


class Submit(Request, frozen=True):
    spec: SpecMessage
    held: bool = False
    dry_run: bool = False  # answer a DryRun; nothing is kept
    array: ArrayMessage | None = None


class Status(Request, frozen=True):
    """`jobs`: selectors as typed (ids, ranges, names, @, all); empty: live jobs, and the `recent`
    latest that ended. `waiting`: rows at most for jobs that wait, of a listing for a screen; 0: a
    row for each."""

    jobs: list[str] = []
    recent: int = 20
    user: str = ""
    states: list[str] = []
    # `user=ana`, `tag~cifar`, `sort=-goodput` (gpq.control.answers.query_language)
    query: list[str] = []
    waiting: int = 0


class History(Request, frozen=True):
    """Jobs that ended, the `limit` latest of all that match (0: all). `jobs`: as in Status, but
    a name is all jobs of that name. `since` and `until` are of their ends, seconds since the
    epoch."""

    jobs: list[str] = []
    user: str = ""
    states: list[str] = []
    since: float | None = None
    until: float | None = None
    limit: int = 20


class Report(Request, frozen=True):
    """Accounts of a window, seconds since the epoch; without `since` from the first job on. `by`:
    "user", "job", "server" or "day", days of the daemon's time zone."""

    since: float | None = None
    until: float | None = None
    by: str = "user"


class Show(Request, frozen=True):
    job: str


class Why(Request, frozen=True):
    job: str


class Logs(Request, frozen=True):
    """A piece of the log of one attempt from `offset`; waits up to `wait` seconds for more when
    there is none."""

    job: str
    attempt: int = 0  # 0 = the first; the answer says which are there
    node: str = ""
    offset: int = 0
    limit: int = 262_144
    wait: float = 0.0
    tail: int = 0  # begin at most so many bytes before the log's end, instead of at `offset`


class Cancel(Request, frozen=True):
    """Answers when no process of the jobs is left (proven), or after `wait` seconds with what is
    still there."""

    jobs: list[str]
    wait: float = 180.0


class Hold(Request, frozen=True):
    jobs: list[str]


class Release(Request, frozen=True):
    jobs: list[str]


class Requeue(Request, frozen=True):
    jobs: list[str]


class Edit(Request, frozen=True):
    """`changes`: fields of SpecMessage with their new values. `tags` are added, `untags`
    removed."""

    jobs: list[str]
    changes: dict[str, object] = {}
    tags: list[str] = []
    untags: list[str] = []
    array_limit: int | None = None


class Wait(Request, frozen=True):
    """Answers with the jobs' rows once all have ended, or after `wait` seconds."""

    jobs: list[str]
    wait: float = 30.0


class Nodes(Request, frozen=True):
    names: list[str] = []


class Drain(Request, frozen=True):
    """Place nothing new on a node. Asked again it changes the reason, if one is given."""

    node: str
    reason: str = ""


class Undrain(Request, frozen=True):
    node: str


class Reserve(Request, frozen=True):
    """Keep GPUs of a node (indices or UUIDs; none: all) for one user's jobs, or for nobody's.
    Moments: seconds since the epoch; a beginning that is over is now."""

    node: str
    start: float
    end: float
    gpus: list[str] = []
    user: str = ""


class Unreserve(Request, frozen=True):
    id: int


class Top(Request, frozen=True):
    """Everything that the live view draws, in one answer. `jobs` and `query` as in Status, but of
    jobs that ended only the few latest are looked at, or the hundred latest where the query says
    `state=` of such."""

    jobs: list[str] = []
    query: list[str] = []


class Complete(Request, frozen=True):
    """Words for shell completion: kind is "jobs", "nodes", "users" or "names". Of jobs those that
    `command` ("cancel") can do something with, without those that `given`, words on the line, name
    already; of no command all."""

    kind: str
    prefix: str = ""
    command: str = ""
    given: list[str] = []


class Errand(Request, frozen=True):
    """Have a server look at something for `gpq doctor` (gpq_agent.node.doctor.checks), for `wait`
    seconds at the most."""

    node: str
    errand: str
    fields: dict[str, object] = {}
    wait: float = 30.0


class Measured(Request, frozen=True):
    """Keep what an all-reduce between two servers took."""

    nodes: list[str]
    latency: float  # seconds
    bandwidth: float  # bytes a second
    backend: str = "gloo"


class Info(Request, frozen=True):
    """About the daemon itself."""


class Reload(Request, frozen=True):
    """Read config.toml again and take in the nodes that were added to it or removed. `force`:
    though jobs are there."""

    force: bool = False


class Shutdown(Request, frozen=True):
    """The daemon ends; jobs run on."""
