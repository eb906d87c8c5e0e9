"""The messages between daemon, node agent, shim and training process: one JSON object a line, with
a version.

This file is the only thing that gpq, `gpq_agent.node` and `gpq_agent.train` share. Standard library
only, Python >= 3.8.

Three conversations are defined here:

1. daemon <-> node agent, over one byte pipe (stdin/stdout of `python -m gpq_agent.node`): every
   line from the daemon is a request ``{"v", "id", "op", ...}``, every line back is its reply
   ``{"v", "id", "ok": true, ...}`` or ``{"v", "id", "ok": false, "error", "hint", "kind"}``
   (`REFUSALS`). The agent never speaks first, except for one ``hello`` line.
2. node agent <-> shim, through files in the attempt's directory (`ATTEMPT_FILES`). Each is written
   whole or not at all (`write_json`: temporary file, fsync, rename), except the two logs, which are
   append-only.
3. daemon <-> training process, through two files in that same directory: `control.json` comes down
   (an order, replaced atomically, numbered), `report.jsonl` goes up (append-only, so that a lost
   connection loses nothing).

Time on the wire. Every reply to `hello` and `watch` is a report; its `stamp` is the node's
CLOCK_BOOTTIME at that moment (seconds since boot, sleep included; nobody can set it). A stamp means
something on the node that made it and in that boot alone; the daemon carries it back, and takes the
ages of what the report tells from it. No rule below reads a wall clock.

Start orders expire. `order.stamp` is that of the last report the daemon took in before it sent the
order, `order.boot_id` the boot it was made in. The agent refuses ("expired") another boot's order,
and one that arrives START_EXPIRY seconds or more after its stamp: it may have been replaced
meanwhile.

Leases (`order.lease` > 0 seconds; 0: the job runs on without the daemon for as long as it likes).

a. A report is acknowledged by the next `watch` of the same connection: its `heard` is the report's
stamp. The daemon sends
   `heard` only after it has (1) noted the moment `taken in` on its own CLOCK_BOOTTIME and (2)
   found, after the report came, that the database still has this daemon's epoch. The start order
   itself acknowledges its `stamp`.
b. The agent keeps the highest acknowledged stamp of each store in `<spool>/lease.<store>.json`; not
when its daemon's
   epoch is stale. The shim's lease ends at max(order.stamp, that stamp) + order.lease by
   CLOCK_BOOTTIME. Then it sends TERM to the whole tree, KILL order.lease_margin / 3 seconds after
   that end (at once where it slept through both), and records the end with `fenced`. A lease that
   was renewed too late is over all the same: TERM is not taken back. Where the shim is gone or
   stands still a second process does that within the rest of the margin (node/shim/guard.py).
c. The daemon gives a part of an attempt up lease + lease_margin seconds after it took in the node's
last report, by its
   CLOCK_BOOTTIME. A new daemon counts from its own start (the one before it can acknowledge nothing
   made later, by a2). Once every part is over, given up or told, the job is pending again under the
   next attempt number. Node's end = acknowledged stamp + lease + margin / 3 <= last report taken in
   + lease + margin = daemon's patience: the clocks are never compared, only their rates need agree,
   and messages may be late by any time.
d. News of a part that was given up changes nothing but the journal: its end is recorded there when
the node tells it;
   what still lives of it (its shim was killed, say) is killed.

Environments. `prepare` asks whether what a job needs is on the node, and runs its setup there once:
once more only when it failed, when what it made is gone, or under another name (`environment`, a
digest that the daemon makes; the agent only compares it). Nothing of a job is started by it, and no
device is given. What the setup exported is kept in the spool, and a start order that names the
environment in `setup` is started with it. An agent that does not know `prepare` refuses it as any
unknown operation; the daemon then takes every environment for fit there. A start order without
`setup` and `environment` is started as ever.

Epochs. `hello` names the daemon's `store` (id of its database) and `epoch` (which grows with each
start). The agent keeps the highest epoch of each store in `<spool>/epoch.<store>.json`, durably,
and refuses ("stale") what an older one asks that changes or renews anything; a start looks again
under the spool's lock.

Meetings. Where `order.masters` is not empty, the processes that the shims start meet before they
become the user's program (node/shim/rendezvous.py): rank 0's listens on `order.port`, each other
tries the addresses, all take the first that all reach, and each exports the interface that leads
there. Where they do not meet, UNLAUNCHED says why, and nothing of the user's has run. They talk in
this encoding: {"token"} and back, then {"node", "reached", "port"} from each, {"address"} or
{"error"} to each.

Ends. An exit code 0 after a stop order says nothing: programs that save on a signal often end with
0, and so does one that came to its end at that very moment. The shim tells them apart (`finished`,
`evidence`; node/shim/completion_evidence.py) by what was made during this attempt: FINISHED, the
done file of the order, a checkpoint that was written at the last step. A record without these
fields (an older agent's) says nothing: such an attempt is run again, which costs its tail and loses
nothing.

Pulses. Each training process writes its step and phase into a mapped file (RANK, PULSE); the agent
tells them in `watch` (`AttemptInfo.ranks`). They are no reports: none is kept, and a daemon that
knows nothing of them misses nothing.
"""

