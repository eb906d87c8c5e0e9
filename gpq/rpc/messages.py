"""What the CLI asks and the daemon answers: one JSON object a line over the Unix socket.

A request is ``{"v": VERSION, "op": ..., fields}``, an answer ``{"v": VERSION, "program": "0.1.0", "ok": true, "result": {...}}``
or ``{"v", "program", "ok": false, "code": 4, "error": ..., "hint": ...}`` with the exit code of `gpq.errors`. A connection may
carry many requests, one after the other. `--json` prints `result` as it is, so these structs are a public format:
bump `SCHEMA` when a field changes its meaning. Stamps are UTC, ISO 8601; durations are seconds.
"""

from __future__ import annotations

import msgspec

VERSION = 1
SCHEMA = 1
MAX_LINE = 1 << 20  # bytes of a request
LIKE_SLURM = "GPQ_LIKE_SLURM"  # in a job's environment: it reads SLURM_JOB_ID and the like


class Request(msgspec.Struct, frozen=True, tag_field="op", tag=str.lower, forbid_unknown_fields=True):
    """Base of all requests; the tag is the lower-case name."""


class AttributesMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the shell that submits a job has beside its variables. `limits`: [soft, hard] by the names of RLIMIT_*, in small
    letters; -1 is unlimited, and so is what has no name there."""

    umask: int
    nice: int
    limits: dict[str, tuple[int, int]] = {}


class ProofMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `gpq check` found of a program before it was submitted."""

    program: str  # a digest of the script, its own modules, and the versions of torch and gpq
    same: list[str]  # freedoms in whose shapes it trained the same
    lost: list[str]  # freedoms that the job does without, since a shape differed, failed or was told
    message: str = ""  # these shapes
    at: str = ""  # when it was found, UTC


class SpecMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job as the CLI parsed it. User and uid are not in it: the daemon takes them from the socket's peer."""

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
    notify_on: list[str] | None = None  # "start", "restart", "retry", "fail", "end"; None: as config.toml says
    code: str = ""  # SHA-256 of the archive in the state directory's `snapshots` that it is to run in; "": none
    code_cwd: str = ""  # the working directory in it, relative
    code_from: str = ""  # what was frozen, for people
    after: list[str] = []  # `12:ok`, `@:any`, `train:notok`: starts once those have ended so
    begin: float = 0.0  # starts no earlier; seconds since the epoch
    background: bool = False  # takes only what nobody else wants
    attributes: AttributesMessage | None = None  # None: the server's own
    accept: list[str] = []  # codes of habits that are only suspected, and count for nothing
    proof: ProofMessage | None = None  # what `gpq check` found of the script


class ArrayMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Many jobs of one submission, alike but for `{index}` and the `{name}`s of `params` in what is run."""

    indices: list[int]
    params: list[dict[str, str]] = []  # of a sweep: one for each index
    limit: int = 0  # of them that may hold GPUs at once; 0: any number


class Submit(Request, frozen=True):
    spec: SpecMessage
    held: bool = False
    dry_run: bool = False  # answer a DryRun; nothing is kept
    array: ArrayMessage | None = None


class Status(Request, frozen=True):
    """`jobs`: selectors as typed (ids, ranges, names, @, all); empty: live jobs, and the `recent` latest that ended. `waiting`:
    rows at most for jobs that wait, of a listing for a screen; 0: a row for each."""

    jobs: list[str] = []
    recent: int = 20
    user: str = ""
    states: list[str] = []
    query: list[str] = []  # `user=ana`, `tag~cifar`, `sort=-goodput` (gpq.control.answers.query_language)
    waiting: int = 0


class History(Request, frozen=True):
    """Jobs that ended, the `limit` latest of all that match (0: all). `jobs`: as in Status, but a name is all jobs of that
    name. `since` and `until` are of their ends, seconds since the epoch."""

    jobs: list[str] = []
    user: str = ""
    states: list[str] = []
    since: float | None = None
    until: float | None = None
    limit: int = 20


class Report(Request, frozen=True):
    """Accounts of a window, seconds since the epoch; without `since` from the first job on. `by`: "user", "job", "server" or
    "day", days of the daemon's time zone."""

    since: float | None = None
    until: float | None = None
    by: str = "user"


