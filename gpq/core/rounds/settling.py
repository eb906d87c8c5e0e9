"""Immediate consequences for jobs that hold nothing: a wish or a hold needs no round."""

from __future__ import annotations

from collections.abc import Iterable

from gpq.core.feasibility.idle_gpus import reclaimed
from gpq.core.model.events import Cancelled, Event, Held, Released
from gpq.core.model.jobs import DesiredState, Job, JobState
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId


def settle(snapshot: Snapshot, names: Iterable[JobId] | None = None) -> list[Event]:
    """Immediate consequences for jobs that hold nothing, all of them or the named ones: a wish
    needs no round."""
    events: list[Event] = [*reclaimed(snapshot)]
    pending, run = JobState.PENDING, DesiredState.RUN
    for name in sorted(snapshot.jobs if names is None else names):
        job = snapshot.jobs[name]
        if job.placement is not None:
            continue
        if (
            job.wish is run
            and job.state is pending
            and not (job.unmet or job.crashes or job.quick_failures)
        ):
            continue  # nearly all
        event = _consequence(job, snapshot)
        if event is not None:
            events.append(event)
    return events


def _consequence(job: Job, snapshot: Snapshot) -> Event | None:
    """The immediate consequence for one job that holds nothing."""
    if job.wish is DesiredState.CANCEL:
        return Cancelled(snapshot.now, job.id)
    if job.state is JobState.HELD and job.wish in (DesiredState.RUN, DesiredState.REQUEUE):
        return None if job.unmet else Released(snapshot.now, job.id)
    if job.state is not JobState.PENDING:
        return None
    if job.wish is DesiredState.HOLD:
        return Held(snapshot.now, job.id)
    why = _hold_reason(job, snapshot.config)
    return Held(snapshot.now, job.id, f"held: {why}") if why else None


def _hold_reason(job: Job, config: Config) -> str:
    """Why gpq holds a job that its user wants to run. "" if it does not."""
    if job.unmet:
        return f"{job.unmet}. `gpq release {job.id}` runs it anyway"
    if job.crashes >= config.max_crashes:
        return (
            f"its server went down or its supervisor was killed {job.crashes} times in a row while"
            f" it ran. `gpq release {job.id}` tries again"
        )
    if job.quick_failures >= config.max_quick_failures:
        return (
            f"failed {job.quick_failures} times in a row, each within"
            f" {config.quick_failure_seconds:.0f} s. `gpq release {job.id}` tries again"
        )
    return ""
