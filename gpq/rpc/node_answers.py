"""Answers about servers."""

from __future__ import annotations

import msgspec

from gpq.rpc.protocol import SCHEMA


class ProcessView(msgspec.Struct, frozen=True):
    pid: int
    user: str
    name: str
    memory_mib: int
    job: int | None  # job of gpq, or None
    command: str = ""
    since: str | None = None  # by the clock of the server


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
    since: str | None = None  # start of a state other than "ok"
    age_seconds: float | None = None  # duration of a state other than "ok"
    # time until the next check, if gpq checks only now and then
    next_probe_seconds: float | None = None


class NodeView(msgspec.Struct, frozen=True):
    name: str
    state: str
    reason: str
    cores: int
    memory_mib: int
    seen_seconds: float  # age of this information, 0.0 if the server never answered
    devices: list[DeviceView]
    drained: bool = False  # also set while the server does not answer
    address: str = ""  # address for other servers
    strangers: list[str] = []  # attempts there that are not in the database, one line each
    damage: list[str] = []  # damaged files that gpq set aside there, one line each

    @property
    def answers(self) -> bool:
        """Is its state known now? Not if it is unreachable, or connecting for the first time."""
        return self.state not in ("unreachable", "connecting")


class ErrandResult(msgspec.Struct, frozen=True):
    """What the server answered."""

    node: str
    answer: dict[str, object]  # {"error": why} if it failed
    seconds: float  # how long it took
    schema: int = SCHEMA


class Yielded(msgspec.Struct, frozen=True):
    """Answer of `gpq yield`."""

    node: str
    user: str  # the owner, as the server names the user
    seconds: float | None  # how long the owner wants the server. None: no longer
    changed: bool
    schema: int = SCHEMA


class Cleaned(msgspec.Struct, frozen=True):
    """Answer of `gpq nodes clean`."""

    jobs: int  # that were removed, or would be
    before: str  # they ended before
    removed: bool
    schema: int = SCHEMA


class Kept(msgspec.Struct, frozen=True):
    """Answer of Measured."""

    nodes: list[str]
    schema: int = SCHEMA


class ReservationView(msgspec.Struct, frozen=True):
    id: int
    node: str
    devices: list[str]  # empty: all GPUs of the server
    indices: list[int]
    user: str  # "": kept from gpq altogether
    start: str
    end: str
    begins_in_seconds: float  # 0: the reservation has begun
    ends_in_seconds: float
    by: str = ""


class Reserved(msgspec.Struct, frozen=True):
    """Answer of reserve and unreserve: the reservation that was made or removed."""

    reservation: ReservationView
    leaving: list[int] = []  # jobs of others that gpq moves away or preempts before it begins
    # jobs of others that run to their end there, or that gpq cannot move yet
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
    changed: bool  # False: it was already so
    reason: str = ""
    leaving: list[int] = []  # jobs that gpq moves away or preempts from the next round on
    # jobs that run to their end there, or that gpq cannot move yet
    staying: list[int] = []
    schema: int = SCHEMA


class Reloaded(msgspec.Struct, frozen=True):
    added: list[str]
    removed: list[str]
    # other settings changed too, and take effect only when the daemon restarts
    restart_needed: bool = False
    schema: int = SCHEMA