import contextlib
import json
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from gpq_agent import records

VERSION = 1
START_EXPIRY = 20.0  # seconds from the stamp of a start order to its refusal

# -- files of one attempt: <spool>/attempts/<job>.<attempt>/ ---------------------------------------

ORDER = "order.json"  # what to start: a StartOrder; written by the agent before anything is spawned
# identity of the shim: {"pid", "start_time", "boot_id"}; written by the shim first of all
SHIM = "shim.json"
STARTED = "started.json"  # identity of the job's first process; fsynced before it gets its go byte
STOP = (
    # {"mode": "checkpoint" | "signal" | "kill", "grace": seconds, "seq": n}; the shim is woken by
    # SIGUSR1
    "stop.json"
)
EXIT = "exit.json"  # an ExitRecord; written only when no process of the tree is left
LOG = "log"  # what the job printed (stdout and stderr joined), append-only
CONTROL = "control.json"  # a Control: the newest order to the training process
REPORT = "report.jsonl"  # lines from the training process: see REPORT_KINDS
# and the number of a rank of this node: a PULSE, mapped by its training process, see Pulse
RANK = "rank."
PULSE = "=qqqd"  # pid, optimizer steps done, index into PHASES, CLOCK_BOOTTIME of the latest step
# "arrived": its own gradients are ready, or it is between two steps, and it waits for the others.
PHASES = ("starting", "computing", "arrived", "evaluating", "saving", "ended")
# {"kind", "note"}: why the user's program was not begun; see Meetings above
UNLAUNCHED = "unlaunched.json"
# {"note"}: what gpq chose did not fit, so the end is not the job's failure
EXCUSED = "excused.json"
# What ended the first replica of this node that an exception has ended: {"rank", "error", "gpu":
# that could not be used, or ""}
FIRST_ERROR = "error.json"
DEPARTED = (
    # {"rank"}: of the first replica of this node that ended by itself before its training was over
    "departed.json"
)
STOPPED = (
    # written by the training process once its checkpoint is durable, just before it exits on
    # request
    "stopped.json"
)

# by the training process: {"step", "time"}: training is over, and an exit with 0 is its end
FINISHED = "finished.json"

# -- environment of a job --------------------------------------------------------------------------

