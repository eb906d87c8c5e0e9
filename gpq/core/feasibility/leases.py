"""Leases and silence: when a daemon may give up what it no longer hears of, and which jobs it hears
nothing of now. Pure.

The caller measures silence on a clock that nobody sets. The protocol is at the top of
`gpq_agent.wire`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpq.core.model.events import Exited
from gpq.core.model.jobs import HOLDS_DEVICES, Job
from gpq.core.model.nodes import Node, NodeState, is_connecting
from gpq.core.model.placements import Exit
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import NodeId, Seconds

LEAST: Seconds = 60.0  # that a user may ask for. A slow network alone would end shorter ones
LONGEST_MARGIN: Seconds = 30.0  # without drift
DRIFT = 0.005  # two free-running clocks differ by less (crystals: 1e-4, slewed clocks: 1e-3)


def margin(lease: Seconds) -> Seconds:
    """How long the daemon waits beyond the lease: for TERM, KILL and the end of all processes, and
    for clocks that drift."""
    return min(LONGEST_MARGIN, lease / 4) + lease * DRIFT


def patience(job: Job) -> Seconds:
    """The silence after which gpq gives up a part of the job's attempt. Infinite for a job without
    a lease."""
    lease = job.spec.requeue_on_lost
    if lease <= 0:
        return float("inf")
    return lease + margin(lease)


def given_up(snapshot: Snapshot, node: NodeId, silent: Seconds, now: Seconds) -> list[Exited]:
    """The ends of parts on `node` that have ended themselves by now, because nobody heard of it for
    `silent` seconds."""
    return [
        Exited(now, job.id, job.attempt, node, _end(job, node, now))
        for job in snapshot.expected_on(node)
        if silent >= patience(job)
    ]


def _end(job: Job, node: NodeId, now: Seconds) -> Exit:
    note = f"ended by its lease: no contact with {node} for {span(job.spec.requeue_on_lost)}"
    return Exit(code=None, lost=True, fenced=True, ended_at=now, note=note)


@dataclass(frozen=True, slots=True)
class Silence:
    """A job whose processes may or may not run. Nobody can tell at the moment."""

    nodes: tuple[NodeId, ...]  # that do not answer
    seconds: Seconds  # the longest of their silences
    requeue_in: Seconds | None  # at the earliest. None: silence never requeues it
    # gpq is connecting to all of them for the first time since the daemon started
    connecting: bool = False

    def __str__(self) -> str:
        noun, do = "server", "does"
        if len(self.nodes) > 1:
            noun, do = "servers", "do"
        names = ", ".join(self.nodes)
        if self.connecting:
            return f"not known yet: gpq is connecting to {noun} {names}"
        if self.seconds:
            return f"unknown for {span(self.seconds)}: {noun} {names} {do} not answer"
        return f"unknown: {noun} {names} {do} not answer"


def silence(snapshot: Snapshot, job: Job, now: Seconds) -> Silence | None:
    """None for a job that holds nothing, or whose servers all answer."""
    if job.state not in HOLDS_DEVICES:
        return None
    silent_nodes = _silent_nodes(snapshot, job)
    if not silent_nodes:
        return None
    longest = max(_silent_seconds(node, now) for node in silent_nodes.values())
    connecting = all(
        node is not None and is_connecting(node, now) for node in silent_nodes.values()
    )
    requeue_in = None
    if job.spec.requeue_on_lost > 0:
        requeue_in = max(patience(job) - longest, 0.0)
    return Silence(tuple(silent_nodes), longest, requeue_in, connecting)


def _silent_nodes(snapshot: Snapshot, job: Job) -> dict[NodeId, Node | None]:
    """The servers where parts of it may run without anybody knowing. None: no longer configured."""
    ended_nodes = {name for name, _ in job.exits}
    nodes = {name: snapshot.nodes.get(name) for name in job.nodes if name not in ended_nodes}
    return {
        name: node
        for name, node in nodes.items()
        if node is None or node.state is NodeState.UNREACHABLE
    }


def _silent_seconds(node: Node | None, now: Seconds) -> Seconds:
    if node is None or not node.silent_since:
        return 0.0
    return max(now - node.silent_since, 0.0)


def span(seconds: Seconds) -> str:
    """``40 s``, ``10 m``, ``3 h``, ``2 d``: whole numbers of the largest unit that fits at least
    twice."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:.0f} s"
