"""New facts of the journal -> messages to the targets of their jobs. Those that are still to be
sent, and those that were lost, are in a file next to the database.

notifications.json  {"store": id of the database, "seq": the journal was read up to here, "waiting":
                    [...], "lost": [...]}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, cast

from gpq_agent import wire

from gpq import decoding
from gpq.control import event_text
from gpq.core.feasibility.leases import span
from gpq.core.model import events as facts
from gpq.core.model.jobs import Job
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.notify import announcement

MOST_WAITING, MOST_LOST = 5000, 200
READ_AT_ONCE = 500  # events
YOUNG: Seconds = 60.0  # a fact may be this old before its job is known


@dataclass(frozen=True, slots=True)
class Message:
    """One fact for one target."""

    seq: int  # number of the fact in the journal
    at: Seconds
    job: int
    target: str
    word: str  # as in `--notify-on`
    said: str  # the fact in one line
    tries: int = 0
    due: Seconds = 0.0
    why: str = ""  # why the last try failed

    @property
    def about(self) -> str:
        return f"the notification of its {self.word}"

    @property
    def key(self) -> tuple[int, str]:
        """Which fact goes to which target."""
        return self.seq, self.target


@dataclass(frozen=True, slots=True)
class State:
    """The content of the file."""

    store: str = ""
    seq: int = 0
    waiting: tuple[Message, ...] = ()
    lost: tuple[Message, ...] = ()

    def with_news(self, seq: int, messages: Sequence[Message]) -> State:
        """Adds messages at the end. If too many wait, the oldest are lost."""
        queue = (*self.waiting, *messages)
        overflow = [
            replace(message, why="too many messages are waiting")
            for message in queue[:-MOST_WAITING]
        ]
        lost_messages = (*self.lost, *overflow)[-MOST_LOST:]
        return replace(self, seq=seq, waiting=queue[-MOST_WAITING:], lost=lost_messages)

    def after_success(self, batch: Sequence[Message]) -> State:
        """Removes the sent messages. All others for the same target are due at once."""
        target, batch_keys = batch[0].target, {message.key for message in batch}
        queue = [
            replace(message, due=0.0) if message.target == target else message
            for message in self.waiting
            if message.key not in batch_keys
        ]
        return replace(self, waiting=tuple(queue))

    def after_failure(
        self, batch: Sequence[Message], why: str, now: Seconds, backoff: Sequence[Seconds]
    ) -> State:
        """Messages wait longer, or are lost after their last try."""
        batch_keys = {message.key for message in batch}
        queue: list[Message] = []
        lost_messages = list(self.lost)
        for message in self.waiting:
            if message.key not in batch_keys:
                queue.append(message)
                continue
            next_message = replace(message, tries=message.tries + 1, why=why)
            if message.tries < len(backoff):
                queue.append(replace(next_message, due=now + backoff[message.tries]))
            else:
                lost_messages.append(next_message)
        return replace(self, waiting=tuple(queue), lost=tuple(lost_messages[-MOST_LOST:]))

    def notes(self, job: int, now: Seconds) -> list[str]:
        """A line for each message about a job that was not sent, or not yet."""
        lost_notes = [
            f"{message.about} was not sent to {message.target}: {message.why}, given up after"
            f" {message.tries} {'try' if message.tries == 1 else 'tries'}"
            for message in self.lost
            if message.job == job
        ]
        late_notes = [
            f"{message.about} was not sent to {message.target} yet: {message.why}, next try in"
            f" {span(max(message.due - now, 0.0))}"
            for message in self.waiting
            if message.job == job and message.tries
        ]
        return lost_notes + late_notes


def read_state(path: str) -> tuple[State, str]:
    """(the content, why it cannot be read)."""
    try:
        content = wire.read_json(path)
        return (State() if content is None else decoding.convert(content, State)), ""
    except (OSError, ValueError) as error:
        return State(), str(error)


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
        entries = cast("list[Entry]", news)  # of these kinds alone
        live, names = self._view().jobs, {event.job for _, event in entries}
        # as they are now, or as they ended
        jobs = {name: live[name] for name in names if name in live}
        jobs |= {job.id: job for job in self._journal.history(ids=sorted(names - live.keys()))}
        is_early = False
        for place, (number, event) in enumerate(entries):
            if event.job not in jobs and self._now() - event.at < YOUNG:
                seq, entries, is_early = number - 1, entries[:place], True
                break
        is_full = len(news) >= READ_AT_ONCE
        return Page(seq, _messages(entries, jobs), is_full=is_full, is_early=is_early)

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


def _messages(entries: Sequence[Entry], jobs: Mapping[JobId, Job]) -> list[Message]:
    """One message for each target that wants to know a fact."""
    messages: dict[tuple[int, str, str, int], Message] = {}
    for seq, event in entries:
        job = jobs.get(event.job)
        if job is None:
            continue
        word = announcement.word_of(event, job)
        if not announcement.is_wanted(word, event, job):  # nor is a fact without a word
            continue
        line = event_text.event_line(event)
        # every server of an attempt reports its start
        fact = event.attempt if isinstance(event, facts.Started) else seq
        for target in job.spec.notify:
            messages.setdefault(
                (job.id, target, word, fact), Message(seq, event.at, job.id, target, word, line)
            )
    return list(messages.values())