ENV_JOB = "GPQ_JOB_ID"
ENV_ATTEMPT = "GPQ_ATTEMPT"  # "<attempt number>"
ENV_MARK = (
    # "<spool id>:<job>.<attempt>": inherited by every process of the tree, so that escapees are
    # found
    "GPQ_MARK"
)
ENV_RUN_DIR = "GPQ_RUN_DIR"  # the attempt's directory
ENV_CHECKPOINT_DIR = "GPQ_CHECKPOINT_DIR"  # the job's own, the same for all its attempts
ENV_RESUME = "GPQ_RESUME"  # "1" from the second attempt on
ENV_DONE_FILE = "GPQ_DONE_FILE"  # the order's `done_file`, absolute
ENV_CORES = "GPQ_CORES"  # cores by local rank: "0,1;2,3" (CPU slots only)
ENV_DEFAULTS = (
    # a JSON object: variables that gpq chose for this server, which no submission from the job
    # notes
    "GPQ_DEFAULTS"
)
ENV_DEVICES = "GPQ_DEVICES"  # device ids of this node, comma-separated
# in the folder of a shape that is checked: what its script has written and removed
CHECK_FILES = "files"
# PYTHONHASHSEED of every process of a job: sets and their like keep their order over restarts
HASH_SEED = "0"
# codes of habits that the library may suspect as it likes, comma-separated
ENV_ACCEPTED = "GPQ_ACCEPTED"
ENV_PROOF = "GPQ_PROOF"  # a Proof as a JSON object
ENV_TRIAL = "GPQ_TRIAL"  # "1" in what `gpq doctor` runs on GPUs that it has locked
# a CheckOrder as a JSON object: a run of `gpq check`, which only proves something
ENV_CHECK = "GPQ_CHECK"

# Exit codes with a meaning for jobs that checkpoint on a signal.
EXIT_PREEMPTED = (75, 143)


def attempt_key(job: int, attempt: int) -> str:
    """``42.1``: the name of an attempt on the wire and in the spool."""
    return "{}.{}".format(job, attempt)


def parse_attempt_key(key: str) -> Tuple[int, int]:
    """(job, attempt) of ``42.1``. Raises ValueError."""
    job, attempt = key.split(".")
    return int(job), int(attempt)


# -- 1. daemon -> node agent -----------------------------------------------------------------------


class Attributes(NamedTuple):
    """What a process has beside its variables. `limits`: [soft, hard] by the names of RLIMIT_*, in
    small letters without that; -1 is unlimited. What is not named is the server's own."""

    umask: int
    nice: int
    limits: Dict[str, List[int]]


class StartOrder(NamedTuple):
    """`op: start`. Idempotent by (job, attempt); refused when it comes too late (see the top of
    this file)."""

    job: int
    attempt: int
    argv: List[str]  # complete command; for a script the launcher is already in it (`launch_argv`)
    cwd: str
    env: Dict[str, str]  # beyond what every job has (node/host/login.py)
    devices: List[str]  # GPU UUIDs or slot ids of this node
    level: str  # "black-box" | "signal" | "resizable" | "adaptive"
    signal: str = "TERM"  # what a "signal" stop sends, e.g. "USR1"
    # seconds of run time; the daemon counts it, the shim does not
    time_limit: Optional[float] = None
    port: int = 0  # master port, checked free before the start on node rank 0; 0 = none
    node_rank: int = 0
    control: Optional[Dict[str, Any]] = None  # first Control, written before the start
    # wall clock; only looked at where there is no `stamp` (daemons before 0.2)
    expires_at: Optional[float] = None
    # of the last report that the daemon took in, the node's CLOCK_BOOTTIME
    stamp: Optional[float] = None
    boot_id: str = ""  # the boot that `stamp` belongs to
    store: str = ""  # id of the daemon's database
    # seconds without an acknowledged report after which the shim ends the job; 0 = never
    lease: float = 0.0
    # seconds that the daemon waits beyond that; KILL comes after a third of it
    lease_margin: float = 0.0
    log_limit: int = 0  # bytes of the log that are kept: its head and its end; 0 = all
    # SHA-256 of a snapshot's archive, which was staged here; `cwd` is then a folder in it, "." for
    # all
    code: str = ""
    node_count: int = 0  # servers of this attempt; 0: the daemon does not tell (before 0.3)
    servers: List[str] = []  # their names, by node rank, for what is told
    # addresses of rank 0's server, the most likely first; empty: they need not meet
    masters: List[str] = []
    interface: str = ""  # the one to train over; empty: that on which the servers reach each other
    # that the node was found fit for; a lack that shows now is refused as "unfit"
    environment: str = ""
    setup: bool = False  # start with what the setup of that environment exported
    # argv[0] is an interpreter that gives way to the one that the setup put first in PATH
    any_python: bool = False
    # the job writes it once it has come to its end; relative to `cwd`; "" = it has none
    done_file: str = ""
    attributes: Optional[Dict[str, Any]] = None  # an Attributes; None: the server's own
    shortfall: str = ""  # by the agent: what of these its server does not allow, one line


