"""Machines: nodes, their devices, and who is on them. A device is one GPU or one CPU slot; user
prose says "GPU" for both. Frozen data, decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpq.core.units import DeviceId, NodeId, Seconds, Word


class DeviceState(Word):
    OK = "ok"
    FOREIGN = "foreign"  # somebody else's process is on it
    LOST = "lost"
    DEGRADED = "degraded"  # driver trouble: what runs may run on, nothing new starts


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    pid: int
    user: str
    name: str
    memory_mib: int = 0
    attempt: str = ""  # "42.1" when it is ours


@dataclass(frozen=True, slots=True)
class Device:
    id: DeviceId
    index: int
    kind: str  # "cuda" | "cpu"
    type: str
    memory_mib: int = 0
    state: DeviceState = DeviceState.OK
    reason: str = ""
    used_mib: int = 0
    utilisation: int | None = None
    processes: tuple[DeviceProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """An all-reduce between two servers, as `gpq doctor` measured it."""

    latency: Seconds  # of the smallest
    bandwidth: float  # bytes a second of a large one: what is reduced, over the time it took
    backend: str = "gloo"
    at: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Fitness:
    """What a server said of one environment (gpq.core.environments)."""

    fit: bool
    reason: str = ""  # why not
    fix: str = ""
    at: Seconds = 0.0


class NodeState(Word):
    UP = "up"
    UNREACHABLE = "unreachable"  # silence: changes the node, never the job
    DRAINED = "drained"  # as it is shown: it answers, and is in `Snapshot.drained`


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
    address: str = "127.0.0.1"  # where peers reach it