class Show(Request, frozen=True):
    job: str


class Why(Request, frozen=True):
    job: str


class Logs(Request, frozen=True):
    """A piece of the log of one attempt from `offset`; waits up to `wait` seconds for more when there is none."""

    job: str
    attempt: int = 0  # 0 = the first; the answer says which are there
    node: str = ""
    offset: int = 0
    limit: int = 262_144
    wait: float = 0.0
    tail: int = 0  # begin at most so many bytes before the log's end, instead of at `offset`


class Cancel(Request, frozen=True):
    """Answers when no process of the jobs is left (proven), or after `wait` seconds with what is still there."""

    jobs: list[str]
    wait: float = 180.0


class Hold(Request, frozen=True):
    jobs: list[str]


class Release(Request, frozen=True):
    jobs: list[str]


class Requeue(Request, frozen=True):
    jobs: list[str]


class Edit(Request, frozen=True):
    """`changes`: fields of SpecMessage with their new values. `tags` are added, `untags` removed."""

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
    """Keep GPUs of a node (indices or UUIDs; none: all) for one user's jobs, or for nobody's. Moments: seconds since the
    epoch; a beginning that is over is now."""

    node: str
    start: float
    end: float
    gpus: list[str] = []
    user: str = ""


class Unreserve(Request, frozen=True):
    id: int


class Top(Request, frozen=True):
    """Everything that the live view draws, in one answer. `jobs` and `query` as in Status, but of jobs that ended only the
    few latest are looked at, or the hundred latest where the query says `state=` of such."""

    jobs: list[str] = []
    query: list[str] = []


class Complete(Request, frozen=True):
    """Words for shell completion: kind is "jobs", "nodes", "users" or "names". Of jobs those that `command` ("cancel") can do
    something with, without those that `given`, words on the line, name already; of no command all."""

    kind: str
    prefix: str = ""
    command: str = ""
    given: list[str] = []


class Errand(Request, frozen=True):
    """Have a server look at something for `gpq doctor` (gpq_agent.node.doctor.checks), for `wait` seconds at the most."""

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
    """Read config.toml again and take in the nodes that were added to it or removed. `force`: though jobs are there."""

    force: bool = False


class Shutdown(Request, frozen=True):
    """The daemon ends; jobs run on."""


AnyRequest = (
    Submit
    | Status
    | History
    | Report
    | Show
    | Why
    | Logs
    | Cancel
    | Hold
    | Release
    | Requeue
    | Edit
    | Wait
    | Nodes
    | Drain
    | Undrain
    | Reserve
    | Unreserve
    | Top
    | Complete
    | Errand
    | Measured
    | Info
    | Reload
    | Shutdown
)


class PartView(msgspec.Struct, frozen=True):
    node: str
    devices: list[str]  # device ids
    indices: list[int]


class StagingView(msgspec.Struct, frozen=True):
    what: str
    done: int  # bytes
    total: int  # 0: not known yet
    rate: float  # bytes a second; 0: not known yet
    note: str = ""  # what it waits for