class PrepareOrder(NamedTuple):
    """`op: prepare`. Idempotent: asked again while the setup runs, it waits for its end."""

    environment: str  # lower-case hexadecimal digits
    cwd: str  # "~": the home directory there
    python: str = ""  # interpreter, absolute or a name in PATH; "" = none is needed
    any_python: bool = False  # one that the setup put first in PATH comes before it
    setup: str = ""  # a shell command, "" for none
    modules: List[str] = []  # that the interpreter must find
    env: Dict[str, str] = {}  # as of a StartOrder
    limit: float = 600.0  # seconds that the setup may take
    attributes: Optional[Dict[str, Any]] = None  # as of a StartOrder


class ExitRecord(NamedTuple):
    """What the shim writes when the whole tree is gone; pulled by the daemon until it says
    `forget`."""

    job: int
    attempt: int
    code: Optional[int]  # exit code, None when killed by a signal
    signal: Optional[int]  # signal number, None on a normal exit
    # a stop was asked for and the job proved its checkpoint (STOPPED, or exit 75/143 after a
    # signal)
    stopped: bool
    asked: Optional[str]  # mode of the stop that was asked for, None if none was
    started_at: float  # wall clock, seconds
    ended_at: float
    oom: bool = False
    # one line a person can read, e.g. "killed 120 s after it was asked to checkpoint"
    note: str = ""
    fenced: bool = False  # it was ended by its lease, not by itself and not by an order
    # nothing of the user's ran: "port" (it was taken), "network" (the servers did not meet)
    unlaunched: str = ""
    excused: str = ""  # why its end is no failure of the job's: gpq chose what did not fit
    # what failed first here, e.g. "rank 3 was killed by SIGKILL"; "" where nothing tells
    cause: str = ""
    victim: bool = False  # it failed because processes of another server of the attempt were gone
    # the node's CLOCK_BOOTTIME once no process of it was left; 0: an older agent
    stamp: float = 0.0
    boot_id: str = ""  # the boot that `stamp` belongs to
    # exit code 0, and nobody had asked it to stop, or `evidence` says that it was at its end
    finished: bool = False
    # what says so, one phrase, e.g. "its done file was written"; "" where nobody had asked
    evidence: str = ""


# Attempt states in replies: "starting" (recorded, not yet running), "running", "exited" (exit
# record there), "orphan" (the shim is gone, processes of the tree live on), "lost" (neither shim,
# nor processes, nor exit record).

