"""Where the newest checkpoint of a job is, which servers can reach it, and what it costs to copy it
elsewhere. Pure.

It is where rank 0 of the latest started attempt ran. That attempt wrote it there, or gpq copied it
there first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpq.core.model.events import Staged
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.nodes import NodeState, is_connecting
from gpq.core.model.placements import FilesAt, Placement, Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import NodeId, Seconds

if TYPE_CHECKING:  # which asks this module where a job may go
    from gpq.core.feasibility.shapes import Supply

ASSUMED_RATE = 50e6  # bytes a second, before any measurement: half of gigabit Ethernet
STAYS_FOR: Seconds = 600.0
FIXED: Seconds = 1.0  # to find out what is there, and to verify the copy
LEAST_BYTES = 1_000_000  # of a transfer that tells a rate


@dataclass(frozen=True, slots=True)
class Staging:
    """The files on their way to the servers of a starting attempt: bytes, and bytes per second (0
    if not known yet)."""

    what: str
    done: int
    total: int
    rate: float
    note: str = ""  # what it waits for

    def __str__(self) -> str:
        text = f"about to copy {self.what}"
        if self.total:
            text = f"copying {self.what}: {size(self.done)} of {size(self.total)}"
        if self.rate:
            text += f", {size(int(self.rate))}/s"
        if self.note:
            text += f" ({self.note})"
        return text


def size(count: int) -> str:
    """``1.2 GB``: powers of 1000, three digits."""
    number = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def has_checkpoint(job: Job) -> bool:
    """Did it report a checkpoint, or prove one by how it stopped? Other jobs start from the
    beginning wherever they restart."""
    return job.profile.checkpoints > 0 or (job.files is not None and job.files.proved)


def shares(snapshot: Snapshot, job: Job, node: NodeId) -> bool:
    """Does `node` see the folder of the newest checkpoint? True for a job that has never run."""
    if job.files is None or node == job.files.node:
        return True
    there = snapshot.nodes.get(node)
    return there is not None and bool(there.storage) and there.storage == job.files.storage


def closed_to(snapshot: Snapshot, job: Job) -> list[NodeId]:
    """Servers where the job cannot resume, because gpq cannot copy its checkpoint there. After a
    while gpq tries again, because the user may have fixed it."""
    if job.files is None or not job.files.stays or snapshot.now > job.files.looked_at + STAYS_FOR:
        return []
    return [name for name in sorted(snapshot.nodes) if not shares(snapshot, job, name)]


def holders(snapshot: Snapshot, job: Job) -> list[NodeId]:
    """Servers that answer and see that folder, the checkpoint's own server first."""
    if job.files is None:
        return []
    home = job.files.node
    seeing = [
        name
        for name, node in snapshot.nodes.items()
        if node.state is NodeState.UP and shares(snapshot, job, name)
    ]
    return sorted(seeing, key=lambda name: (name != home, name))


def apart(snapshot: Snapshot, placement: Placement) -> list[NodeId]:
    """The servers of a placement, one for each folder that they share."""
    nodes_by_folder: dict[str, NodeId] = {}
    for name, _ in placement.parts:
        node = snapshot.nodes.get(name)
        nodes_by_folder.setdefault(
            node.storage if node is not None and node.storage else f"node {name}", name
        )
    return sorted(nodes_by_folder.values())


def lacking(snapshot: Snapshot, job: Job, placement: Placement) -> list[NodeId]:
    """Those servers to which gpq may have to copy files of the job first."""
    return [name for name in apart(snapshot, placement) if not shares(snapshot, job, name)]


def out_of_reach(snapshot: Snapshot, job: Job) -> str:
    """Why the job must wait even if there is room: no server that answers has its newest
    checkpoint. Otherwise ""."""
    if (
        job.state is not JobState.PENDING
        or job.files is None
        or not has_checkpoint(job)
        or holders(snapshot, job)
    ):
        return ""
    node = job.files.node
    holder = snapshot.nodes.get(node)
    if holder is None:
        condition = "is no longer in the configuration"
    elif is_connecting(holder, snapshot.now):
        condition = "gpq is connecting to"
    else:
        condition = "does not answer"
    return f"its newest checkpoint is on server {node}, which {condition}"


def with_rate(
    rates: Mapping[tuple[NodeId, NodeId], float], event: Staged
) -> Mapping[tuple[NodeId, NodeId], float]:
    """The latest measurement counts for half."""
    if event.bytes < LEAST_BYTES or event.seconds <= 0:
        return rates
    way, rate = (event.source, event.node), event.bytes / event.seconds
    return {**rates, way: 0.5 * (rates.get(way, rate) + rate)}


def bringing_seconds(
    snapshot: Snapshot, job: Job, shapes: Sequence[Shape], offered: Mapping[str, Supply]
) -> list[Seconds]:
    """By shape, the time to copy the newest checkpoint to where the shape must run: bytes / rate +
    FIXED, by the slowest connection. 0 if there is room on servers that see the checkpoint.
    `offered` has devices by type."""
    if job.files is None or not job.profile.checkpoint_bytes:
        return [0.0] * len(shapes)
    costs_by_type = {
        name: _bringing_cost(snapshot, job, job.files, devices) for name, devices in offered.items()
    }
    bringing = []
    for shape in shapes:
        room, seconds = costs_by_type.get(shape.gpu_type, (0, 0.0))
        bringing.append(seconds if shape.replicas > room else 0.0)
    return bringing


def _bringing_cost(
    snapshot: Snapshot, job: Job, files: FilesAt, devices: Supply
) -> tuple[int, Seconds]:
    """Devices on servers that see the checkpoint, and how long the slowest copy to the others
    takes. A rate that was not measured counts as the mean of all that were."""
    measured = [snapshot.rates[way] for way in sorted(snapshot.rates)]
    usual = sum(measured) / len(measured) if measured else ASSUMED_RATE
    room, rates = 0, []
    for node in sorted(devices):
        if shares(snapshot, job, node):
            room += len(devices[node])
        else:
            rates.append(snapshot.rates.get((files.node, node), usual))
    if not rates:
        return room, 0.0
    return room, job.profile.checkpoint_bytes / min(rates) + FIXED
