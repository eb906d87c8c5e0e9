"""What a daemon asks of a server: an attempt, a check of what a job needs, and the other requests.
And the kinds of refusals.

Files between servers have processes and connections of their own (node/files/sending.py). WHAT is
{"job": 42}, or {"code": SHA-256 of the archive}.

Attempt states in replies: "starting" (recorded, not yet running), "running", "exited" (has an exit
record). "orphan": the shim is gone, but processes of the tree live. "lost": no shim, no processes
and no exit record.
"""

from typing import Any, Dict, List, NamedTuple, Optional

CONSOLES = ("", "pipes", "terminal")  # values of StartOrder.console
STDIN = "stdin"  # the file in the archive with a job's stdin


class Attributes(NamedTuple):
    """What a process has besides its variables. `limits`: [soft, hard] by the names of RLIMIT_*
    without that prefix, in small letters. -1 means unlimited. Limits that are not named stay at the
    server's own."""

    umask: int
    nice: int
    limits: Dict[str, List[int]]


class StartOrder(NamedTuple):
    """`op: start`. Idempotent by (job, attempt). The agent refuses it if it comes too late (see
    wire.py)."""

    job: int
    attempt: int
    # complete command, of each replica if there are `ranks`
    argv: List[str]
    cwd: str
    env: Dict[str, str]  # in addition to what every job has (node/host/login.py)
    devices: List[str]  # GPU UUIDs or slot ids of this server
    level: str  # "black-box" | "signal" | "resizable" | "adaptive"
    signal: str = "TERM"  # the signal of a "signal" stop, e.g. "USR1"
    # seconds of run time. The daemon counts them, the shim does not
    time_limit: Optional[float] = None
    port: int = 0  # master port. 0: none
    node_rank: int = 0
    control: Optional[Dict[str, Any]] = None  # first Control, written before the start
    # wall clock. Used only if there is no `stamp` (daemons before 0.2)
    expires_at: Optional[float] = None
    # stamp of the last report that the daemon took in, by the server's CLOCK_BOOTTIME
    stamp: Optional[float] = None
    boot_id: str = ""  # the boot of `stamp`
    store: str = ""  # id of the daemon's database
    # seconds without an acknowledged report after which the shim ends the job. 0: never
    lease: float = 0.0
    # seconds that the daemon waits longer than that. KILL comes after a third of it
    lease_margin: float = 0.0
    log_limit: int = 0  # bytes of the log to keep, its head and its end. 0: all
    # SHA-256 of a snapshot's archive that was staged here. `cwd` is then a folder in it, "." for
    # all
    code: str = ""
    # variables of `env` with a path that exists where the job was submitted
    paths: List[str] = []
    # SHA-256 of the archive with its stdin, for the agent. For the shim the path. "": /dev/null
    stdin: str = ""
    node_count: int = 0  # servers of this attempt. 0: unknown (daemons before 0.2)
    servers: List[str] = []  # their names, by node rank, for messages
    # addresses of rank 0's server, the most likely first. Empty: they do not have to meet
    masters: List[str] = []
    # of the attempt, the same on all its servers. Whoever meets them must know it
    secret: str = ""
    # the interface to train over. Empty: the one on which the servers reach each other
    interface: str = ""
    # A standby may run it. This many seconds after its start, one is made for the next attempt like
    # it. None: neither
    standby_after: Optional[float] = None
    # the ranks of this server's replicas. Empty: the command is the only process to start
    ranks: List[int] = []
    # the environment that the server was found fit for. If something is missing now, the agent
    # refuses as "unfit"
    environment: str = ""
    setup: bool = False  # start with the exports of the setup of that environment
    # argv[0] is an interpreter. One that the setup put first in PATH replaces it
    any_python: bool = False
    # the job writes it when it is finished. Relative to `cwd`. "" = none
    done_file: str = ""
    attributes: Optional[Dict[str, Any]] = None  # an Attributes. None: the server's own
    shortfall: str = ""  # added by the agent: what of these the server does not allow, one line
    # the job starts from the beginning: what is in its checkpoint folder moves out of the way
    fresh: bool = False
    # "pipes" | "terminal": a console holds the program's streams (node/console)
    console: str = ""