OPS = (
    # {"store", "epoch"} -> {"version", "boot_id", "time", "stamp", "python", "host", "cores",
    # "memory_mib",
    "hello",
    #           "spool", "devices", "attempts", "library": folder that it was loaded from,
    #           "address": under which ssh reached it, or "", "network": [[interface, address]] that
    #           others may try, "ephemeral": [first, last], "storage": id of the folder of the
    #           checkpoints: where it is the same, they are shared}
    "ping",  # {} -> {"time"}
    # {} -> {"devices": [DeviceInfo], "driver": str, "error": str, "beside": names of the other
    # spools of this
    "probe",
    #           machine in the same folder}; probing runs in a child with a time limit
    # {"prepare": PrepareOrder} -> {"fit": bool, "reason", "fix"}; answered once the setup has ended
    "prepare",
    "start",  # {"order": StartOrder} -> {"state": "started" | "already", "attempt": AttemptInfo}
    # {"attempt": "42.1", "mode", "grace"} -> {"attempt": AttemptInfo}; may be repeated, harder each
    # time
    "stop",
    "control",  # {"attempt": "42.1", "control": Control} -> {}
    # {"offsets": {"42.1": n}, "wait": seconds, "seen": digest, "heard": stamp or none, "look":
    # seconds between
    "watch",
    #           two looks at the GPUs, if they are to be shorter than usual}
    #           -> {"digest", "attempts", "devices", "time", "stamp", "yields": users who want the
    #           server back} long poll: answers as soon as an attempt changed state or has report
    #           lines past its offset, or after `wait`; one that was forgotten before and is asked
    #           for is told again: the database was restored from a copy
    "tail",  # {"attempt": "42.1", "offset": n, "limit": bytes, "skip": bool}
    #           -> {"data": base64, "offset": next, "size": bytes, "skipped": bytes}
    #           with `skip` a part that was cut out (log_limit) is left out: `offset` = n + skipped
    #           + length of data
    "forget",  # {"attempt": "42.1"} -> {}: the exit record is durable elsewhere; the log stays
    "purge",  # {"job": 42} -> {}: remove logs and checkpoints of a job
    # Files between servers, all by way of the daemon (node/files/staging.py). A set is a listing of
    # node/spool/trees.py: [[path, size, mark, mode, time of change, bytes on the disk], ...]. WHAT
    # is {"job": 42}, or {"code": SHA-256 of the archive} whose set is that one file. "files",
    # "digest", "stage" and "seal" are answered when they are worked out.
    # {"job"} -> {"files": set of what has to follow the job, "age": of two sets the newer has the
    # larger,
    "files",
    #           "stays": why they can not, "" where they can}
    # {"job", "path", "offset", "limit"} -> {"skip": bytes of a hole that come first, "data":
    # base64}
    "fetch",
    # {"job", "paths": of small files} -> {"data": [base64 of the first of them, ...]}: as many as a
    # piece holds
    "gather",
    "digest",  # {"job", "path"} -> {"digest"}, as trees.digest; of those whose mark is a time
    "stage",  # {WHAT, "files": set} -> {"missing": [[place in the list, offset to go on at], ...]}
    "put",  # {WHAT, "at": place, "offset", "skip", "data": base64} -> {"offset": where it goes on}
    "scatter",  # {WHAT, "parts": [[place, base64 of a small file], ...]} -> {}
    # {WHAT, "files": set, "digests": {place: digest}} -> {}: all is there, proved and renamed in
    "seal",
    "kept",  # {} -> {"jobs": [42, ...], "code": [SHA-256, ...]}: whose files lie here
    "drop",  # {WHAT} -> {}: remove them
    # {"errand": name, "fields", "limit": seconds} -> {"answer"}: what `gpq doctor` has a server
    # look at, in a
    "errand",
    #           process of its own (node/doctor/checks.py); {"answer": {"error"}} where it fails or
    #           takes too long
    "quit",  # {} -> {}: the agent ends; shims and jobs live on
)

# Kinds of a refusal: "wrong" (asked again it is refused again), "busy" (a device, a full disk: try
# again later), "port" (taken: launch again with another), "expired" (the start order came too late:
# send a new one), "stale" (a newer daemon of the same store has taken over); and two that a shell
# has exit codes for, 127 and 126: "not-found" (no such command), "not-executable" (it cannot be
# run); "unfit": something that `prepare` looks for is not there (any more); and "used": an attempt
# of that number was here and is forgotten (the database was restored from a copy), so launch
# another. All but "busy", "port", "expired", "stale", "unfit" and "used" are for good. A "busy"
# with ``"taken": true`` will not pass soon: the device is somebody else's, or out of use, and the
# job better off elsewhere at once.
REFUSALS = (
    "wrong",
    "busy",
    "port",
    "expired",
    "stale",
    "not-found",
    "not-executable",
    "unfit",
    "used",
)