class JobView(msgspec.Struct, frozen=True):
    """One row of `gpq status`."""

    id: int
    name: str
    user: str
    state: str
    reason: str  # why it waits, or how it ended; "" when there is nothing to say
    level: str  # "black-box" | "signal" | "resizable" | "adaptive" | "script" (not declared yet)
    gpus: int  # held now
    placement: list[PartView]
    total_batch: int  # 0 = not known
    atomic_batch: int
    accum_steps: int
    goodput: float | None  # useful examples a second (M0-equivalent), None when not known
    throughput: float | None  # examples a second
    efficiency: float | None
    speedup: (
        float | None
    )  # goodput over that of a fair share, at least its fewest GPUs; None until so many were measured
    rho: float | None  # finish-time fairness: below 1 is better than a fair share
    progress: float | None  # 0 to 1
    eta_seconds: float | None
    age_seconds: float
    run_seconds: float
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    attempt: int
    restarts: int
    resizes: int
    batch_changes: int
    exit_status: int | None  # as a shell gives it, once ended
    priority: int = 0
    command: str = ""
    unknown: str = ""  # "unknown since 40 s: server b does not answer"; "" while its servers answer
    unknown_seconds: float | None = None  # that silence
    hung: str = ""  # "no step for 90 s: rank 3 on b has not arrived where the others wait"; "" while it goes on
    hung_seconds: float | None = None
    diverged: list[DivergedView] = []  # metrics that are no finite numbers; `loss` comes first
    stragglers: list[int] = []  # ranks that make the others wait
    staging: StagingView | None = None  # what is being brought to its servers before it starts
    tags: list[str] = []
    after: list[str] = []  # what it still waits for: `12:ok`
    begin_at: str | None = None  # starts no earlier
    array: int | None = None  # of which it is an element
    index: int | None = None  # in that array
    params: dict[str, str] = {}  # of a sweep
    background: bool = False  # takes only what nobody else wants
    alike: int = 1  # jobs that this row stands for, from `id` to `last`: elements of an array that wait for the same
    last: int | None = None
    last_index: int | None = None


class JobList(msgspec.Struct, frozen=True):
    jobs: list[JobView]
    total: int  # live jobs and all that ended
    hidden: int = 0  # ended, and not listed
    hidden_waiting: int = 0  # that wait, and not listed: where `Status.waiting` limits them
    now: str = ""
    warnings: list[str] = []
    schema: int = SCHEMA


class Submitted(msgspec.Struct, frozen=True):
    id: int  # of an array: its own, by which all of its jobs are named together
    name: str
    state: str
    warnings: list[str] = []
    jobs: list[int] = []  # all that were submitted
    schema: int = SCHEMA


class DryRun(msgspec.Struct, frozen=True):
    """What would happen to a job submitted now."""

    state: str  # "starting" | "pending" | "held"
    placement: list[PartView]
    reasons: list[str]
    warnings: list[str] = []
    schema: int = SCHEMA


class EventView(msgspec.Struct, frozen=True):
    at: str
    kind: str  # name of the event
    job: int | None
    attempt: int | None
    text: str  # one line for a person


class CurvePoint(msgspec.Struct, frozen=True):
    """The goodput model at one GPU count."""

    gpus: int
    goodput: float
    total_batch: int
    speedup: float  # over the first point, that of the fewest GPUs
    current: bool = False


class DivergedView(msgspec.Struct, frozen=True):
    """A metric of job.log that is no finite number."""

    metric: str
    value: str  # nan, inf or -inf
    since: str
    seconds: float  # for so long, up to the end of a job that has ended


class LossView(msgspec.Struct, frozen=True):
    """Mean training loss around one moment of progress, in steps at the base batch."""

    base_steps: float
    loss: float


class RankView(msgspec.Struct, frozen=True):
    """One replica of a running job: where it is, and its times over the latest window of about 30 s."""

    rank: int
    node: str
    device: str
    index: int
    compute_seconds: float | None  # median from the start of a step to its own last gradient; None: not measured yet
    compute_p95_seconds: float | None
    step_seconds: float | None
    wait_share: float | None  # of a step, waiting for the others' gradients
    fetch_share: float | None  # of a step, waiting for data
    straggler: bool = False
    step: int | None = None  # this and the next: known only once it has made no step for a while
    phase: str = ""  # "computing" | "arrived" (it waits for others) | "evaluating" | "saving" | "starting" | "ended"
    note: str = ""  # on a straggler


class AttemptView(msgspec.Struct, frozen=True):
    attempt: int
    placement: list[PartView]
    launched_at: str
    ended_at: str | None
    outcome: str
    why: str


