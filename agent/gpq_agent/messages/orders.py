"""What a daemon orders of a node: an attempt, or a look at what a job needs."""

from typing import Any, Dict, List, NamedTuple, Optional


class Attributes(NamedTuple):
    """What a process has beside its variables. `limits`: [soft, hard] by the names of RLIMIT_*, in
    small letters without that; -1 is unlimited. What is not named is the server's own."""

    umask: int
    nice: int
    limits: Dict[str, List[int]]


class StartOrder(NamedTuple):
    """`op: start`. Idempotent by (job, attempt); refused when it comes too late (see
    wire.py)."""

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
