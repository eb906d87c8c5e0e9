"""Answers about jobs."""

from __future__ import annotations

import msgspec

from gpq.rpc.protocol import SCHEMA
from gpq.rpc.requests import SpecMessage


class PartView(msgspec.Struct, frozen=True):
    node: str
    devices: list[str]  # device ids
    indices: list[int]


class StagingView(msgspec.Struct, frozen=True):
    what: str
    done: int  # bytes copied
    total: int  # bytes in total, 0: not known yet
    rate: float  # bytes per second, 0: not known yet
    note: str = ""  # what the copy waits for


class JobView(msgspec.Struct, frozen=True):
    """One row of `gpq status`."""

    id: int
    name: str
    user: str
    state: str
    reason: str  # why the job waits, or how it ended. "" if there is nothing to say
    level: str  # "black-box" | "signal" | "resizable" | "adaptive" | "script" (not declared yet)
    gpus: int  # GPUs that the job has now
    placement: list[PartView]
    total_batch: int  # 0 = not known
    atomic_batch: int
    accum_steps: int
    goodput: float | None  # useful examples per second, None when not known
    throughput: float | None  # examples per second
    efficiency: float | None
    # goodput relative to that on a fair share, or on the minimum of the job if that is more. None
    # until it was measured
    speedup: float | None
    rho: float | None  # finish-time fairness. Below 1 is better than a fair share
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
    exit_status: int | None  # as in a shell, once the job has ended
    priority: int = 0
    command: str = ""
    unknown: str = ""  # "unknown for 40 s: server b does not answer", "" while its servers answer
    unknown_seconds: float | None = None  # how long its server has not answered
    # "no step for 90 s: the others wait for rank 3 on b", "" while it
    # makes steps
    hung: str = ""
    hung_seconds: float | None = None
    diverged: list[DivergedView] = []  # metrics that are not finite numbers, `loss` first
    stragglers: list[int] = []  # replicas that make the others wait
    staging: StagingView | None = None  # the copy to its servers before it starts
    tags: list[str] = []
    after: list[str] = []  # jobs that it still waits for, such as `12:ok`
    begin_at: str | None = None  # the job does not start before
    array: int | None = None  # the array that the job belongs to
    index: int | None = None  # its index in that array
    params: dict[str, str] = {}  # its values in a sweep
    background: bool = False  # uses only GPUs that nobody else wants
    halted: str = ""  # why it does not start on its own, however long anybody waits
    # how many jobs this row stands for, from `id` to `last`: jobs of an array that wait for the
    # same reason
    alike: int = 1
    last: int | None = None
    last_index: int | None = None
    notes: list[str] = []  # what its user should know, the oldest first


class HoldingView(msgspec.Struct, frozen=True):
    member: str
    gpus: int  # that their jobs hold
    floor: int  # GPUs that they can count on
    waiting: int  # jobs


class TeamView(msgspec.Struct, frozen=True):
    """The team of this user."""

    name: str
    gpus: int
    # this user, then others who have GPUs or wait for some, most GPUs first
    members: list[HoldingView]


class JobList(msgspec.Struct, frozen=True):
    jobs: list[JobView]
    total: int  # all jobs, live and ended
    hidden: int = 0  # ended jobs that are not listed
    hidden_waiting: int = 0  # waiting jobs that are not listed, because of `Status.waiting`
    now: str = ""
    warnings: list[str] = []
    # null in no team, in a team of one, while its arbiter is silent, and if not all jobs are wanted
    team: TeamView | None = None
    schema: int = SCHEMA


class Submitted(msgspec.Struct, frozen=True):
    id: int  # id of the job, or of the array, which stands for all its jobs
    name: str
    state: str
    warnings: list[str] = []
    jobs: list[int] = []  # ids of all submitted jobs
    schema: int = SCHEMA


class DryRun(msgspec.Struct, frozen=True):
    """What would happen to a job if it were submitted now."""

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
    speedup: float  # relative to the first point, which has the fewest GPUs
    current: bool = False


class DivergedView(msgspec.Struct, frozen=True):
    """A metric of job.log that is not a finite number."""

    metric: str
    value: str  # nan, inf or -inf
    since: str
    seconds: float  # how long, up to now or to the end of the job


class LossView(msgspec.Struct, frozen=True):
    """Mean training loss around one point of progress, in steps at the base batch size."""

    base_steps: float
    loss: float


class RankView(msgspec.Struct, frozen=True):
    """One replica of a running job: its place, and its times over the last 30 s or so."""

    rank: int
    node: str
    device: str
    index: int
    # median time from the start of a step to its own last gradient. None: not measured yet
    compute_seconds: float | None
    compute_p95_seconds: float | None
    step_seconds: float | None
    wait_share: float | None  # part of a step spent waiting for the other replicas
    fetch_share: float | None  # part of a step spent waiting for data
    straggler: bool = False
    step: int | None = None  # like `phase`, known only when it has made no step for a while
    # "computing" | "arrived" (it waits for others) | "evaluating" | "saving" | "starting" | "ended"
    phase: str = ""
    note: str = ""  # about a straggler


