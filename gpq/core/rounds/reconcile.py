"""Compares what a server has with what the daemon knows: whose attempt is this, and what does a
missing one mean? Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpq.core.model.actions import OfAttempt, Stop
from gpq.core.model.jobs import HOLDS_DEVICES, Job, StopReason
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds, Word
from gpq.core.rounds.planning import CANCEL_GRACE, repeat
from gpq.core.state.attempt_end import MOST_DOUBLINGS


class AttemptVerdict(Word):
    LIVE = "live"  # the job's present attempt, placed on this server
    OVER = "over"  # its end is committed: its exit record may go, and its processes must go
    STRANGER = "stranger"  # of another daemon or a newer database: gpq leaves it alone


def verdict_on(snapshot: Snapshot, node: NodeId, job_id: JobId, attempt: int) -> AttemptVerdict:
    """For one attempt that `node` has. Numbers grow and are never reused, so larger numbers are not
    ours."""
    if job_id >= snapshot.next_id:
        return AttemptVerdict.STRANGER
    job = snapshot.jobs.get(job_id)
    if job is None:
        return _verdict_on_old(job_id, snapshot.lost_ids)
    if attempt < job.attempt:
        return _verdict_on_old(attempt, [job.lost_attempts])
    if attempt > job.attempt:
        return AttemptVerdict.STRANGER
    if job.state not in HOLDS_DEVICES:
        return AttemptVerdict.OVER
    if node in job.nodes:
        return AttemptVerdict.LIVE
    return AttemptVerdict.STRANGER


def _verdict_on_old(number: int, lost_numbers: Iterable[tuple[int, int]]) -> AttemptVerdict:
    """For an attempt that is not in the database: over, unless the database that assigned its
    number was lost."""
    if any(first <= number <= last for first, last in lost_numbers):
        return AttemptVerdict.STRANGER
    return AttemptVerdict.OVER


def is_lost(job: Job, node: NodeId, *, start_possible: bool) -> bool:
    """Is an expected attempt that `node` does not know gone for ever? `start_possible`: an order to
    start it may still be on its way. An attempt that never ran is started again instead, unless it
    must end anyway."""
    if node in job.started_nodes:
        return True
    return (job.stop is not None or is_doomed(job)) and not start_possible


def is_doomed(job: Job) -> bool:
    """Has the attempt failed on one of its servers? Its other parts wait for that one in vain, some
    of them for ever."""
    return any(
        not end.stopped and (end.lost or end.fenced or end.code != 0) for _, end in job.exits
    )


def leftovers(snapshot: Snapshot, node: NodeId) -> list[Stop]:
    """Parts of doomed attempts that `node` may still run."""
    return [
        Stop(
            job.id,
            job.attempt,
            (node,),
            StopReason.CANCEL,
            "kill",
            CANCEL_GRACE,
            "it failed on another server",
        )
        for job in snapshot.expected_on(node)
        if is_doomed(job)
    ]


def standing(snapshot: Snapshot, node: NodeId) -> list[OfAttempt]:
    """All orders to `node` that still stand. gpq ends a part of a doomed attempt and repeats no
    start and no checkpoint for it."""
    ending = leftovers(snapshot, node)
    doomed = {stop.job for stop in ending}
    return [*ending, *(action for action in repeat(snapshot, node) if action.job not in doomed)]


def stuck_reason(snapshot: Snapshot, job: Job) -> str:
    """Why the job does not end although it was killed, by server. "" for a job that ends. It keeps
    its devices until then."""
    key = f"{job.id}.{job.attempt}"
    nodes = [snapshot.nodes[name] for name in job.nodes if name in snapshot.nodes]
    return ", ".join(
        f"{node.id}: {why}" for node in nodes for name, why in node.stuck if name == key
    )


def not_from_the_future(snapshot: Snapshot) -> Snapshot:
    """The snapshot of an earlier daemon whose clock was ahead of ours. Times later than now become
    now.

    Otherwise gpq would not move or retry a job until the clock has caught up, which may take a
    year.
    """
    now, longest = snapshot.now, snapshot.config.retry_seconds * 2.0**MOST_DOUBLINGS

    def at_most(at: Seconds | None) -> Seconds | None:
        return None if at is None else min(at, now)

    def healed(job: Job) -> Job:
        after = replace(
            job,
            submitted_at=min(job.submitted_at, now),
            launched_at=at_most(job.launched_at),
            started_at=at_most(job.started_at),
            first_started_at=at_most(job.first_started_at),
            stop_sent_at=at_most(job.stop_sent_at),
            not_before=min(job.not_before, now + longest),
        )
        return job if after == job else after  # gpq need not write again what did not change

    jobs = {name: healed(job) for name, job in snapshot.jobs.items()}
    return replace(snapshot, jobs=jobs, round_at=min(snapshot.round_at, now))
