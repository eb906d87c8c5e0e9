"""Between daemon and training process: orders go down, reports come up. What a server reports about
its attempts and its devices."""

from typing import Any, Dict, List, NamedTuple, Optional


class Control(NamedTuple):
    """`control.json`. The training process obeys the highest `seq` of its own attempt and ignores
    the rest."""

    attempt: int
    seq: int
    stop: bool = False  # checkpoint at the next step boundary and exit
    # examples per replica in each forward and backward pass. 0: the library chooses
    atomic_batch: int = 0
    accum_steps: int = 0  # extra micro-batches before the one that synchronises


REPORT_KINDS = (
    "declared",  # once per attempt: a Declared
    # {"seconds": from the launch to the end of the first step, "restore_seconds", "warm": did a
    # standby run it?}
    "ready",
    "timing",  # sums since the last one, per configuration: a Timing
    "ranks",  # about every 30 s, times of all replicas next to each other: a RankTimes
    "noise",  # current estimate of the gradient statistics: a Noise
    "progress",  # a Progress
    "retuned",  # {"atomic_batch", "accum_steps", "lr_factor", "seq"}: an order took effect
    "checkpoint",  # {"step", "seconds", "bytes", "why": "periodic" | "stop" | "end"}
    # {"step", "values": {name: float, or "nan", "inf", "-inf"}}: the arguments of job.log
    "metrics",
    "loss",  # mean of the metric `loss` since the last one: a Loss
    # {"message"}: a line for the user, e.g. out of memory at a micro-batch size, and what gpq did
    "notice",
    # something that the loop does and that takes freedoms away, once per attempt and habit: a Habit
    "habit",
)  # The daemon skips a kind that it does not know, so a new kind needs no new VERSION.


# What gpq may do to a job until it sees a habit that makes it unsafe: "accumulate" (several
# micro-batches per step), "split" (two of them on one replica, to measure the noise scale),
# "resize" (restart with another number of replicas), "retune" (another batch size).
FREEDOMS = ("accumulate", "split", "resize", "retune")


class Habit(NamedTuple):
    """Something that a training loop does, and the freedoms that it takes away permanently for this
    job."""

    # one of train/habits/table.py, e.g. "two-passes". A code that the daemon does not know counts
    # too
    code: str
    freedoms: List[str]  # of FREEDOMS
    # what the loop does, one line, e.g. "the loop body has more than one backward pass"
    message: str
    cure: str  # the change that gives the freedoms back, one line
    evidence: str = "observed"  # "suspected": the user may accept it. "proven": by gpq check


class Proof(NamedTuple):
    """What `gpq check` found about a job's program before it was submitted."""

    program: str  # a digest of it: train/program.py
    same: List[str]  # of FREEDOMS: training was the same in all shapes that need one
    lost: List[str]  # of FREEDOMS: some shape that needs one trains something else
    message: str = ""  # which shapes, one line


class Declared(NamedTuple):
    """What the script declares about itself."""

    level: str  # "resizable" (fixed batch) | "adaptive"
    # M0: the user's base batch size, for which the learning rate is right. 0 = not declared
    batch_size: int = 0
    max_batch_size: int = 0  # M
    min_atomic_batch: int = 1
    max_atomic_batch: int = 0
    dataset_size: int = 0
    epochs: int = 0
    accumulation: bool = True
    rule: str = ""  # learning-rate rule in use
    parameters: int = 0  # model size
    passes: bool = False  # is an epoch a pass over the data, not its base steps?
    adapter: str = ""  # the framework that drives the loop, if any


class Timing(NamedTuple):
    """Step times of one configuration since the last report, in seconds. If replicas differ, the
    maximum.

    `accum_sum` adds up the micro-batches that did not synchronise. Without accumulation it adds up
    the part of a step before its last gradient was ready. `step_sum` adds up the micro-batches that
    did synchronise.
    """

    nodes: int
    replicas: int
    atomic_batch: int
    accum_steps: int
    accum_count: int
    accum_sum: float
    step_count: int
    step_sum: float


class RankTimes(NamedTuple):
    """Times of each rank, in the order of ranks, over the same window. Ranks that wait for each
    other have the same step times. The part before the wait shows which rank delays the others."""

    step: int
    steps: List[int]  # steps measured
    # median seconds from the start of a step to its last local gradient, and the 95th percentile
    compute: List[float]
    compute_p95: List[float]
    whole: List[float]  # mean seconds of a step
    wait: List[float]  # mean seconds per step spent waiting for the others' gradients
    fetch: List[float]  # mean seconds per step spent waiting for data


class Noise(NamedTuple):
    """Smoothed gradient statistics: sqr = |E g|^2, var = tr(Cov g) of ONE example (so noise scale =
    var / sqr, examples)."""

    sqr: float
    var: float
    samples: int  # examples that the window has seen
    biased: bool = False  # measured from consecutive steps of a single replica
    preconditioned: bool = False
    # sqr was <= 0, so the noise scale is at least var / (small positive sqr)
    capped: bool = False


