"""What keeps a job from every server, whatever becomes free. Each function returns None if its
obstacle does not apply."""

from __future__ import annotations

from dataclasses import replace

from gpq.core.explain.reasons import JobReasons, Reason, lines, reason
from gpq.core.feasibility import environments, owners
from gpq.core.feasibility.checkpoints import closed_to
from gpq.core.feasibility.device_status import drain_line, drain_lines, reservation_line
from gpq.core.feasibility.reservations import current, keeps_out
from gpq.core.feasibility.shapes import feasible, supply
from gpq.core.model.jobs import Job
from gpq.core.model.nodes import Node, NodeState, Reservation, is_connecting
from gpq.core.model.snapshot import Snapshot


def fits(snapshot: Snapshot, job: Job) -> bool:
    """Would it fit somewhere if all GPUs were free?"""
    return bool(feasible(job, snapshot, supply(snapshot, job, {})))


def no_server(snapshot: Snapshot) -> JobReasons:
    """No undrained server answers. Right after the daemon started, gpq may still be connecting to
    some."""
    nodes = [node for _, node in sorted(snapshot.nodes.items())]
    reasons = [node_silence(snapshot, node) for node in nodes if node.state is not NodeState.UP]
    reasons += drains(snapshot)
    if any(is_connecting(node, snapshot.now) for node in nodes):
        return JobReasons(reason("servers-connecting"), tuple(reasons))
    return JobReasons(
        reason("no-server-answers"),
        tuple(reasons) or (reason("no-server-configured"),),
        (reason("see-nodes"),),
    )


def drains(snapshot: Snapshot) -> list[Reason]:
    return lines("server-drained", drain_lines(snapshot))


def never_while_drained(snapshot: Snapshot, job: Job) -> JobReasons | None:
    """It fits nowhere, but would if drained servers were not drained."""
    names = [name for name in sorted(snapshot.drained) if name in snapshot.nodes]
    if not names or fits(snapshot, job) or not fits(replace(snapshot, drained={}), job):
        return None
    return JobReasons(
        reason("servers-drained"),
        (
            reason("fits-only-drained", servers=names),
            *(reason("server-drained", line=drain_line(snapshot, name)) for name in names),
        ),
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
