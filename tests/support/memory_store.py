"""A store that forgets. The same protocol as SQLite's, but nothing on disk."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from gpq.core.accounting.usage import Record, record_of
from gpq.core.model.events import EPHEMERAL, Event, JobsRemoved
from gpq.core.model.jobs import Job
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.ports import Wanted
from gpq.store import rows


class MemoryStore:
    """Keeps what a database would keep. Readers see a copy of the lists."""

    def __init__(self) -> None:
        self._state = Snapshot()
        self._ended: list[Job] = []
        self._journal: list[Event] = []
        self._removed: set[JobId] = set()

    def load(self) -> Snapshot:
        return self._state

    def commit(self, events: Sequence[Event], snapshot: Snapshot, ended: Sequence[Job] = ()) -> None:
        rows.check_outcomes(self._state, snapshot, ended)
        self._journal.extend(event for event in events if not isinstance(event, EPHEMERAL))
        again = {job.id for job in ended} | set(snapshot.jobs)
        needed = {need.job for job in [*ended, *snapshot.jobs.values()] for need in job.spec.after}
        removed = {name for event in events if isinstance(event, JobsRemoved) for name in event.jobs} - again - needed
        self._removed |= removed
        self._journal = [event for event in self._journal if getattr(event, "job", None) not in removed]
        self._ended = [*(job for job in self._ended if job.id not in again | removed), *ended]
        self._state = rows.durable_part(snapshot)

    def history(
        self,
        *,
        ids: Sequence[JobId] | None = None,
        names: Sequence[str] | None = None,
        user: str = "",
        states: Sequence[str] = (),
        limit: int | None = None,
    ) -> list[Job]:
        users = [user] if user else None
        jobs = [
            job
            for job in list(self._ended)
            if _allows(ids, job.id)
            and _allows(names, job.spec.name)
            and _allows(users, job.spec.user)
            and _allows(states or None, job.state)
        ]
        jobs.sort(key=lambda job: (job.ended_at or 0.0, job.id), reverse=True)
        return jobs[:limit]

    def events(self, *, job: JobId | None = None, kinds: Sequence[type] = (), limit: int | None = None) -> list[Event]:
        events = [
            event
            for event in list(self._journal)
            if (job is None or getattr(event, "job", None) == job) and (not kinds or isinstance(event, tuple(kinds)))
        ]
        return events if limit is None else events[len(events) - min(limit, len(events)) :]

    def records(self, criteria: Wanted) -> list[Record]:
        ended = self.history(user=criteria.user, states=criteria.states)
        jobs = [job for job in ended if _is_named(job, criteria) and _is_in_window(job, criteria)]
        return [record_of(job) for job in jobs[: criteria.limit]]

    def ids(self, criteria: Wanted) -> list[JobId]:
        if criteria.quiet_since is None:
            return [record.id for record in self.records(criteria)]
        recent = {getattr(event, "job", None) for event in self._journal if event.at >= criteria.quiet_since}
        records = self.records(replace(criteria, limit=None))
        return [record.id for record in records if record.id not in recent][: criteria.limit]

    def has_removed(self) -> bool:
        return bool(self._removed)

    def removed_ids(self, ids: Sequence[JobId]) -> list[JobId]:
        return sorted(self._removed.intersection(ids))

    def count(self, criteria: Wanted) -> int:
        return len(self.records(replace(criteria, limit=None)))

    def journal(self, kinds: Sequence[type], since: Seconds = 0.0) -> Iterator[Event]:
        return (event for event in self.events(kinds=kinds) if event.at >= since)

    def ended_count(self) -> int:
        return len(self._ended)

    def close(self) -> None:
        """Nothing to close."""


def _allows(choices: Collection[object] | None, value: object) -> bool:
    return choices is None or value in choices


def _is_named(job: Job, criteria: Wanted) -> bool:
    if not criteria.ids and not criteria.names:
        return True
    return job.id in criteria.ids or job.spec.name in criteria.names


def _is_in_window(job: Job, criteria: Wanted) -> bool:
    ended_at = job.ended_at or 0.0
    if criteria.since is not None and ended_at < criteria.since:
        return False
    return criteria.until is None or ended_at < criteria.until
