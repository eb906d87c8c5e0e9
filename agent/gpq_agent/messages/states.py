"""What a server reports about its attempts and its devices."""

from typing import Any, Dict, List, NamedTuple, Optional


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
