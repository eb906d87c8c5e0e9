"""What keeps a job from every server, whatever becomes free: each None where that is not so."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gpq.core.explain.explanation import Explained
from gpq.core.feasibility import environments, owners
from gpq.core.feasibility.checkpoints import closed_to
from gpq.core.feasibility.device_status import (
    drain_line,
    drain_lines,
    gpus,
    out_of_use,
    reservation_line,
)
from gpq.core.feasibility.reservations import current, keeps_out
from gpq.core.feasibility.shapes import (
    feasible,
    suits,
    supply,
)
from gpq.core.model.jobs import Job, Level
from gpq.core.model.nodes import DeviceState, Node, NodeState, is_connecting
from gpq.core.model.snapshot import Snapshot


def no_server(snapshot: Snapshot) -> Explained:
    """None answers that is not drained: some are only being reached, right after the daemon's
    start."""
    nodes = [node for _, node in sorted(snapshot.nodes.items())]
    lines = [_silence(snapshot, node) for node in nodes if node.state is not NodeState.UP]
    lines += drain_lines(snapshot)
    if any(is_connecting(node, snapshot.now) for node in nodes):
        return Explained("servers are being connected to", tuple(lines))
    told = tuple(lines) or ("no server is configured",)
    return Explained(
        "no server answers", told, ("`gpq nodes` shows why, `gpq doctor` how to mend it",)
    )


def never_while_drained(snapshot: Snapshot, job: Job) -> Explained | None:
    """It fits nowhere, and would if drained servers were not."""
    names = [name for name in sorted(snapshot.drained) if name in snapshot.nodes]
    if not names or feasible(job, snapshot, supply(snapshot, job, {})):
        return None
    if not feasible(job, whole := replace(snapshot, drained={}), supply(whole, job, {})):
        return None
    lines = (f"it could only run on servers that are drained: {', '.join(names)}",)
    remedies = tuple(
        f"`gpq nodes undrain {name}` lets jobs be placed there again" for name in names
    )
    return Explained(
        "servers are drained", (*lines, *(drain_line(snapshot, name) for name in names)), remedies
    )


def reserved_lines(snapshot: Snapshot, job: Job) -> list[str]:
    return [
        reservation_line(snapshot, held)
        for held in current(snapshot, snapshot.now)
        if keeps_out(held, job, snapshot.now) and held.node in snapshot.nodes
    ]


def never_while_reserved(snapshot: Snapshot, job: Job) -> Explained | None:
    """It fits nowhere, and would without reservations of others, or were no server somebody's."""
    lines = reserved_lines(snapshot, job)
    owned = [name for name, node in sorted(snapshot.nodes.items()) if not owners.suits(job, node)]
    if not (lines or owned) or feasible(job, snapshot, supply(snapshot, job, {})):
        return None
    nodes = {name: replace(node, owner="") for name, node in snapshot.nodes.items()}
    if not feasible(
        job, whole := replace(snapshot, reservations={}, nodes=nodes), supply(whole, job, {})
    ):
        return None
    if not lines:
        remedy = f"`gpq edit {job.id} --background` lets it run there until somebody comes"
        return Explained("servers are others'", tuple(owned_lines(snapshot, job)), (remedy,))
    held_now = [
        held for held in current(snapshot, snapshot.now) if keeps_out(held, job, snapshot.now)
    ]
    ids = [held.id for held in held_now if not owners.is_owners(held)]
    remedies = tuple(
        f"`gpq nodes unreserve {name}` gives the GPUs back to everybody" for name in ids
    )
    lines += owned_lines(snapshot, job)
    return Explained(
        "GPUs are reserved", ("it could only run on GPUs that are reserved", *lines), remedies
    )


def owned_lines(snapshot: Snapshot, job: Job) -> list[str]:
    return [
        f"server {name} is {node.owner}'s: only jobs that can leave it start there"
        for name, node in sorted(snapshot.nodes.items())
        if not owners.suits(job, node)
    ]


def staying_lines(snapshot: Snapshot, job: Job) -> list[str]:
    names = closed_to(snapshot, job)
    return (
        [f"{job.files.stays}; so it cannot go on on {', '.join(names)}"]
        if names and job.files is not None
        else []
    )


def never_elsewhere(snapshot: Snapshot, job: Job) -> Explained | None:
    """It fits nowhere, and would if its checkpoint could be brought to any server."""
    lines = staying_lines(snapshot, job)
    if not lines or job.files is None or feasible(job, snapshot, supply(snapshot, job, {})):
        return None
    free = replace(job, files=replace(job.files, stays=""))
    if not feasible(free, snapshot, supply(snapshot, free, {})):
        return None
    remedy = (
        "remove that from the checkpoint folder there, and gpq looks again within ten minutes; or"
        " name one folder that the servers share as `checkpoints`"
    )
    return Explained(
        f"waits for server {job.files.node}, where its checkpoint stays", tuple(lines), (remedy,)
    )


