"""Attempts that servers run but a restored database does not know. gpq shows them, leaves them
alone and waits for them. Pure."""

from __future__ import annotations

from gpq.core.feasibility.checkpoints import out_of_reach
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.nodes import Orphan
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import NodeId


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


def line(node: NodeId, stranger: Orphan, age: str) -> str:
    """A line for the user. `age` says in words how long the attempt has run."""
    pid = f", pid {stranger.pid}" if stranger.pid else ""
    return (
        f"server {node} runs attempt {stranger.name} (for {age}{pid}), which this daemon's database"
        f" does not know. gpq leaves it alone. Its log: {stranger.folder}"
    )