class HabitView(msgspec.Struct, frozen=True):
    """Something that a job's training loop does, and the freedoms that gpq loses by it."""

    code: str  # stable: one of the README's list of habits, or of a newer library
    freedoms: list[str]  # of accumulate, split, resize, retune
    message: str  # what the loop does
    cure: str  # the change to the script that gives them back
    lent: bool  # an earlier job of the program had it, and this one has not shown yet that it is mended
    suspected: bool = False  # not observed: `--accept CODE` gives the freedoms back


class JobDetail(msgspec.Struct, frozen=True):
    """Everything of `gpq show`."""

    job: JobView
    spec: SpecMessage
    attempts: list[AttemptView]
    curve: list[CurvePoint]
    noise_scale: float | None
    model: dict[str, float]  # fitted throughput parameters, by name
    rows: int  # profiled configurations
    metrics: dict[str, float | None]  # None: not a finite number, e.g. a loss that diverged
    checkpoints: int
    restart_seconds: float | None
    gpu_seconds: float
    notices: list[str]
    history: list[EventView]
    learning_rate_rule: str = ""
    fair_share: float | None = None  # GPUs that a fair share would be now; `job.speedup` is over that, or its fewest
    losses: list[LossView] = []  # of the metric `loss`, thinned, oldest first
    ranks: list[RankView] = []  # of a job with several replicas while it has GPUs
    habits: list[HabitView] = []  # of its training loop
    schema: int = SCHEMA


class ReallocationView(msgspec.Struct, frozen=True):
    """What the last re-allocation changed for one job."""

    job: int
    name: str
    before: int  # GPUs
    after: int
    ratio: float | None  # its goodput after over before; None where that is not known, or it had or has no GPUs
    why: str


class Explanation(msgspec.Struct, frozen=True):
    """The answer of `gpq why`."""

    id: int
    state: str
    headline: str
    reasons: list[str]  # each reason why it waits, or why it has these GPUs and not more or fewer
    remedies: list[str]  # what would change that
    round_at: str | None  # of the round that decided it
    curve: list[CurvePoint] = []
    changed_at: str | None = None  # of the last round that gave anybody other GPUs
    changes: list[ReallocationView] = []  # what that one changed
    habits: list[HabitView] = []  # of its training loop, which keep gpq from changing the job as it would
    schema: int = SCHEMA


class LogChunk(msgspec.Struct, frozen=True):
    attempt: int
    node: str
    data: str  # base64
    offset: int  # where to go on
    ended: bool  # nothing more will come of this attempt
    attempts: list[int]  # all attempts of the job, in order
    nodes: list[str]  # of this attempt, in rank order
    state: str  # of the job
    silent: str = ""  # why its node cannot be asked now, or, with `ended`, ever
    skipped: int = 0  # bytes before `data` that the log's limit left out
    schema: int = SCHEMA


class CancelResult(msgspec.Struct, frozen=True):
    cancelled: list[int]  # proven: no process is left
    ended: list[int]  # had ended before, or ended by themselves meanwhile
    remaining: list[int]  # asked, and still there
    waiting: dict[
        int, str
    ] = {}  # of those: whose server does not answer, so that the order waits for it, and since when
    given_up: dict[int, list[str]] = {}  # ended for gpq, without proof: the servers that are not configured any more
    schema: int = SCHEMA


class Changed(msgspec.Struct, frozen=True):
    """Answer of hold, release, requeue and edit."""

    jobs: list[int]
    unchanged: list[str] = []  # one line each: why nothing was done
    said: list[str] = []  # of edit, one line for each job that changed: what
    warnings: list[
        str
    ] = []  # of hold and requeue: what the stop costs a job whose loop does not go on exactly, and the cure
    schema: int = SCHEMA


class ProcessView(msgspec.Struct, frozen=True):
    pid: int
    user: str
    name: str
    memory_mib: int
    job: int | None  # ours, or None
    command: str = ""
    since: str | None = None  # by its server's clock