def no_environment(snapshot: Snapshot, job: Job) -> Explained | None:
    """It fits nowhere, and would if every server had its interpreter, its directory and what its
    setup brings."""
    free = replace(job, spec=environments.unasked(job.spec))
    if feasible(job, snapshot, supply(snapshot, job, {})) or not feasible(
        free, snapshot, supply(snapshot, free, {})
    ):
        return None
    return Explained(
        environments.headline(snapshot, job),
        tuple(environments.obstacles(snapshot, job)),
        tuple(environments.fixes(snapshot, job)),
    )


def never_fits(snapshot: Snapshot, job: Job, fewest: int) -> Explained | None:
    """A reason that no waiting will cure, with what is there instead."""
    if feasible(job, snapshot, supply(snapshot, job, {})):
        return None
    spec = job.spec
    everything = [device for node in snapshot.nodes.values() for device in node.devices]
    suited = [device for device in everything if suits(device, spec)]
    silent = [
        name for name in sorted(snapshot.nodes) if snapshot.nodes[name].state is not NodeState.UP
    ]
    if not suited and not silent and (spec.gpu_type or spec.min_gpu_memory_mib):
        types = (
            ", ".join(sorted({f"{device.type} {device.memory_mib} MiB" for device in everything}))
            or "none"
        )
        asked = f"type '{spec.gpu_type}'" if spec.gpu_type else "any type"
        asked += f", {spec.min_gpu_memory_mib} MiB at least" if spec.min_gpu_memory_mib else ""
        return Explained("no such GPU", (f"it asks for {asked}; there is: {types}",))
    if _would_fit(snapshot, job, answering_only=True):
        lines = out_of_use(snapshot, spec)
        return Explained(
            "GPUs are out of use", (f"it needs {gpus(fewest)} and some are out of use", *lines)
        )
    unknown = [name for name in silent if not snapshot.nodes[name].devices]
    if silent and (unknown or _would_fit(snapshot, job, answering_only=False)):
        blamed = [_silence(snapshot, snapshot.nodes[name]) for name in silent]
        if any(is_connecting(snapshot.nodes[name], snapshot.now) for name in silent):
            return Explained("servers are being connected to", tuple(blamed))
        back = "answers" if len(silent) == 1 else "answer"
        return Explained(
            "servers do not answer", (f"it may fit once {', '.join(silent)} {back}", *blamed)
        )
    # No job gets two types at once.
    by_node = Counter(
        (name, each.type)
        for name, node in snapshot.nodes.items()
        for each in node.devices
        if suits(each, spec)
    )
    by_type = Counter(device.type for device in suited)
    largest, total = max(by_node.values(), default=0), max(by_type.values(), default=0)
    what = " that suit it" if len(suited) < len(everything) else ""
    what += " of one type" if len(by_type) > 1 else ""
    if spec.level is Level.SCRIPT:
        most, said = total, f"it asks for {gpus(fewest)}; all servers together have {total}{what}"
    else:
        most, said = (
            largest,
            f"it asks for {gpus(fewest)} on one server; the largest server has {largest}{what}",
        )
    reasons = [said]
    if any(suits(device, replace(spec, min_gpus=1)) for device in everything if device.is_slice):
        reasons.append("a job gets no more than one MIG device, for CUDA shows a process only one")
        most = max(most, 1)
    remedy = f"`gpq edit {job.id} --gpus {most}` lets it run with what there is"
    return Explained("asks for more GPUs than there are", tuple(reasons), (remedy,) if most else ())


def _would_fit(snapshot: Snapshot, job: Job, *, answering_only: bool) -> bool:
    """Were every GPU in use that is known, of all servers or of those that answer, and had they
    what it needs there?"""
    job = replace(job, spec=environments.unasked(job.spec))
    nodes = {
        name: replace(
            node,
            state=node.state if answering_only else NodeState.UP,
            devices=tuple(replace(device, state=DeviceState.OK) for device in node.devices),
        )
        for name, node in snapshot.nodes.items()
    }
    whole = replace(snapshot, nodes=nodes)
    return bool(feasible(job, whole, supply(whole, job, {})))


def _silence(snapshot: Snapshot, node: Node) -> str:
    if is_connecting(node, snapshot.now):
        return (
            f"server {node.id} is being connected to, for the first time since the daemon's start"
        )
    what = "does not answer" if node.state is NodeState.UNREACHABLE else f"is {node.state}"
    return f"server {node.id} {what}{': ' + node.reason if node.reason else ''}"
