"""Machines: servers, their devices, and who uses them. A device is one GPU or one CPU slot. Texts
for users say "GPU" for both. Frozen data that decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from gpq.core.model.units import DeviceId, JobId, NodeId, Seconds, Word


class DeviceState(Word):
    OK = "ok"
    FOREIGN = "foreign"  # a foreign process uses it, or another gpq holds its lock
    # faulty, or its processes cannot be removed. Checked again after growing pauses
    QUARANTINED = "quarantined"
    LOST = "lost"
    DEGRADED = "degraded"  # driver trouble: running jobs may continue, nothing new starts


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    pid: int
    user: str
    name: str
    memory_mib: int = 0
    attempt: str = ""  # "42.1" if it is ours
    command: str = ""  # its command line, as everybody on that server may see it
    since: Seconds = 0.0  # its start by the server's clock. 0: not known


@dataclass(frozen=True, slots=True)
class Device:
    id: DeviceId
    index: int
    kind: str  # "cuda" | "cpu"
    type: str
    memory_mib: int = 0
    state: DeviceState = DeviceState.OK
    reason: str = ""  # if OK: a warning that somebody uses it next to our job
    used_mib: int = 0
    utilisation: int | None = None
    processes: tuple[DeviceProcess, ...] = ()
    since: Seconds = 0.0  # if not OK
    next_probe: Seconds = 0.0  # when the next check may end that. 0: checked all the time

    @property
    def is_slice(self) -> bool:
        return is_slice(self.type)


def is_slice(gpu_type: str) -> bool:
    """Is it a part of a GPU (MIG)? CUDA shows a process only one of these, so a job gets only
    one."""
    return "MIG " in gpu_type


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices of a server that only one user's jobs may use from `start` to `end`, or nobody's."""

    id: int  # below 0: made by its owner's presence
    node: NodeId
    start: Seconds
    end: Seconds
    devices: tuple[DeviceId, ...] = ()  # empty: all devices of the server
    user: str = ""  # "": gpq leaves them alone
    by: str = ""  # who asked for it


@dataclass(frozen=True, slots=True)
class Link:
    """An all-reduce between two servers, as `gpq doctor` measured it."""

    latency: Seconds  # seconds of the smallest one
    bandwidth: float  # bytes per second of a large one: the reduced bytes over its time
    backend: str = "gloo"
    at: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Fitness:
    """What a server reported about one environment (gpq.core.feasibility.environments)."""

    fit: bool
    reason: str = ""  # why not
    fix: str = ""
    at: Seconds = 0.0


class NodeState(Word):
    UP = "up"
    UNREACHABLE = "unreachable"  # silence: changes the server, never the job
    DRAINED = "drained"  # only for display: it answers, and is in `Snapshot.drained`
    CONNECTING = "connecting"  # only for display: gpq is making first contact


# the reason of a server before the first contact, unless that has failed
NOT_YET = "not heard of yet"
FIRST_CONTACT: Seconds = 10.0  # seconds for that


@dataclass(frozen=True, slots=True)
class Orphan:
    """An attempt that runs on a server and is not in the database."""

    job: JobId
    attempt: int
    since: Seconds = 0.0  # by the server's clock. 0: not known
    pid: int = 0  # of its first process
    folder: str = ""  # where its log is

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
    machine: str = ""  # the same for all who reach the same devices. "": its agent is too old
    seen_at: Seconds = 0.0
    silent_since: Seconds = 0.0  # last heard of, if it is unreachable
    address: str = "127.0.0.1"  # where peers most likely reach it
    addresses: tuple[str, ...] = ()  # addresses that they may try, the most likely first
    interface: str = ""  # of the training network, if the configuration names one
    # ports that its kernel gives to outgoing connections
    ephemeral: tuple[int, int] = (32_768, 60_999)
    # ("42.1", why): attempts that gpq ended but that do not go away
    stuck: tuple[tuple[str, str], ...] = ()
    # of the checkpoint folder. Servers with the same one share it. "": shared with none
    storage: str = ""
    strangers: tuple[Orphan, ...] = ()
    # gpq's files that were damaged and set aside, one line each
    damage: tuple[str, ...] = ()
    owner: str = ""  # its owner's user name there (gpq.core.feasibility.owners). "": nobody
    yields: tuple[str, ...] = ()  # users who asked there for their server (`gpq yield`)


def is_connecting(node: Node, now: Seconds) -> bool:
    """Is gpq connecting to it for the first time since the daemon started, without a failure yet,
    and not for too long?"""
    first = node.state is NodeState.UNREACHABLE and node.reason == NOT_YET
    return first and now - node.silent_since < FIRST_CONTACT
