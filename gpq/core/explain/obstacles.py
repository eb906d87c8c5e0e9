"""What keeps a job from every server, whatever becomes free, and the reasons of `gpq why`: codes
and facts, of which `gpq.control.sentences` makes sentences. Each function returns None if
its obstacle does not apply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpq.core.feasibility import environments, owners
from gpq.core.feasibility.checkpoints import closed_to
from gpq.core.feasibility.device_status import drain_lines, out_of_use, reservation_line
from gpq.core.feasibility.reservations import current, keeps_out
from gpq.core.feasibility.shapes import feasible, suits, supply
from gpq.core.model.jobs import Job, Level
from gpq.core.model.nodes import Device, DeviceState, Node, NodeState, Reservation, is_connecting
from gpq.core.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Reason:
    """`code` is stable for scripts: `gpq why --json` prints it. `facts` are what its sentence
    names: numbers, names, or a whole line of a lower package."""

    code: str
    facts: Mapping[str, object]


def reason(code: str, **facts: object) -> Reason:
    return Reason(code, facts)


def lines(code: str, sentences: list[str]) -> list[Reason]:
    """Reasons whose sentences come from a lower package."""
    return [reason(code, line=line) for line in sentences]


@dataclass(frozen=True, slots=True)
class JobReasons:
    """`headline` fits in a table cell, `reasons` are sentences, and `remedies` say what would
    change it."""

    headline: Reason
    reasons: tuple[Reason, ...] = ()
    remedies: tuple[Reason, ...] = ()


def fits(snapshot: Snapshot, job: Job) -> bool:
    """Would it fit somewhere if all GPUs were free?"""
    return bool(feasible(job, snapshot, supply(snapshot, job, {})))


def no_server(snapshot: Snapshot) -> JobReasons:
    """No undrained server answers. Right after the daemon started, gpq may still be connecting to
    some."""
    silent = _silent_nodes(snapshot)
    reasons = [node_silence(snapshot, node) for node in silent]
    reasons += drains(snapshot)
    if any(is_connecting(node, snapshot.now) for node in silent):
        return JobReasons(reason("servers-connecting"), tuple(reasons))
    return JobReasons(
        reason("no-server-answers"),
        tuple(reasons) or (reason("no-server-configured"),),
        (reason("see-nodes"),),
    )


def _silent_nodes(snapshot: Snapshot) -> list[Node]:
    """By name, those that are not up."""
    return [node for _, node in sorted(snapshot.nodes.items()) if node.state is not NodeState.UP]


def drains(snapshot: Snapshot) -> list[Reason]:
    return lines("server-drained", drain_lines(snapshot))


def never_while_drained(snapshot: Snapshot, job: Job) -> JobReasons | None:
    """It fits nowhere, but would if drained servers were not drained."""
    names = sorted(snapshot.drained.keys() & snapshot.nodes.keys())
    if not names or fits(snapshot, job) or not fits(replace(snapshot, drained={}), job):
        return None
    return JobReasons(
        reason("servers-drained"),
        (reason("fits-only-drained", servers=names), *drains(snapshot)),
        tuple(reason("undrain", server=name) for name in names),
    )


def reservations(snapshot: Snapshot, job: Job) -> list[Reason]:
    return [
        reason("gpus-reserved", line=reservation_line(snapshot, reservation))
        for reservation in _reservations_against(snapshot, job)
        if reservation.node in snapshot.nodes
    ]


def _reservations_against(snapshot: Snapshot, job: Job) -> list[Reservation]:
    return [
        reservation
        for reservation in current(snapshot, snapshot.now)
        if keeps_out(reservation, job, snapshot.now)
    ]


def never_while_reserved(snapshot: Snapshot, job: Job) -> JobReasons | None:
    """It fits nowhere, but would without others' reservations and if no server had an owner."""
    reserved, owned = reservations(snapshot, job), others_servers(snapshot, job)
    if not (reserved or owned) or fits(snapshot, job):
        return None
    nodes = {name: replace(node, owner="") for name, node in snapshot.nodes.items()}
    if not fits(replace(snapshot, reservations={}, nodes=nodes), job):
        return None
    if not reserved:
        remedy = reason("edit-background", job=job.id)
        return JobReasons(reason("servers-of-others"), tuple(owned), (remedy,))
    return JobReasons(
        reason("reserved"),
        (reason("fits-only-reserved"), *reserved, *owned),
        tuple(
            reason("unreserve", reservation=reservation.id)
            for reservation in _reservations_against(snapshot, job)
            if not owners.is_owners(reservation)
        ),
    )