class DeviceView(msgspec.Struct, frozen=True):
    id: str
    index: int
    kind: str
    type: str
    memory_mib: int
    used_mib: int
    utilisation: int | None
    state: str
    reason: str
    job: int | None
    processes: list[ProcessView]
    since: str | None = None  # in a state other than "ok"
    age_seconds: float | None = None  # the same
    next_probe_seconds: float | None = None  # until a look may end it, where looks are made now and then only


class NodeView(msgspec.Struct, frozen=True):
    name: str
    state: str
    reason: str
    cores: int
    memory_mib: int
    seen_seconds: float  # age of this knowledge; 0.0 of one that was never heard of
    devices: list[DeviceView]
    drained: bool = False  # also while it does not answer
    address: str = ""  # where other servers reach it
    strangers: list[str] = []  # attempts that live there and are not in the database, a line each
    damage: list[str] = []  # files of gpq's there that were set aside, a line each

    @property
    def answers(self) -> bool:
        """Is something known of it now? Not of one that is silent, or being reached for the first time."""
        return self.state not in ("unreachable", "connecting")


class ErrandResult(msgspec.Struct, frozen=True):
    """What the server told."""

    node: str
    answer: dict[str, object]  # {"error": why} where it came to nothing
    seconds: float  # that it took
    schema: int = SCHEMA


class Yielded(msgspec.Struct, frozen=True):
    """Answer of `gpq yield`."""

    node: str
    user: str  # there
    seconds: float | None  # for which it is asked for; None: no more
    changed: bool
    schema: int = SCHEMA


class Kept(msgspec.Struct, frozen=True):
    """Answer of Measured."""

    nodes: list[str]
    schema: int = SCHEMA


class ReservationView(msgspec.Struct, frozen=True):
    id: int
    node: str
    devices: list[str]  # empty: all of the node
    indices: list[int]
    user: str  # "": gpq leaves them alone
    start: str
    end: str
    begins_in_seconds: float  # 0: it has begun
    ends_in_seconds: float
    by: str = ""


class Reserved(msgspec.Struct, frozen=True):
    """Answer of reserve and unreserve: the reservation that there is now, or is no more."""

    reservation: ReservationView
    leaving: list[int] = []  # jobs of others on it that are moved away, or wait, by its beginning
    staying: list[int] = []  # jobs of others on it that run to their end there, or are not known to be movable yet
    schema: int = SCHEMA


class NodeList(msgspec.Struct, frozen=True):
    nodes: list[NodeView]
    reservations: list[ReservationView] = []
    schema: int = SCHEMA


class Drained(msgspec.Struct, frozen=True):
    """Answer of drain and undrain."""

    node: str
    drained: bool
    changed: bool  # False: it was so already
    reason: str = ""
    leaving: list[int] = []  # jobs on it that are moved away, or wait, from the next round on
    staying: list[int] = []  # jobs on it that run to their end there, or are not known to be movable yet
    schema: int = SCHEMA


class Reloaded(msgspec.Struct, frozen=True):
    added: list[str]
    removed: list[str]
    restart_needed: bool = False  # something else changed as well, and holds after a restart of the daemon only
    schema: int = SCHEMA


class UserShare(msgspec.Struct, frozen=True):
    """One row of the fairness table by user."""

    user: str
    jobs: int
    gpus: int
    share: float  # of the devices in use
    fair_share: float  # of the devices
    speedup: float | None
    rho: float | None  # worst of the user's jobs
    gpu_seconds: float


class TopView(msgspec.Struct, frozen=True):
    nodes: list[NodeView]
    jobs: list[JobView]
    users: list[UserShare]
    changes: list[EventView]  # latest re-allocations with their reasons, newest first
    policy: str
    round_seconds: float | None  # how long the last round took
    round_age: float | None
    cluster_goodput: float
    now: str
    schema: int = SCHEMA


