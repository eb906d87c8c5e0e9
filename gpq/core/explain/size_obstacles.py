"""Why a job fits nowhere, however long it waits. It asks for GPUs that no server has, or for too
many of them, or the GPUs that it needs are out of use."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gpq.core.explain.obstacles import fits, node_silence
from gpq.core.explain.reasons import JobReasons, Reason, lines, reason
from gpq.core.feasibility import environments
from gpq.core.feasibility.device_status import out_of_use
from gpq.core.feasibility.shapes import suits
from gpq.core.model.jobs import Job, Level
from gpq.core.model.nodes import Device, DeviceState, NodeState, is_connecting
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import NodeId


def never_fits(snapshot: Snapshot, job: Job, fewest: int) -> JobReasons | None:
    """A reason that no waiting removes, with what there is instead."""
    if fits(snapshot, job):
        return None
    silent = [
        name for name in sorted(snapshot.nodes) if snapshot.nodes[name].state is not NodeState.UP
    ]
    return (
        _no_such_gpu(snapshot, job, silent)
        or _out_of_use(snapshot, job, fewest)
        or _on_silent_servers(snapshot, job, silent)
        or _too_large(snapshot, job, fewest)
    )


def _devices(snapshot: Snapshot) -> list[Device]:
    return [device for node in snapshot.nodes.values() for device in node.devices]


def _no_such_gpu(snapshot: Snapshot, job: Job, silent: list[NodeId]) -> JobReasons | None:
    spec, devices = job.spec, _devices(snapshot)
    if silent or not (spec.gpu_type or spec.min_gpu_memory_mib):
        return None
    if any(suits(device, spec) for device in devices):
        return None
    types = sorted({f"{device.type} {device.memory_mib} MiB" for device in devices})
    request = f"type '{spec.gpu_type}'" if spec.gpu_type else "any type"
    if spec.min_gpu_memory_mib:
        request += f" with at least {spec.min_gpu_memory_mib} MiB"
    return JobReasons(
        reason("no-such-gpu"), (reason("gpus-there-are", request=request, types=types or ["none"]),)
    )


def _out_of_use(snapshot: Snapshot, job: Job, fewest: int) -> JobReasons | None:
    if not _would_fit(snapshot, job, answering_only=True):
        return None
    devices = lines("gpu-out-of-use", out_of_use(snapshot, job.spec))
    return JobReasons(
        reason("gpus-out-of-use"), (reason("needs-gpus-out-of-use", gpus=fewest), *devices)
    )


def _on_silent_servers(snapshot: Snapshot, job: Job, silent: list[NodeId]) -> JobReasons | None:
    unknown = any(not snapshot.nodes[name].devices for name in silent)
    if not silent or not (unknown or _would_fit(snapshot, job, answering_only=False)):
        return None
    reasons = [node_silence(snapshot, snapshot.nodes[name]) for name in silent]
    if any(is_connecting(snapshot.nodes[name], snapshot.now) for name in silent):
        return JobReasons(reason("servers-connecting"), tuple(reasons))
    return JobReasons(
        reason("servers-silent"), (reason("may-fit-when-back", servers=silent), *reasons)
    )


def _too_large(snapshot: Snapshot, job: Job, fewest: int) -> JobReasons:
    """It asks for more than the largest server has, or than all servers have of one type. No job
    gets two types at once."""
    spec, devices = job.spec, _devices(snapshot)
    by_node = Counter(
        (name, device.type)
        for name, node in snapshot.nodes.items()
        for device in node.devices
        if suits(device, spec)
    )
    by_type = Counter(device.type for device in devices if suits(device, spec))
    kind = " that suit it" if by_type.total() < len(devices) else ""
    if len(by_type) > 1:
        kind += " of one type"
    if spec.level is Level.SCRIPT:
        most = max(by_type.values(), default=0)
        code = "too-large-for-all"
    else:
        most = max(by_node.values(), default=0)
        code = "too-large-for-server"
    reasons: list[Reason] = [reason(code, gpus=fewest, most=most, kind=kind)]
    if any(suits(device, replace(spec, min_gpus=1)) for device in devices if device.is_slice):
        reasons.append(reason("one-mig-device"))
        most = max(most, 1)
    remedies = (reason("edit-gpus", job=job.id, gpus=most),) if most else ()
    return JobReasons(reason("too-large"), tuple(reasons), remedies)


def _would_fit(snapshot: Snapshot, job: Job, *, answering_only: bool) -> bool:
    """Would it fit if every known GPU were in use and had what the job needs? On all servers, or on
    those that answer."""
    job = replace(job, spec=environments.without_environment(job.spec))
    nodes = {
        name: replace(
            node,
            state=node.state if answering_only else NodeState.UP,
            devices=tuple(replace(device, state=DeviceState.OK) for device in node.devices),
        )
        for name, node in snapshot.nodes.items()
    }
    return fits(replace(snapshot, nodes=nodes), job)
