"""What is answered about jobs."""

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
    # goodput over that of a fair share, at least its fewest GPUs; None until so many were measured
    speedup: float | None
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
    unknown: str = ""  # "unknown for 40 s: server b does not answer". "" while its servers answer
    unknown_seconds: float | None = None  # that silence
    # "no step for 90 s: rank 3 on b has not reached the point where the others wait".
    # "" while it makes progress
    hung: str = ""
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
    # jobs that this row stands for, from `id` to `last`: elements of an array that wait for the
    # same
    alike: int = 1
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
    """One replica of a running job: where it is, and its times over the latest window of about 30
    s."""

    rank: int
    node: str
    device: str
    index: int
    # median from the start of a step to its own last gradient; None: not measured yet
    compute_seconds: float | None
    compute_p95_seconds: float | None
    step_seconds: float | None
    wait_share: float | None  # of a step, waiting for the others' gradients
    fetch_share: float | None  # of a step, waiting for data
    straggler: bool = False
    step: int | None = None  # this and the next: known only once it has made no step for a while
    # "computing" | "arrived" (it waits for others) | "evaluating" | "saving" | "starting" | "ended"
    phase: str = ""
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
    # an earlier job of the program had it, and this one has not shown yet that it is mended
    lent: bool
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
    # GPUs that a fair share would be now; `job.speedup` is over that, or its fewest
    fair_share: float | None = None
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
    # its goodput after over before; None where that is not known, or it had or has no GPUs
    ratio: float | None
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
    # of its training loop, which keep gpq from changing the job as it would
    habits: list[HabitView] = []
    code: str = ""  # of the headline, for scripts: "waits-for-gpus"
    codes: list[str] = []  # of the reasons, in their order
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
    # ended for gpq, without proof: the servers that are not configured any more
    given_up: dict[int, list[str]] = {}
    schema: int = SCHEMA


class Changed(msgspec.Struct, frozen=True):
    """Answer of hold, release, requeue and edit."""

    jobs: list[int]
    unchanged: list[str] = []  # one line each: why nothing was done
    messages: list[str] = []  # of edit, one line for each job that changed: what
    # of hold and requeue: what the stop costs a job whose loop does not go on exactly, and the cure
    warnings: list[str] = []
    schema: int = SCHEMA
