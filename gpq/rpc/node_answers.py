"""What is answered about nodes."""

from __future__ import annotations

import msgspec

from gpq.rpc.protocol import SCHEMA


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
    # until a look may end it, where looks are made now and then only
    next_probe_seconds: float | None = None


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
        """Is something known of it now? Not of one that is silent, or being reached for the first
        time."""
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
    # jobs of others on it that run to their end there, or are not known to be movable yet
    staying: list[int] = []
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
    # jobs on it that run to their end there, or are not known to be movable yet
    staying: list[int] = []
    schema: int = SCHEMA


class Reloaded(msgspec.Struct, frozen=True):
    added: list[str]
    removed: list[str]
    # something else changed as well, and holds after a restart of the daemon only
    restart_needed: bool = False
    schema: int = SCHEMA