class TopLook(TopView, frozen=True):
    """What the pictures of `gpq top` are drawn of; `--json` prints the `TopView` in it."""

    states: dict[str, int] = {}  # how many live jobs are in each state, also those that a filter hides


class EndedView(msgspec.Struct, frozen=True):
    """One row of `gpq history`. None: not known, also of jobs from before gpq kept it."""

    id: int
    name: str
    user: str
    state: str
    exit_status: int | None  # None: it never ran
    reason: str  # how it failed
    submitted_at: str
    ended_at: str
    wait_seconds: float | None  # from the submission to the first launch, less what its user held it
    run_seconds: float  # over all attempts, from launch to end
    gpus: float  # held, averaged over that
    gpu_hours: float
    goodput_hours: float | None  # what they were worth; None also where the job reports no progress
    restarts: int
    restart_gpu_hours: float | None  # of `gpu_hours`: stops and starts after the first
    failed_gpu_hours: float | None  # of `gpu_hours`: attempts that failed or were lost
    rho: float | None  # finish-time fairness, once it completed
    command: str = ""


class HistoryList(msgspec.Struct, frozen=True):
    """The latest to end is the last."""

    jobs: list[EndedView]
    hidden: int = 0  # that match as well, and ended earlier
    notes: list[str] = []  # jobs that were named and have not ended
    now: str = ""
    schema: int = SCHEMA


class ReportRow(msgspec.Struct, frozen=True):
    """What one user, job, server or day comes to."""

    key: str  # user, id, server, or the day as 2026-11-22
    user: str  # of a job
    name: str  # of a job
    jobs: int  # that held GPUs, or ended
    completed: int
    failed: int
    cancelled: int
    timeout: int
    gpu_hours: float
    goodput_hours: float | None  # what they were worth, where jobs report progress
    known_gpu_hours: float  # of `gpu_hours`: by attempts that reported progress
    efficiency: float | None  # goodput hours over these
    share: float | None  # of all GPU hours, 0 to 1; of users alone, as the next
    fair_share: float | None  # 0 to 1: equal parts, at every moment, for all whose jobs ran or waited
    waits: int  # jobs that were first launched
    wait_median_seconds: float | None
    wait_p95_seconds: float | None
    restarts: int
    restart_gpu_hours: float
    failed_gpu_hours: float
    rhos: int  # jobs that completed and whose finish-time fairness is known
    rho_median: float | None
    rho_max: float | None


class UserPiece(msgspec.Struct, frozen=True):
    user: str
    gpu_hours: float
    goodput_hours: float
    fair_gpu_hours: float  # that the fair share would have been


class Piece(msgspec.Struct, frozen=True):
    """A part of the window: an hour, a day, a week or a month."""

    start: str
    end: str
    users: list[UserPiece]


class RhoBar(msgspec.Struct, frozen=True):
    """Jobs that completed with a finish-time fairness from `least` on, below `below`."""

    least: float
    below: float | None
    jobs: int


class ReportView(msgspec.Struct, frozen=True):
    since: str
    until: str
    by: str
    rows: list[ReportRow]  # most GPU hours first; days in their order
    total: ReportRow
    pieces: list[Piece]
    rho_bars: list[RhoBar]
    now: str = ""
    schema: int = SCHEMA


class Words(msgspec.Struct, frozen=True):
    words: list[tuple[str, str]]  # word, description


class DaemonInfo(msgspec.Struct, frozen=True):
    pid: int
    version: str
    home: str
    socket: str
    started_at: str
    uptime_seconds: float
    policy: str
    interval: float
    epoch: int
    jobs_live: int
    jobs_total: int
    rounds: int
    round_ms_median: float | None
    memory_mib: float
    nodes: dict[str, str]  # name -> state
    config_changed: bool = False  # config.toml is not the one that it read as it started
    metrics: str = ""  # where Prometheus metrics are served, or are to be; "" = nowhere
    metrics_problem: str = ""  # why they are not
    schema: int = SCHEMA