class Progress(NamedTuple):
    """How far the job is. `base_steps` counts steps at the base batch size (the sum of gains). It
    is the progress that does not depend on the scale."""

    epoch: int
    epochs: int
    samples: int  # examples of this epoch so far
    step: int  # optimiser steps so far
    base_steps: float
    fraction: float  # of the declared length, 0 to 1


class Loss(NamedTuple):
    """A point of the loss curve: the mean over a report's window, at the mean progress of its
    values."""

    base_steps: float  # as in Progress. Steps of the script if it does not use gpq's loader
    loss: float


class ExitRecord(NamedTuple):
    """What the shim writes when the whole tree is gone. The daemon pulls it until it sends
    `forget`."""

    job: int
    attempt: int
    code: Optional[int]  # exit code, None when killed by a signal
    signal: Optional[int]  # signal number, None on a normal exit
    # somebody asked for a stop, and the job proved its checkpoint (STOPPED, or exit 75/143 after a
    # signal)
    stopped: bool
    asked: Optional[str]  # mode of the stop, None if nobody asked
    started_at: float  # wall clock, seconds
    ended_at: float
    oom: bool = False
    # one readable line, e.g. "ended 120 s after it was asked to stop"
    note: str = ""
    fenced: bool = False  # its lease ended it, not the job itself and not an order
    # nothing of the user's program ran: "port" (taken) or "network" (the servers did not meet)
    unlaunched: str = ""
    excused: str = ""  # why this end is not a failure of the job: gpq's own choice did not fit
    # what failed first here, e.g. "rank 3 was killed by SIGKILL". "" if nothing shows it
    cause: str = ""
    victim: bool = False  # it failed because processes on another server of the attempt were gone
    # the server's CLOCK_BOOTTIME when no process was left. 0: an older agent
    stamp: float = 0.0
    boot_id: str = ""  # the boot of `stamp`
    # exit code 0, and nobody asked it to stop, or `evidence` says that it was finished
    finished: bool = False
    # what shows it, one phrase, e.g. "its done file was written". "" if nobody asked it to stop
    evidence: str = ""


class AttemptInfo(NamedTuple):
    """One attempt as the agent sees it now (in `hello`, `start`, `stop`, `watch`)."""

    job: int
    attempt: int
    state: str
    pid: Optional[int] = None
    started_at: Optional[float] = None
    # an ExitRecord. While the attempt lives only its `note` counts: why it does not end
    exit: Optional[Dict[str, Any]] = None
    report: str = ""  # whole new lines of report.jsonl
    report_offset: int = 0  # offset after them
    unread: bool = False  # there may be more that did not fit into the answer
    processes: int = 0  # processes of the tree that are alive
    devices: List[str] = []  # devices assigned to it
    lease: float = 0.0  # from its order
    shortfall: str = ""  # from its order
    # a Pulse for each rank on this server (in `watch`, if the daemon asks for its offset)
    ranks: List[Any] = []
    # On the clock of the reply's `stamp`, so that the difference is an age. None: not known. Below
    # 0: before the server booted.
    began: Optional[float] = None  # its first process
    # when no process of it was left, or the latest possible time
    ended: Optional[float] = None
    # files of it that were not valid, one line each
    damage: List[str] = []


class Pulse(NamedTuple):
    """How far one replica is."""

    rank: int
    step: int
    phase: str  # one of PHASES
    age: float  # seconds since its latest step


class DeviceProcess(NamedTuple):
    """A process on a device."""

    pid: int = 0
    user: str = ""
    name: str = ""
    memory_mib: int = 0
    attempt: str = ""  # e.g. "42.1". "" for a foreign process
    command: str = ""
    since: float = 0.0  # wall clock, 0 if not known


class DeviceInfo(NamedTuple):
    """One GPU or CPU slot."""

    id: str  # GPU UUID, or "slot-0"
    # Every tuple has a method with this name, which nobody needs here.
    index: int  # type: ignore[assignment]
    kind: str  # "cuda" | "cpu"
    type: str  # e.g. "NVIDIA A100-SXM4-80GB", "cpu"
    memory_mib: int
    # "ok" | "foreign" (somebody else's) | "quarantined" | "lost" | "degraded" (a driver problem of
    # all GPUs at once)
    state: str
    reason: str = ""  # with "ok" a warning: another user is on it next to our job
    used_mib: int = 0
    utilisation: Optional[int] = None  # per cent, None if unknown or not plausible
    processes: List[Dict[str, Any]] = []  # each a DeviceProcess
    cores: List[int] = []  # CPU slots: the cores of this slot
    age: float = 0.0  # seconds in a state other than "ok"
    # seconds until a look may end this state, if looks are not frequent
    next_probe: float = 0.0
