"""Turns the new facts of the journal into messages to the targets of their jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from gpq.control import event_text
from gpq.core.model import events as facts
from gpq.core.model.jobs import Job
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.daemon.notifications import announcement
from gpq.daemon.notifications.outbox import Message

READ_AT_ONCE = 500  # events
YOUNG: Seconds = 60.0  # a fact may be this old before its job is known

Entry = tuple[int, announcement.Told]  # number and fact of the journal


class Journal(Protocol):
    """The part of the store that this room uses."""

    id: str

    def news(
        self, after: int, kinds: Sequence[type], limit: int
    ) -> tuple[int, list[tuple[int, facts.Event]]]: ...
    def history(self, *, ids: Sequence[JobId] | None = None) -> list[Job]: ...
    def events(
        self, *, job: JobId | None = None, kinds: Sequence[type] = ()
    ) -> list[facts.Event]: ...


class Page(NamedTuple):
    """What one look at the journal found."""

    seq: int  # the journal was read up to here
    messages: list[Message]
    is_full: bool  # there may be more
    is_early: bool  # it ends before a fact that is committed but not published yet


class JournalReader:
    """`view` returns the newest published snapshot."""

    def __init__(
        self, journal: Journal, view: Callable[[], Snapshot], now: Callable[[], Seconds]
    ) -> None:
        self._journal = journal
        self._view = view
        self._now = now

    def end(self) -> int:
        """The number of the last fact."""
        seq, _ = self._journal.news(1 << 62, announcement.KINDS, 1)
        return seq

    def page(self, after: int) -> Page:
        """The facts after `after`, as far as their jobs are known."""
        seq, news = self._journal.news(after, announcement.KINDS, READ_AT_ONCE)
        entries = [
            (number, event) for number, event in news if isinstance(event, announcement.KINDS)
        ]
        jobs = self._jobs(entries)
        early_number = next(
            (
                number
                for number, event in entries
                if event.job not in jobs and self._now() - event.at < YOUNG
            ),
            None,
        )
        if early_number is not None:
            seq = early_number - 1
            entries = [(number, event) for number, event in entries if number < early_number]
        return Page(
            seq,
            _messages(entries, jobs),
            is_full=len(news) >= READ_AT_ONCE,
            is_early=early_number is not None,
        )

    def job(self, name: JobId) -> Job | None:
        """Asks the database first, because an end is there before it is published."""
        return next(iter(self._journal.history(ids=[name])), None) or self._view().jobs.get(name)

    def launch(self, job: JobId, at: Seconds) -> facts.Launched | None:
        """The last launch of a job before `at`."""
        launches = [
            event
            for event in self._journal.events(job=job, kinds=(facts.Launched,))
            if isinstance(event, facts.Launched) and event.at <= at
        ]
        return launches[-1] if launches else None

    def _jobs(self, entries: Sequence[Entry]) -> dict[JobId, Job]:
        """The jobs as they are now, or as they ended."""
        live = self._view().jobs
        names = {event.job for _, event in entries}
        jobs = {name: live[name] for name in names if name in live}
        ended_names = sorted(names - live.keys())
        if ended_names:
            jobs |= {job.id: job for job in self._journal.history(ids=ended_names)}
        return jobs


def _messages(entries: Sequence[Entry], jobs: Mapping[JobId, Job]) -> list[Message]:
    """One message for each target that wants to know a fact."""
    messages: dict[tuple[int, str, str, int], Message] = {}
    for seq, event in entries:
        job = jobs.get(event.job)
        if job is None or not job.spec.notify:
            continue
        word = announcement.word_of(event, job)
        if not word or not announcement.is_wanted(word, event, job):
            continue
        line = event_text.event_line(event)
        # every server of an attempt reports its start
        fact = event.attempt if isinstance(event, facts.Started) else seq
        for target in job.spec.notify:
            messages.setdefault(
                (job.id, target, word, fact), Message(seq, event.at, job.id, target, word, line)
            )
    return list(messages.values())
