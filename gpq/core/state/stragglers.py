"""Compares replicas: which one makes the others wait, why, and where the job is when none makes
progress.

DDP hides slow replicas: every replica's steps take as long as the slowest one's, and that one waits
least. So the measure is the time from the start of a step to a replica's own last gradient
(training.md 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from gpq.core.model.jobs import Job, JobState
from gpq.core.model.profile import RankTime
from gpq.core.model.units import DeviceId, NodeId, Seconds

SLOWER = 1.2  # times the median of the others
WINDOWS = 3  # windows in a row before a replica counts as a straggler
LEAST_STEPS = 5  # steps that a window needs to count
HUNG: Seconds = 60.0  # seconds without a step
HUNG_STEPS = 20.0  # times the step time, if that is longer
MOVING = ("starting", "evaluating", "saving", "ended")  # phases in which no step is expected


def judge(before: Sequence[RankTime], window: Sequence[RankTime]) -> tuple[RankTime, ...]:
    """The new window with, for each rank, the number of consecutive windows in which it was slower
    than the others."""
    slow_windows = {rank_time.rank: rank_time.slow for rank_time in before}
    ranks = []
    for rank_time in window:
        usual = median(
            [peer.compute for peer in window if peer.rank != rank_time.rank] or [rank_time.compute]
        )
        slow = slow_windows.get(rank_time.rank, 0)
        if rank_time.steps >= LEAST_STEPS:
            slow = slow + 1 if rank_time.compute > SLOWER * usual > 0 else 0
        ranks.append(replace(rank_time, slow=slow))
    return tuple(ranks)


def stragglers(job: Job) -> tuple[int, ...]:
    """Ranks that make the others wait, in ascending order."""
    return tuple(rank_time.rank for rank_time in job.profile.ranks if rank_time.slow >= WINDOWS)


def describe(job: Job, rank: int) -> str:
    """One line on a straggler, with a likely cause."""
    ranks = job.profile.ranks
    mine = next(rank_time for rank_time in ranks if rank_time.rank == rank)
    peers = [rank_time for rank_time in ranks if rank_time.rank != rank]
    usual = median(rank_time.compute for rank_time in peers)
    waits = mine.fetch - median(rank_time.fetch for rank_time in peers) > 0.5 * (
        mine.compute - usual
    )
    why = "it waits for data" if waits else "its GPU or its server is slower or shared"
    return (
        f"rank {rank}{_at(job, rank)} is a straggler: {mine.compute / usual:.1f}x the time of the"
        f" others, probably because {why}"
    )


def seats(job: Job) -> dict[int, tuple[NodeId, DeviceId]]:
    """Where each rank is: servers in the order of the placement, and the devices of each."""
    return dict(enumerate((node, device) for node, devices in job.parts for device in devices))


def _at(job: Job, rank: int) -> str:
    seat = seats(job).get(rank)
    return f" on {seat[0]}" if seat is not None else ""


@dataclass(frozen=True, slots=True)
class Hang:
    """No replica has made a step for too long."""

    seconds: Seconds
    line: str


def hang(job: Job, now: Seconds) -> Hang | None:
    """For a running job whose training library reports where its replicas are. gpq reports the hang
    but does not touch the job. Only the user knows how long a step may take."""
    pulses = job.pulses
    if job.state is not JobState.RUNNING or not pulses:
        return None
    if any(pulse.phase in MOVING for pulse in pulses):
        return None
    seconds = now - max(pulse.since for pulse in pulses)
    step = max((row.step_time for row in job.profile.rows), default=0.0)
    if seconds < max(HUNG, HUNG_STEPS * step):
        return None
    newest = max(pulse.step for pulse in pulses)
    late_ranks = [pulse.rank for pulse in pulses if pulse.step < newest or pulse.phase != "arrived"]
    silent_ranks = sorted(set(seats(job)) - {pulse.rank for pulse in pulses})
    if late_ranks and len(late_ranks) + len(silent_ranks) < job.replicas:
        culprits = f"the others wait for {_ranks(job, late_ranks)}"
    elif silent_ranks:
        culprits = f"{_ranks(job, silent_ranks)} reported nothing, and the others wait"
    elif late_ranks:
        culprits = "every rank is busy on its own"
    else:
        culprits = "all ranks wait for their network"
    return Hang(seconds, f"no step for {seconds:.0f} s: {culprits}")


def _ranks(job: Job, ranks: Sequence[int]) -> str:
    return f"rank{'s' if ranks[1:] else ''} " + ", ".join(
        f"{rank}{_at(job, rank)}" for rank in sorted(ranks)
    )
