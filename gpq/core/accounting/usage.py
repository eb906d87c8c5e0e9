"""The journal -> spells: which attempt held which devices when, and how it ended. Records are jobs
as accounts need them.

Pure. It knows no window and no user's question (`report` does).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpq.core.accounting.accrual import is_failure
from gpq.core.model.accounts import Account, AttemptAccount, Span, restart_spans
from gpq.core.model.events import (
    Cancelled,
    Event,
    Failed,
    Held,
    Launched,
    Released,
    Stopped,
    StopSent,
    Succeeded,
    TimeLimitReached,
)
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.placements import Exit
from gpq.core.model.units import JobId, NodeId, Seconds

KINDS: tuple[type[Event], ...] = (  # what `read` reads
    Launched, StopSent, Held, Released, Stopped, Succeeded, Failed, Cancelled, TimeLimitReached,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordSpec:
    user: str
    name: str = ""
    argv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """A job as accounts need it. All fields have the names and meanings that they have in `Job`: a
    store reads its rows as records without looking at the other fields."""

    id: JobId
    spec: RecordSpec
    submitted_at: Seconds
    state: JobState = JobState.PENDING
    ended_at: Seconds | None = None
    exit: Exit | None = None
    service: float = 0.0
    run_seconds: Seconds = 0.0
    restarts: int = 0
    last_replicas: int = 0
    account: Account = field(default_factory=Account)


def record_of(job: Job) -> Record:
    spec = RecordSpec(job.spec.user, job.spec.name, job.spec.argv)
    return Record(
        job.id, spec, job.submitted_at, job.state, job.ended_at, job.exit, job.service,
        job.run_seconds, job.restarts, job.last_replicas, job.account,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spell:
    """One attempt of a job, from its launch to its end or to now."""

    job: JobId
    again: bool  # not the job's first
    parts: tuple[tuple[NodeId, int], ...]  # (server, devices)
    began: Seconds
    ended: Seconds
    worth: float | None = None  # GPU-seconds
    restarting: tuple[Span, ...] = ()  # while it held its GPUs for a restart
    failed: bool = False  # or lost
    tally: AttemptAccount = field(default_factory=AttemptAccount)

    @property
    def gpus(self) -> int:
        if len(self.parts) == 1:  # most often
            return self.parts[0][1]
        return sum(count for _, count in self.parts)


@dataclass(frozen=True, slots=True)
class Journal:
    """`holds` says when each job was held."""

    spells: tuple[Spell, ...] = ()
    holds: Mapping[JobId, tuple[Span, ...]] = field(default_factory=dict)


def read(
    events: Iterable[Event], now: Seconds, live: Mapping[tuple[JobId, int], AttemptAccount]
) -> Journal:
    """All spells, by their ends. `events` are those of `KINDS` in order, from before the first
    launch of every job that counts. `live` says what running attempts have come to until now."""
    spells: list[Spell] = []
    launches: dict[JobId, Launched] = {}
    stop_times: dict[JobId, Seconds] = {}
    jobs_with_spells: set[JobId] = set()
    hold_starts: dict[JobId, Seconds] = {}
    holds: dict[JobId, tuple[Span, ...]] = {}
    for event in events:
        match event:
            case Launched():
                launches[event.job] = event
            case StopSent():
                stop_times.setdefault(event.job, event.at)
            case Held():
                hold_starts[event.job] = event.at
            case Released():
                _end_hold(holds, hold_starts, event.job, event.at)
            case Stopped() | Succeeded() | Failed() | Cancelled() | TimeLimitReached():
                _end_hold(holds, hold_starts, event.job, event.at)
                if event.job in launches:
                    start, stop = launches.pop(event.job), stop_times.pop(event.job, None)
                    stopping_at = stop if isinstance(event, Stopped) else None
                    ended = max(event.exit.ended_at or event.at, start.at)
                    again = event.job in jobs_with_spells
                    spell = _spell(start, event.tally, again, stopping_at, ended)
                    spells.append(replace(spell, failed=is_failure(event)))
                    jobs_with_spells.add(event.job)
    for name, start in launches.items():
        spells.append(
            _spell(
                start,
                live.get((name, start.attempt)),
                name in jobs_with_spells,
                None,
                max(now, start.at),
            )
        )
    for name in [*hold_starts]:
        _end_hold(holds, hold_starts, name, now)
    return Journal(tuple(spells), holds)


def _end_hold(
    holds: dict[JobId, tuple[Span, ...]], starts: dict[JobId, Seconds], job: JobId, at: Seconds
) -> None:
    if job in starts:
        since = starts.pop(job)
        holds[job] = (*holds.get(job, ()), (since, max(at, since)))


def _spell(
    start: Launched,
    tally: AttemptAccount | None,
    again: bool,
    stopping_at: Seconds | None,
    ended: Seconds,
) -> Spell:
    parts = start.placement.counts
    if tally is None:
        return Spell(start.job, again, parts, start.at, ended)
    spans = restart_spans(again, start.at, tally, stopping_at, ended)
    return Spell(
        start.job,
        again,
        parts,
        start.at,
        ended,
        tally.worth,
        spans,
        tally=tally,
    )