class PrepareOrder(NamedTuple):
    """`op: prepare`. Idempotent: a request that comes while the setup runs waits for its end."""

    environment: str  # lower-case hexadecimal digits
    cwd: str  # "~": the home directory on the server
    python: str = ""  # interpreter, absolute or a name in PATH. "" = no interpreter needed
    any_python: bool = False  # an interpreter that the setup put first in PATH takes precedence
    setup: str = ""  # a shell command, "" for none
    modules: List[str] = []  # modules that the interpreter must find
    env: Dict[str, str] = {}  # as in a StartOrder
    limit: float = 600.0  # seconds that the setup may take
    attributes: Optional[Dict[str, Any]] = None  # as in a StartOrder


OPS = (
    # {"store", "epoch"} -> {"version", "boot_id", "time", "stamp", "python", "host", "cores",
    # "memory_mib", "spool", "devices", "attempts", "library": the folder that the agent was loaded
    # from, "address": the one that ssh reached it at, or "", "network": [[interface, address]] that
    # others may try, "ephemeral": [first, last], "storage": id of the checkpoint folder. Servers
    # with the same id share the folder, "standbys": how many are ready. An agent without it knows
    # no `warm`}
    "hello",
    # {} -> {"time"}
    "ping",
    # {} -> {"devices": [DeviceInfo], "driver": str, "error": str, "beside": names of the other
    # spools of this machine in the same folder}. A child process with a time limit queries the GPUs
    "probe",
    # {"prepare": PrepareOrder} -> {"fit": bool, "reason", "fix"}, once the setup has ended
    "prepare",
    # {"order": StartOrder} -> {"state": "started" | "already", "attempt": AttemptInfo}
    "start",
    # {"order": StartOrder} -> {}. The attempt may come here next, so keep a standby for it for a
    # while. `devices` names any one that it could have
    "warm",
    # {"attempt": "42.1", "mode", "grace"} -> {"attempt": AttemptInfo}. May be repeated, harder each
    # time
    "stop",
    # {"attempt": "42.1", "control": Control} -> {}
    "control",
    # {"offsets": {"42.1": n}, "wait": seconds, "seen": digest, "heard": stamp or none, "look":
    # seconds between two looks at the GPUs, if shorter than usual} -> {"digest", "attempts",
    # "devices", "time", "stamp", "yields": users who want the server back}. A long poll: it answers
    # when an attempt changes state or has report lines past its offset, or after `wait`. If the
    # daemon asks for an attempt that it had forgotten, the agent reports it again, because the
    # database was restored from a copy
    "watch",
    # {"attempt": "42.1", "offset": n, "limit": bytes, "skip": bool} -> {"data": base64, "offset":
    # next, "size": bytes, "skipped": bytes}. `skip` leaves out a part that was cut out (log_limit):
    # `offset` = n + skipped + length of data
    "tail",
    # {"attempt": "42.1"} -> {}: the exit record is durable elsewhere. The log stays
    "forget",
    # {} -> {"jobs": [42, ...], "early": [42, ...], "code": [SHA-256, ...], "coming": [SHA-256,
    # ...], "forgotten": ["12", ...]}: the owners of files on this server. `early`: of checkpoints
    # that were set aside. `coming`: code that has not arrived. `forgotten`: thousands of jobs with
    # attempts that are forgotten
    "kept",
    # {"job", "early"} or {"code"} -> {}: remove their files. {"forgotten": "12", "jobs": [12042,
    # ...]} -> {"left"}: remove forgotten attempts, and say how many of these are left
    "drop",
    # {"errand": name, "fields", "limit": seconds} -> {"answer"}: a check for `gpq doctor`, or a
    # look at the files of a job, in its own process (node/doctor/checks.py). {"answer": {"error"}}
    # if it fails or takes too long
    "errand",
    # {} -> {}: the agent ends, shims and jobs live on
    "quit",
)

# Kinds of a refusal: "wrong" (asking again does not help), "busy" (a device, a full disk: try again
# later), "expired" (the start order came too late: send a new one), "stale" (a newer daemon of the
# same store has taken over). Two have exit codes in a shell, 127 and 126: "not-found" (no such
# command) and "not-executable". "unfit": something that `prepare` checks is missing. "used": an
# attempt of this number was here and is forgotten, because the database was restored from a copy,
# so launch another. "wrong", "not-found" and "not-executable" are permanent. A "busy" with
# ``"taken": true`` will not pass soon: somebody else has the device, or it is out of use, so the
# job should start elsewhere at once.
REFUSALS = ("wrong", "busy", "expired", "stale", "not-found", "not-executable", "unfit", "used")