class AttemptView(msgspec.Struct, frozen=True):
    attempt: int
    placement: list[PartView]
    launched_at: str
    ended_at: str | None
    outcome: str
    why: str


class RestartView(msgspec.Struct, frozen=True):
    """How a restart went, in seconds."""

    attempt: int  # that it began
    warm: bool  # a standby ran it, so without the imports
    start: float  # from the launch to the first step
    restore: float  # of these, reading the checkpoint
    # from the order to stop to the end of the attempt before. None: that one ended by itself
    stop: float | None
    save: float  # of these, writing the checkpoint
    # of a restart with another number of GPUs: these numbers, and goodput after / before, as
    # promised and as measured. None: the same number, or not known
    before: int | None = None
    after: int | None = None
    promised: float | None = None
    measured: float | None = None


class HabitView(msgspec.Struct, frozen=True):
    """A habit of a job's training loop, and the freedoms that it takes from gpq."""

    code: str  # stable code of the habit, from the documentation or from a newer library
    freedoms: list[str]  # some of accumulate, split, resize, retune
    message: str  # what the loop does
    cure: str  # the change to the script that gives the freedoms back
    # an earlier job of the program had this habit, and this job has not shown yet that it is fixed
    lent: bool
    suspected: bool = False  # suspected, not observed. `--accept CODE` ignores it


class JobDetail(msgspec.Struct, frozen=True):
    """The answer of `gpq show`."""

    job: JobView
    spec: SpecMessage
    attempts: list[AttemptView]
    curve: list[CurvePoint]
    noise_scale: float | None
    model: dict[str, float]  # fitted throughput parameters, by name
    rows: int  # measured configurations
    metrics: dict[str, float | None]  # None: not a finite number, such as a loss that diverged
    checkpoints: int
    restart_seconds: float | None
    gpu_seconds: float
    notices: list[str]  # the same as `job.notes`
    history: list[EventView]
    learning_rate_rule: str = ""
    adapter: str = ""  # the framework that drives its training loop, if any
    # GPUs of the fair share now. `job.speedup` is relative to it, or to the minimum of the job
    fair_share: float | None = None
    losses: list[LossView] = []  # the metric `loss`, thinned, oldest first
    ranks: list[RankView] = []  # the replicas, if there are several and the job has GPUs
    habits: list[HabitView] = []  # habits of its training loop
    restart_times: list[RestartView] = []  # the latest few, oldest first
    schema: int = SCHEMA


class ReallocationView(msgspec.Struct, frozen=True):
    """What the last change of GPUs meant for one job."""

    job: int
    name: str
    before: int  # GPUs
    after: int
    # goodput after / goodput before. None if not known, or if it had or has no GPUs
    ratio: float | None
    why: str


class Explanation(msgspec.Struct, frozen=True):
    """The answer of `gpq why`."""

    id: int
    state: str
    headline: str
    reasons: list[str]  # why it waits, or why it has these GPUs and not more or fewer
    remedies: list[str]  # what would change that
    round_at: str | None  # time of the round that decided it
    curve: list[CurvePoint] = []
    changed_at: str | None = None  # time of the last round that changed the GPUs of any job
    changes: list[ReallocationView] = []  # what that round changed
    # habits of its training loop that limit what gpq may change
    habits: list[HabitView] = []
    code: str = ""  # code of the headline, for scripts, such as "waits-for-gpus"
    codes: list[str] = []  # codes of the reasons, in their order
    notes: list[str] = []  # as in JobView
    schema: int = SCHEMA


class LogChunk(msgspec.Struct, frozen=True):
    attempt: int
    node: str
    data: str  # base64
    offset: int  # where the next chunk begins
    ended: bool  # the log of this attempt is complete
    attempts: list[int]  # all attempts of the job, in order
    nodes: list[str]  # servers of this attempt, in the order of their numbers
    state: str  # state of the job
    silent: str = ""  # why its server does not answer now, or with `ended`: why it never will
    skipped: int = 0  # bytes before `data` that exceeded the limit of the log
    notes: list[str] = []  # as in JobView, without `data`: at the end of what there is
    schema: int = SCHEMA


class Selection(msgspec.Struct, frozen=True):
    """The answer of `Select`."""

    live: list[JobView]
    ended: list[int]
    schema: int = SCHEMA


class CancelResult(msgspec.Struct, frozen=True):
    cancelled: list[int]  # every process is gone
    ended: list[int]  # jobs that had ended before, or ended by themselves in the meantime
    remaining: list[int]  # jobs that still have processes
    # the jobs among them whose server does not answer, and since when
    waiting: dict[int, str] = {}
    # jobs that gpq gave up, and their servers that are no longer configured
    given_up: dict[int, list[str]] = {}
    schema: int = SCHEMA


class Changed(msgspec.Struct, frozen=True):
    """Answer of `gpq hold`, `release`, `requeue` and `edit`."""

    jobs: list[int]
    unchanged: list[str] = []  # one line per job that did not change, and why
    messages: list[str] = []  # `gpq edit` and `requeue`: one line per job that changed
    # `gpq hold` and `requeue`: what a stop costs if the loop cannot resume exactly, and the cure
    warnings: list[str] = []
    schema: int = SCHEMA
