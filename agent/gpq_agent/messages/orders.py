"""What a daemon orders from a server: an attempt, or a check of what a job needs."""

from typing import Any, Dict, List, NamedTuple, Optional

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