class AttemptInfo(NamedTuple):
    """One attempt as the agent sees it now (in `hello`, `start`, `stop`, `watch`)."""

    job: int
    attempt: int
    state: str
    pid: Optional[int] = None
    started_at: Optional[float] = None
    # an ExitRecord; while it lives its `note` alone counts: why it does not end
    exit: Optional[Dict[str, Any]] = None
    report: str = ""  # whole new lines of report.jsonl
    report_offset: int = 0  # offset after them
    processes: int = 0  # processes of the tree that are alive
    devices: List[str] = []  # what it was given
    lease: float = 0.0  # of its order
    shortfall: str = ""  # likewise
    # a Pulse each, of the ranks on this node (in `watch`, where its offset is asked)
    ranks: List[Any] = []
    # As the `stamp` of the reply that tells it, so that their difference is an age; None: not
    # known. Below 0: before the node booted.
    began: Optional[float] = None  # its first process
    # when no process of it was left, or the latest that it can have been
    ended: Optional[float] = None
    # files of it that could not be taken for what they should be, a line each
    damage: List[str] = []


class Pulse(NamedTuple):
    """Where one replica is."""

    rank: int
    step: int
    phase: str  # one of PHASES
    age: float  # seconds since its latest step


class DeviceInfo(NamedTuple):
    """One GPU or CPU slot."""

    id: str  # GPU UUID, or "slot-0"
    # A tuple has a method of that name, which nobody needs here.
    index: int  # type: ignore[assignment]
    kind: str  # "cuda" | "cpu"
    type: str  # e.g. "NVIDIA A100-SXM4-80GB", "cpu"
    memory_mib: int
    # "ok" | "foreign" (somebody else's) | "quarantined" | "lost" | "degraded" (the driver: of all
    # GPUs at once)
    state: str
    reason: str = ""  # with "ok": a warning, somebody is on it beside our job
    used_mib: int = 0
    utilisation: Optional[int] = None  # per cent, None when unknown or not plausible
    # [{"pid", "user", "name", "memory_mib", "attempt": "42.1" | "", "command", "since": wall clock
    # or 0}]
    processes: List[Dict[str, Any]] = []
    cores: List[int] = []  # CPU slots: the cores of this slot
    age: float = 0.0  # seconds in a state other than "ok"
    # seconds until a look may end it, where those are not made all the time
    next_probe: float = 0.0


# -- 3. daemon <-> training process ----------------------------------------------------------------


class Control(NamedTuple):
    """`control.json`. The training process obeys the highest `seq` of its own attempt and ignores
    the rest."""

    attempt: int
    seq: int
    stop: bool = False  # checkpoint at the next step boundary and exit
    atomic_batch: int = 0  # examples per replica per forward/backward; 0 = the library's own choice
    accum_steps: int = 0  # extra micro-batches before the one that synchronises


REPORT_KINDS = (
    "declared",  # once per attempt: a Declared
    "ready",  # {"seconds": from exec to the end of the first step, "restore_seconds"}
    "timing",  # sums since the last one, per configuration: a Timing
    "ranks",  # about every 30 s: times of all replicas beside each other: a RankTimes
    "noise",  # current estimate of the gradient statistics: a Noise
    "progress",  # a Progress
    "retuned",  # {"atomic_batch", "accum_steps", "lr_factor", "seq"}: an order took effect
    "checkpoint",  # {"step", "seconds", "bytes", "why": "periodic" | "stop" | "end"}
    "metrics",  # {"step", "values": {name: float, or "nan", "inf", "-inf"}}: what job.log was given
    "loss",  # mean of the metric `loss` since the last one: a Loss
    # {"message"}: a line for the user, e.g. out of memory at an atomic batch, and what was done
    "notice",
    # what the loop was seen to do that takes freedoms away, once per attempt and habit: a Habit
    "habit",
)  # A kind that the daemon does not know is skipped: a new one needs no new VERSION.


