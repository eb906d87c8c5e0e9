"""Leases, silence and orphans: when a daemon may give up what it no longer hears of, which jobs it
hears nothing of now, and attempts that servers run but a restored database does not know. Pure.

The caller measures silence on a clock that nobody sets. The protocol is at the top of
`gpq_agent.wire`."""

from __future__ import annotations

from dataclasses import dataclass

from gpq.core.feasibility.checkpoints import out_of_reach
from gpq.core.model.events import Exited
from gpq.core.model.jobs import DesiredState, Job, JobState
from gpq.core.model.nodes import Node, NodeState, Orphan, is_connecting
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
    ends = []
    for job in snapshot.expected_on(node):
        if silent >= patience(job):
            lease = span(job.spec.requeue_on_lost)
            note = f"ended by its lease: no contact with {node} for {lease}"
            end = Exit(code=None, lost=True, fenced=True, ended_at=now, note=note)
            ends.append(Exited(now, job.id, job.attempt, node, end))
    return ends


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
    over = dict(job.exits)
    # A part of it may run there without anybody knowing. So it may if one is not configured any
    # more.
    nodes = [snapshot.nodes.get(name, Node(name)) for name in job.nodes if name not in over]
    silent_nodes = [node for node in nodes if node.state is NodeState.UNREACHABLE]
    if not silent_nodes:
        return None
    longest = max(now - min(node.silent_since or now for node in silent_nodes), 0.0)
    connecting = all(is_connecting(node, now) for node in silent_nodes)
    requeue_in = None
    if job.spec.requeue_on_lost > 0:
        requeue_in = max(patience(job) - longest, 0.0)
    return Silence(tuple(node.id for node in silent_nodes), longest, requeue_in, connecting)


def span(seconds: Seconds) -> str:
    """``40 s``, ``10 m``, ``3 h``, ``2 d``: whole numbers of the largest unit that fits at least
    twice."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:.0f} s"


def at_large(snapshot: Snapshot, job: Job) -> tuple[NodeId, Orphan] | None:
    """An attempt of this job that the database lost, and where it runs. A second attempt must not
    run at the same time."""
    if job.state is not JobState.PENDING or not any(job.lost_attempts):
        return None
    for name in sorted(snapshot.nodes):
        for stranger in snapshot.nodes[name].strangers:
            if stranger.job == job.id:
                return name, stranger
    return None


def must_wait(snapshot: Snapshot, job: Job) -> str:
    """Why the job must wait even if there is room. Otherwise ""."""
    if not job.attempt and job.files is None and not any(job.lost_attempts):
        # most waiting jobs never ran
        return ""
    orphan = at_large(snapshot, job)
    if orphan is None:
        return out_of_reach(snapshot, job)
    node, stranger = orphan
    return (
        f"server {node} runs its attempt {stranger.name}, which this daemon's database does not"
        " know"
    )


def may_start(snapshot: Snapshot, job: Job) -> bool:
    """Is it in the queue, and may it start now if there is room?"""
    return (
        job.state is JobState.PENDING
        and job.wish is DesiredState.RUN
        and snapshot.now >= job.not_before
        and not must_wait(snapshot, job)
    )


def orphan_line(node: NodeId, stranger: Orphan, age: str) -> str:
    """A line for the user. `age` says in words how long the attempt has run."""
    pid = f", pid {stranger.pid}" if stranger.pid else ""
    return (
        f"server {node} runs attempt {stranger.name} (for {age}{pid}), which this daemon's database"
        f" does not know. gpq leaves it alone. Its log: {stranger.folder}"
    )
