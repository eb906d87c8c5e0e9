"""Machines: nodes, their devices, and who is on them. A device is one GPU or one CPU slot; user
prose says "GPU" for both. Frozen data, decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds, Word


class DeviceState(Word):
    OK = "ok"
    FOREIGN = "foreign"  # somebody else's process is on it, or another's gpq holds its lock
    # faulty, or what was on it cannot be removed: looked at again, later and later
    QUARANTINED = "quarantined"
    LOST = "lost"
    DEGRADED = "degraded"  # driver trouble: what runs may run on, nothing new starts


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    pid: int
    user: str
    name: str
    memory_mib: int = 0
    attempt: str = ""  # "42.1" when it is ours
    command: str = ""  # its command line, as everybody on that node may see it
    since: Seconds = 0.0  # when it began, by the node's clock; 0: not known


@dataclass(frozen=True, slots=True)
class Device:
    id: DeviceId
    index: int
    kind: str  # "cuda" | "cpu"
    type: str
    memory_mib: int = 0
    state: DeviceState = DeviceState.OK
    reason: str = ""  # with OK: a warning, somebody is on it beside our job
    used_mib: int = 0
    utilisation: int | None = None
    processes: tuple[DeviceProcess, ...] = ()
    since: Seconds = 0.0  # in a state other than OK
    next_probe: Seconds = 0.0  # when a look may end that; 0: looked at all the time

    @property
    def is_slice(self) -> bool:
        return is_slice(self.type)


def is_slice(gpu_type: str) -> bool:
    """Is it a part of a GPU (MIG)? CUDA shows a process no more than one of these, so a job gets no
    more than one."""
    return "MIG " in gpu_type


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices of a node that are for one user's jobs alone from `start` to `end`, or for
    nobody's."""

    id: int  # below 0: its owner is there
    node: NodeId
    start: Seconds
    end: Seconds
    devices: tuple[DeviceId, ...] = ()  # empty: all that the node has
    user: str = ""  # "": gpq leaves them alone
    by: str = ""  # who asked for it


@dataclass(frozen=True, slots=True)
class Link:
    """An all-reduce between two servers, as `gpq doctor` measured it."""

    latency: Seconds  # of the smallest
    bandwidth: float  # bytes a second of a large one: what is reduced, over the time it took
    backend: str = "gloo"
    at: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Fitness:
    """What a server said of one environment (gpq.core.feasibility.environments)."""

    fit: bool
    reason: str = ""  # why not
    fix: str = ""
    at: Seconds = 0.0


class NodeState(Word):
    UP = "up"
    UNREACHABLE = "unreachable"  # silence: changes the node, never the job
    DRAINED = "drained"  # as it is shown: it answers, and is in `Snapshot.drained`
    CONNECTING = "connecting"  # as it is shown: the first contact is under way


# the reason of a node before the first contact, unless that has failed
NOT_YET = "not heard of yet"
FIRST_CONTACT: Seconds = 10.0  # that it may take


@dataclass(frozen=True, slots=True)
class Orphan:
    """An attempt that lives on a node and is not in the database."""

    job: JobId
    attempt: int
    since: Seconds = 0.0  # by the node's clock; 0: not known
    pid: int = 0  # of its first process
    folder: str = ""  # its log is there

    @property
    def name(self) -> str:
        return f"{self.job}.{self.attempt}"


@dataclass(frozen=True, slots=True)
class Node:
    id: NodeId
    state: NodeState = NodeState.UNREACHABLE
    reason: str = ""
    devices: tuple[Device, ...] = ()
    cores: int = 0
    memory_mib: int = 0
    boot_id: str = ""
    seen_at: Seconds = 0.0
    silent_since: Seconds = 0.0  # last heard of, where it is unreachable
    address: str = "127.0.0.1"  # where peers reach it, most likely
    addresses: tuple[str, ...] = ()  # where they may try, the most likely first
    interface: str = ""  # of the network to train over, where the configuration names one
    # ports that its kernel gives to outgoing connections
    ephemeral: tuple[int, int] = (32_768, 60_999)
    # ("42.1", why): attempts that were ended, and do not go
    stuck: tuple[tuple[str, str], ...] = ()
    # of the folder of the checkpoints: nodes with the same one share it; "": shared with none
    storage: str = ""
    strangers: tuple[Orphan, ...] = ()
    # files of gpq's that were not what they should be, and were set aside: a line each
    damage: tuple[str, ...] = ()
    owner: str = ""  # user there to whom it belongs (gpq.core.feasibility.owners); "": nobody
    yields: tuple[str, ...] = ()  # users who asked there for their server (`gpq yield`)


def is_connecting(node: Node, now: Seconds) -> bool:
    """Is it being reached for the first time since the daemon's start, with no failure yet, and not
    for too long?"""
    first = node.state is NodeState.UNREACHABLE and node.reason == NOT_YET
    return first and now - node.silent_since < FIRST_CONTACT