# What a loop leaves open to the allocator, until a habit of it is seen that is not safe there:
# "accumulate" (a step as several micro-batches), "split" (two of them on one replica, to measure
# the noise scale), "resize" (a restart with another number of replicas), "retune" (another total
# batch).
FREEDOMS = ("accumulate", "split", "resize", "retune")


class Habit(NamedTuple):
    """Something that a training loop does, and the freedoms that it takes away: for good for this
    job."""

    code: (
        # one of train/habits/table.py, e.g. "two-passes"; a code that the daemon does not know
        # counts all the same
        str
    )
    freedoms: List[str]  # of FREEDOMS
    # what the loop does, one line, e.g. "the loop clears gradients between two backward passes"
    message: str
    cure: str  # the change that gives the freedoms back, one line
    evidence: str = "observed"  # "suspected": its user may accept it; "proven" by gpq check


class Proof(NamedTuple):
    """What `gpq check` found of a job's program before it was submitted."""

    program: str  # a digest of it: train/proof.py
    same: List[str]  # of FREEDOMS: in all shapes that need one the training was the same
    lost: List[str]  # of FREEDOMS: some shape that needs one trains something else
    message: str = ""  # which shapes, one line


class Declared(NamedTuple):
    """What the script says of itself."""

    level: str  # "resizable" (fixed batch) | "adaptive"
    # M0: the user's total batch size, for which the learning rate is right; 0 = not declared
    batch_size: int = 0
    max_batch_size: int = 0  # M
    min_atomic_batch: int = 1
    max_atomic_batch: int = 0
    dataset_size: int = 0
    epochs: int = 0
    accumulation: bool = True
    rule: str = ""  # learning-rate rule in use
    parameters: int = 0  # model size


class Timing(NamedTuple):
    """Step times of one configuration since the last report, seconds; the max over replicas where
    they differ.

    `accum_sum` sums the micro-batches that did not synchronise (or the part of a step before its
    last gradient was ready, where nothing accumulates), `step_sum` the micro-batches that did.
    Squares go along for the variance.
    """

    nodes: int
    replicas: int
    atomic_batch: int
    accum_steps: int
    accum_count: int
    accum_sum: float
    accum_sqr: float
    step_count: int
    step_sum: float
    step_sqr: float


class RankTimes(NamedTuple):
    """Of each rank, in the order of ranks, over the same window: where they wait for each other,
    step times are the same, and who makes them wait shows in what comes before."""

    step: int
    steps: List[int]  # measured
    # median seconds from the start of a step to its last local gradient, and from there to its end
    compute: List[float]
    compute_p95: List[float]
    whole: List[float]  # mean seconds of a step
    wait: List[float]  # mean seconds of it that went into waiting for the others' gradients
    fetch: List[float]  # mean seconds of it that went into waiting for data


class Noise(NamedTuple):
    """Smoothed gradient statistics: sqr = |E g|^2, var = tr(Cov g) of ONE example (so noise scale =
    var / sqr, examples)."""

    sqr: float
    var: float
    samples: int  # examples that the window has seen
    biased: bool = False  # from consecutive steps of a single replica
    preconditioned: bool = False
    # sqr came out <= 0: the noise scale is at least var / (small positive sqr)
    capped: bool = False


class Progress(NamedTuple):
    """Where the job is. `base_steps` counts steps at the base batch (the sum of gains), the
    scale-invariant progress."""

    epoch: int
    epochs: int
    samples: int  # consumed in this epoch
    step: int  # optimiser steps so far
    base_steps: float
    fraction: float  # of the declared length, 0 to 1


class Loss(NamedTuple):
    """A point of the loss curve: the mean over a report's window, at the mean progress of what was
    logged in it."""

    base_steps: float  # as in Progress; steps of the script where it has no loader of ours
    loss: float


# -- 4. gpq check <-> training process -------------------------------------------------------------