def others_servers(snapshot: Snapshot, job: Job) -> list[Reason]:
    return [
        reason("server-owned", server=name, owner=node.owner)
        for name, node in sorted(snapshot.nodes.items())
        if not owners.suits(job, node)
    ]


def tied_checkpoint(snapshot: Snapshot, job: Job) -> list[Reason]:
    """That gpq cannot copy its checkpoint to some of the servers."""
    names = closed_to(snapshot, job)
    if not names or job.files is None:
        return []
    return [reason("checkpoint-stays", line=job.files.stays, servers=names)]


def never_elsewhere(snapshot: Snapshot, job: Job) -> JobReasons | None:
    """It fits nowhere, but would if gpq could copy its checkpoint to any server."""
    reasons = tied_checkpoint(snapshot, job)
    if not reasons or job.files is None or fits(snapshot, job):
        return None
    if not fits(snapshot, replace(job, files=replace(job.files, stays=""))):
        return None
    headline = reason("waits-for-checkpoint-server", server=job.files.node)
    return JobReasons(headline, tuple(reasons), (reason("share-checkpoints"),))


def no_environment(snapshot: Snapshot, job: Job) -> JobReasons | None:
    """It fits nowhere, but would if every server had its interpreter, its directory and the result
    of its setup."""
    unasked = replace(job, spec=environments.without_environment(job.spec))
    if fits(snapshot, job) or not fits(snapshot, unasked):
        return None
    return JobReasons(
        reason("environment", line=environments.headline(snapshot, job)),
        tuple(lines("environment-unfit", environments.obstacles(snapshot, job))),
        tuple(lines("environment-fix", environments.fixes(snapshot, job))),
    )


def node_silence(snapshot: Snapshot, node: Node) -> Reason:
    if is_connecting(node, snapshot.now):
        return reason("server-connecting", server=node.id)
    if node.state is NodeState.UNREACHABLE:
        return reason("server-unreachable", server=node.id, cause=node.reason)
    return reason("server-not-up", server=node.id, state=node.state, cause=node.reason)


def total_gpus(snapshot: Snapshot) -> int:
    return sum(len(node.devices) for node in snapshot.nodes.values())


def never_fits(snapshot: Snapshot, job: Job, fewest: int) -> JobReasons | None:
    """A reason that no waiting removes, with what there is instead."""
    if fits(snapshot, job):
        return None
    silent = _silent_nodes(snapshot)
    if not silent and (obstacle := _no_such_gpu(snapshot, job)) is not None:
        return obstacle
    if _would_fit(snapshot, job, answering_only=True):
        needs = reason("needs-gpus-out-of-use", gpus=fewest)
        devices = lines("gpu-out-of-use", out_of_use(snapshot, job.spec))
        return JobReasons(reason("gpus-out-of-use"), (needs, *devices))
    is_unknown = any(not node.devices for node in silent)
    if not is_unknown and not _would_fit(snapshot, job, answering_only=False):
        return _too_large(snapshot, job, fewest)
    reasons = [node_silence(snapshot, node) for node in silent]
    if any(is_connecting(node, snapshot.now) for node in silent):
        return JobReasons(reason("servers-connecting"), tuple(reasons))
    may_fit = reason("may-fit-when-back", servers=[node.id for node in silent])
    return JobReasons(reason("servers-silent"), (may_fit, *reasons))


def _devices(snapshot: Snapshot) -> list[Device]:
    return [device for node in snapshot.nodes.values() for device in node.devices]


def _no_such_gpu(snapshot: Snapshot, job: Job) -> JobReasons | None:
    spec, devices = job.spec, _devices(snapshot)
    if not (spec.gpu_type or spec.min_gpu_memory_mib):
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


def _too_large(snapshot: Snapshot, job: Job, fewest: int) -> JobReasons:
    """It asks for more than the largest server has, or than all servers have of one type. No job
    gets two types at once."""
    spec, devices = job.spec, _devices(snapshot)
    suited = [
        (name, device.type)
        for name, node in snapshot.nodes.items()
        for device in node.devices
        if suits(device, spec)
    ]
    by_node, by_type = Counter(suited), Counter(gpu_type for _, gpu_type in suited)
    kind = " that suit it" if len(suited) < len(devices) else ""
    if len(by_type) > 1:
        kind += " of one type"
    if spec.level is Level.SCRIPT:
        most = max(by_type.values(), default=0)
        code = "too-large-for-all"
    else:
        most = max(by_node.values(), default=0)
        code = "too-large-for-server"
    reasons: list[Reason] = [reason(code, gpus=fewest, most=most, kind=kind)]
    if any(suits(device, spec.having(min_gpus=1)) for device in devices if device.is_slice):
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
