"""Which devices a job may use, and the shapes that it could have on these servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gpq.core.feasibility.mobility import held_by, is_leaving
from gpq.core.feasibility.reservations import Barred, barred_devices
from gpq.core.freedoms import bind
from gpq.core.model.jobs import Job, JobSpec, Level
from gpq.core.model.nodes import Device, DeviceState, Fitness, Node, NodeState, is_slice
from gpq.core.model.placements import Placement, Shape
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId

Checks = Mapping[tuple[NodeId, str], Fitness]
Supply = Mapping[NodeId, tuple[DeviceId, ...]]
DeviceKind = tuple[str, int, bool, Barred, str]
UNASKED = Fitness(False, at=float("-inf"))  # of a server that was not asked yet


def kind_of(job: Job, snapshot: Snapshot) -> DeviceKind:
    """What a job asks of devices and servers, and what is reserved for others. Jobs of one kind may
    use the same devices."""
    spec = job.spec
    return (
        spec.gpu_type,
        spec.min_gpu_memory_mib,
        spec.min_gpus > 1,
        barred_devices(snapshot, job),
        spec.environment,
    )


def usable(device: Device, spec: JobSpec) -> bool:
    """Could this device serve the job, whoever holds it now?"""
    return device.state is DeviceState.OK and suits(device, spec)


def suits(device: Device, spec: JobSpec) -> bool:
    """Could it serve the job if it were in order?"""
    return (
        spec.gpu_type.casefold() in device.type.casefold()
        and device.memory_mib >= spec.min_gpu_memory_mib
        and not (spec.min_gpus > 1 and device.is_slice)
    )


def is_fit(checks: Checks, node: NodeId, environment: str) -> bool:
    """May a job with this environment be placed there?"""
    return not environment or checks.get((node, environment), UNASKED).fit


def supply(
    snapshot: Snapshot, job: Job, occupants: Mapping[tuple[NodeId, DeviceId], JobId] | None = None
) -> Supply:
    """Devices by server, sorted, that the job could use, without those of fixed jobs
    (`occupants`)."""
    occupants = held_by(snapshot, only_fixed=True) if occupants is None else occupants
    devices_by_node: dict[NodeId, tuple[DeviceId, ...]] = {}
    reserved = barred_devices(snapshot, job)
    for node in nodes_up(snapshot):
        if not is_fit(snapshot.checks, node.id, job.spec.environment):
            continue
        # that no other job holds and no reservation keeps
        devices = tuple(
            device.id
            for device in node.devices
            if usable(device, job.spec)
            and occupants.get((node.id, device.id), job.id) == job.id
            and (node.id, device.id) not in reserved
        )
        if devices:
            devices_by_node[node.id] = devices
    return devices_by_node


def nodes_up(snapshot: Snapshot) -> list[Node]:
    """Servers that answer and are not drained."""
    return list(_look(snapshot).up)


@dataclass(frozen=True, slots=True)
class _Look:
    """Values that a round asks of the servers many times."""

    nodes: Mapping[NodeId, Node]
    drained: Mapping[NodeId, str]
    up: tuple[Node, ...]
    types: tuple[str, ...]


# the answer for the last servers, which are replaced and never changed
_latest: list[_Look] = []


def _look(snapshot: Snapshot) -> _Look:
    nodes, drained = snapshot.nodes, snapshot.drained
    if _latest:
        look = _latest[-1]
        if look.nodes is nodes and look.drained == drained:
            return look
    up = tuple(
        nodes[name]
        for name in sorted(nodes)
        if nodes[name].state is NodeState.UP and name not in drained
    )
    types = tuple(sorted({device.type for node in up for device in node.devices}))
    look = _Look(nodes, drained, up, types)
    _latest[:] = [look]
    return look


def is_mixed(snapshot: Snapshot) -> bool:
    """Are there several types of devices, or parts of GPUs? Then shapes name their type, and no job
    gets two types."""
    types = gpu_types(snapshot)
    return len(types) > 1 or any(map(is_slice, types))


def gpu_types(snapshot: Snapshot) -> tuple[str, ...]:
    """Types of the devices of servers that answer, sorted."""
    return _look(snapshot).types


def shape_types(snapshot: Snapshot) -> tuple[str, ...]:
    """The types as shapes name them."""
    return gpu_types(snapshot) if is_mixed(snapshot) else ("",)


def by_type(available: Supply, snapshot: Snapshot) -> dict[str, Supply]:
    """`available` split by the type of its devices, sorted. Under "" if all have one type."""
    if not is_mixed(snapshot):
        return {"": available}
    supplies: dict[str, dict[NodeId, tuple[DeviceId, ...]]] = {}
    for node, ids in available.items():
        types = {device.id: device.type for device in snapshot.nodes[node].devices}
        for device in ids:
            part = supplies.setdefault(types[device], {})
            part[node] = (*part.get(node, ()), device)
    return dict(sorted(supplies.items()))


def shape_on(placement: Placement, snapshot: Snapshot) -> Shape:
    """The shape of a placement as a round would name it."""
    return one_shape(
        placement.replicas, len(placement.parts), placement.gpu_type if is_mixed(snapshot) else ""
    )


one_shape = lru_cache(maxsize=4096)(Shape)  # equal ones are one object


def shape_now(job: Job, snapshot: Snapshot) -> Shape | None:
    """The present shape, or the target shape of a job that was stopped to resume with another
    one."""
    if job.placement is None or is_leaving(job, snapshot):
        return job.target
    return shape_on(job.placement, snapshot)


def node_counts(available: Supply) -> list[int]:
    """Devices by server, most first."""
    return sorted((len(devices) for devices in available.values()), reverse=True)


def pack(replicas: int, counts: Iterable[int], level: Level, gpu_type: str) -> Shape | None:
    """A shape of this many replicas on as few servers as possible, given their `counts`
    (`node_counts`). None if they do not fit. Only scripts span servers."""
    missing = replicas
    for nodes, count in enumerate(counts, 1):
        missing -= count
        if missing <= 0:
            return Shape(replicas, nodes, gpu_type)
        if level is not Level.SCRIPT:
            break
    return None


def gpu_range(job: Job, total: int, gpu_type: str = "") -> tuple[int, int]:
    """(fewest, most) GPUs that the job may have. `total` is what the cluster could give it, of
    `gpu_type` if there is one.

    A script that has not declared itself gets its minimum: if it never calls the library, more
    replicas would only repeat its work. After the declaration, each of the most replicas still gets
    at least the smallest micro-batch.
    """
    spec, declared = job.spec, job.profile.declared
    if spec.level is not Level.SCRIPT or spec.rigid or declared is None:
        return spec.min_gpus, spec.min_gpus
    most = min(spec.max_gpus or total, 1 if is_slice(gpu_type) else total)
    largest = declared.largest_batch
    if largest > 0:
        most = min(most, max(largest // max(declared.min_atomic_batch, 1), 1))
    return spec.min_gpus, max(most, spec.min_gpus)


def feasible(job: Job, snapshot: Snapshot, available: Supply | None = None) -> tuple[Shape, ...]:
    """Shapes that fit on `available` (default: `supply`), fewest GPUs first. Only scripts may span
    servers. They then take whole servers, largest first, so that at most one server is shared. With
    several types, each type's shapes, by type."""
    job = bind(job, snapshot)
    available = supply(snapshot, job) if available is None else available
    return feasible_on(by_type(available, snapshot), job)


def feasible_on(parts: Mapping[str, Supply], job: Job) -> tuple[Shape, ...]:
    """`feasible` on devices that are known by type."""
    return tuple(shape for name, part in parts.items() for shape in _feasible_of(job, part, name))


def _feasible_of(job: Job, available: Supply, gpu_type: str) -> list[Shape]:
    counts = node_counts(available)
    fewest, most = gpu_range(job, sum(counts), gpu_type)
    largest = counts[0] if counts else 0
    shapes = [Shape(k, 1, gpu_type) for k in range(fewest, min(most, largest) + 1)]
    if job.spec.level is Level.SCRIPT:
        capacity = largest
        for nodes, count in enumerate(counts[1:], 2):
            capacity_before, capacity = capacity, capacity + count
            if max(capacity_before, largest) < fewest < capacity:
                # its minimum is between whole servers: part of the last one
                shapes.append(Shape(fewest, nodes, gpu_type))
            if max(fewest, largest + 1) <= capacity <= most:
                shapes.append(Shape(capacity, nodes, gpu_type))
    return shapes