class CheckOrder(NamedTuple):
    """In which shape the script is to be trained for a few steps, and where to write what it came
    to.

    Each rank appends to `<folder>/<attempt>.<rank>.jsonl`: one line {"facts": {...}} and a
    CheckStep for each step.
    """

    folder: str
    steps: int  # optimizer steps after which the process ends
    epoch_steps: int = 0  # an epoch is cut to so many, the last with fewer examples; 0: as it is
    micros: int = 1  # micro-batches of each replica in a step
    sample: bool = False  # every second step is taken as one that the noise scale is measured in
    begin: int = 0  # steps that earlier attempts of this shape have done
    stop: int = 0  # stop as on an order once so many are done; 0: not
    reverse: bool = False  # the examples of a batch in reverse order: what rounding alone changes
    rotate: bool = False  # its second half first: the same, by other luck
    # a descriptor: once it is at its end, `gpq check` is gone, and so is this process
    lifeline: int = -1
    exact: bool = True  # in full precision; else autocast and TF32 are as the script has them


class CheckStep(NamedTuple):
    """What rank `rank` did in one step, and rank 0 what it came to."""

    step: int  # done so far
    attempt: int
    epoch: int
    epochs: int  # that job.epochs() was given; 0: the loop is outside it
    indices: List[int]  # the examples of this rank
    random: bool  # the body of the loop drew random numbers
    # [name, value, examples that it stands for; 0: it was logged outside the loop]
    metrics: List[Any]
    rates: List[List[float]]  # of each optimizer.step(): the learning rates of its groups
    tensors: Dict[str, List[Optional[float]]]  # a Fingerprint each, see train/prove/sketch.py
    numbers: Dict[str, Optional[float]]


# -- helpers ---------------------------------------------------------------------------------------


def encode(message: Dict[str, Any]) -> bytes:
    """One line of UTF-8 JSON, newline included."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("utf-8") + b"\n"


def decode(line: bytes) -> Dict[str, Any]:
    """The object on one line. Raises ValueError for anything that is not a JSON object."""
    return records.parse(line)


def write_json(path: str, content: Dict[str, Any]) -> None:
    """Replace `path` whole or not at all, and durably: temporary file, fsync, rename, fsync of the
    folder."""
    temporary = "{}.{}.tmp".format(path, os.getpid())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(encode(content))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """The object in `path`, None when there is no such file. Raises records.Damaged, a ValueError,
    when it is not one JSON object of a sensible size in a plain file, and OSError where this
    process lacks something."""
    return records.read_object(path)


# -- `gpq doctor --gpu` ----------------------------------------------------------------------------


class GpuPart(NamedTuple):
    """Checks that one errand makes, in order, so within two minutes. `limit`: seconds."""

    section: str
    limit: float
    names: Tuple[str, ...]


# A is of the driver, B of one replica, C of several.
GPU_PARTS: Dict[str, GpuPart] = {
    "driver": GpuPart(
        "A",
        112.0,
        (
            "versions", "architectures", "looks by NVML", "looks by nvidia-smi", "same answers",
            "persistence", "idle memory",
            "MIG", "compute mode", "recovery action", "ECC", "remapped rows", "MPS", "graphics",
        ),
    ),
    "holder": GpuPart("A", 105.0, ("process seen", "process gone", "looks beside work")),
    "kernels": GpuPart("B", 75.0, ("matrix product", "wrong names", "events")),
    "training": GpuPart(
        "B",
        115.0,
        (
            "waits, SGD", "waits, AdamW", "waits, GradScaler", "gradients", "noise scale",
            "memory of samples",
            "out of memory",
        ),
    ),
    "restart": GpuPart("B", 115.0, ("resume", "restart phases", "overhead")),
    "replicas": GpuPart("C", 115.0, ("gradients of two", "resize", "failures")),
}  # fmt: skip
GPU_VERDICTS = ("PASS", "FAIL", "SKIP")


class GpuLine(NamedTuple):
    """One check. `figure`: what was measured, or why it was not."""

    name: str
    verdict: str  # one of GPU_VERDICTS
    figure: str
    seconds: float = 0.0  # that the check took
