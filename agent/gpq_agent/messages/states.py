"""What a node tells of its attempts and its devices."""

from typing import Any, Dict, List, NamedTuple, Optional


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
