"""Tells people what became of their jobs: what is told follows from the journal, who was told
stands in a file of its own.

Level, not edge: what the journal holds behind `seq` and what is waiting is sent, at least once,
also after a restart. A target is served by one thread, and a message by one process at a time, so a
dead one delays no other, and nobody else at all. After the last try a message is lost, which `gpq
show` tells.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from gpq.control import event_text
from gpq.core.model import events as facts
from gpq.core.model.jobs import Job
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.daemon.notifications import announcement, outbox, redaction
from gpq.daemon.notifications.outbox import Message, State
from gpq.daemon.service.logs import Tail
from gpq.errors import GpqError
from gpq.notify.worker_pool import Courier

# between the tries; after the last it is lost
BACKOFF: tuple[Seconds, ...] = (10.0, 60.0, 300.0, 1800.0, 7200.0)
MOST_AT_ONCE = 8  # targets
ONE_BY_ONE = 3  # messages to one target; more at once are one message
MOST_WAITING, MOST_LOST = 5000, 200
READ_AT_ONCE = 500  # events
KEPT_EVERY = 10_000  # events without news, after which `seq` is written all the same
PAUSE: Seconds = 0.3  # between two looks at the journal
LONGEST_PAUSE: Seconds = 60.0
LAST_WORDS: Seconds = 2.0  # at the end of the daemon
YOUNG: Seconds = 60.0  # a fact about a job that is not known yet
END_OF_LOG = 16 << 10  # bytes that are looked at

log = logging.getLogger(__name__)


class Journal(Protocol):
    """What is needed of the store."""

    id: str

    def news(
        self, after: int, kinds: Sequence[type], limit: int
    ) -> tuple[int, list[tuple[int, facts.Event]]]: ...
    def history(self, *, ids: Sequence[JobId] | None = None) -> list[Job]: ...
    def events(
        self, *, job: JobId | None = None, kinds: Sequence[type] = ()
    ) -> list[facts.Event]: ...


class Notifier:
    """`start`, then `close`. `notes` may be asked from any thread."""

    def __init__(
        self,
        journal: Journal,
        view: Callable[[], Snapshot],
        changed: threading.Condition,
        tail: Tail,
        now: Callable[[], Seconds],
        path: str,
        lines: int = 20,
        backoff: Sequence[Seconds] = BACKOFF,
    ) -> None:
        self._journal, self._view, self._changed, self._tail, self._now = (
            journal,
            view,
            changed,
            tail,
            now,
        )
        self._path, self._lines, self._backoff = path, lines, tuple(backoff)
        self._lock = threading.Lock()
        self._busy: dict[str, Courier] = {}  # targets that are being served
        self._state = self._read()
        self._kept = self._state.seq
        self._looked: Snapshot | None = None
        self._closing = threading.Event()
        self._nudged = False  # a target's thread has ended
        self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)

    # -- from any thread ---------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What is being sent now is given up; the next daemon sends it."""
        self._closing.set()
        with self._lock:
            couriers = list(self._busy.values())
        for courier in couriers:
            courier.end()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(LAST_WORDS)

    def notes(self, job: JobId) -> list[str]:
        """What could not be sent about a job, or not yet, a line each."""
        return self._state.notes(job, self._now())

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
                pause = self._serve()
            except Exception:
                log.exception("notifications wait")
                pause = LONGEST_PAUSE
            with self._changed:
                if self._looked is self._view() and not self._nudged and not self._closing.is_set():
                    self._changed.wait(pause)
                self._nudged = False
            self._closing.wait(PAUSE)

    def look(self) -> None:
        """What the journal holds that is new is waiting afterwards, durably."""
        snapshot = self._view()
        while True:
            seq, page = self._journal.news(self._state.seq, announcement.KINDS, READ_AT_ONCE)
            entries = [
                (number, event) for number, event in page if isinstance(event, announcement.KINDS)
            ]
            jobs = self._jobs(entries)
            early_numbers = [
                number
                for number, event in entries
                if event.job not in jobs and self._now() - event.at < YOUNG
            ]
            if early_numbers:  # committed, and not published yet: at the next look
                seq, entries = (
                    early_numbers[0] - 1,
                    [(number, event) for number, event in entries if number < early_numbers[0]],
                )
            news = _wanted(entries, jobs)
            with self._lock:
                queue = (*self._state.waiting, *news)
                overflow = [
                    replace(message, why="too many wait") for message in queue[:-MOST_WAITING]
                ]
                lost_messages = (*self._state.lost, *overflow)[-MOST_LOST:]
                state = replace(
                    self._state, seq=seq, waiting=queue[-MOST_WAITING:], lost=lost_messages
                )
                self._keep(state, write=bool(news) or seq - self._kept >= KEPT_EVERY)
            if len(page) < READ_AT_ONCE or early_numbers or self._closing.is_set():
                break
        self._looked = snapshot if not early_numbers else None

    def _jobs(self, entries: Sequence[tuple[int, announcement.Told]]) -> dict[JobId, Job]:
        """As they are now, or were at their end."""
        live = self._view().jobs
        names = {event.job for _, event in entries}
        ended_jobs = (
            self._journal.history(ids=sorted(names - live.keys())) if names - live.keys() else []
        )
        return {
            **{name: live[name] for name in names if name in live},
            **{job.id: job for job in ended_jobs},
        }

    def _serve(self) -> Seconds:
        """Begin what is due. Seconds until something else will be."""
        now = self._now()
        with self._lock:
            due_targets = dict.fromkeys(
                message.target for message in self._state.waiting if message.due <= now
            )
            for target in due_targets:
                if target not in self._busy and len(self._busy) < MOST_AT_ONCE:
                    self._busy[target] = Courier()
                    name = f"notify {len(self._busy)}"
                    threading.Thread(
                        target=self._send, args=(target, self._busy[target]), name=name, daemon=True
                    ).start()
            delays = [
                message.due - now
                for message in self._state.waiting
                if message.target not in self._busy
            ]
        return min(max(min(delays, default=LONGEST_PAUSE), 0.0), LONGEST_PAUSE)

    # -- a target's thread -------------------------------------------------------------------------

    def _send(self, target: str, courier: Courier) -> None:
        try:
            while not self._closing.is_set():
                now = self._now()
                due_messages = [
                    message
                    for message in self._state.waiting
                    if message.target == target and message.due <= now
                ]
                batch = due_messages[:1] if len(due_messages) <= ONE_BY_ONE else due_messages
                if not batch:
                    break
                letter = self._letter(batch)
                why = (
                    courier.deliver(target, letter.title, letter.body) if letter is not None else ""
                )
                if self._closing.is_set() and why:
                    break
                self._tried(batch, why)
        except Exception:
            if not self._closing.is_set():
                log.exception("a notification waits")
        finally:
            with self._lock:
                self._busy.pop(target, None)
            with self._changed:
                self._nudged = True
                self._changed.notify_all()

    def _tried(self, batch: Sequence[Message], why: str) -> None:
        """Once it was sent, it is forgotten and what waits for the same target is due; else it
        waits longer, or is lost."""
        now, target = self._now(), batch[0].target
        batch_keys = {(message.seq, message.target) for message in batch}
        queue: list[Message] = []
        with self._lock:
            lost_messages = list(self._state.lost)
            for message in self._state.waiting:
                if (message.seq, message.target) not in batch_keys:
                    queue.append(
                        replace(message, due=0.0)
                        if message.target == target and not why
                        else message
                    )
                elif why and message.tries < len(self._backoff):
                    queue.append(
                        replace(
                            message,
                            tries=message.tries + 1,
                            due=now + self._backoff[message.tries],
                            why=why,
                        )
                    )
                elif why:
                    lost_messages.append(replace(message, tries=message.tries + 1, why=why))
            self._keep(
                replace(self._state, waiting=tuple(queue), lost=tuple(lost_messages[-MOST_LOST:])),
                write=True,
            )
        if why:
            log.warning("notification to %s: %s", target, why)

    def _letter(self, batch: Sequence[Message]) -> announcement.Letter | None:
        """None where nothing is known of the jobs any more."""
        jobs = {
            name: job
            for message in batch
            if (job := self._job(name := JobId(message.job))) is not None
        }
        pairs = [(jobs[JobId(message.job)], message) for message in batch if message.job in jobs]
        if not pairs:
            return None
        if len(batch) > 1:
            return announcement.digest(
                [announcement.headline(job, message.word, message.said) for job, message in pairs]
            )
        [(job, message)] = pairs
        lines, note = self._log(job, message)
        return announcement.letter(job, message.word, message.said, lines, note, self._now())

    def _job(self, name: JobId) -> Job | None:
        """An end is in the database before it is published."""
        return next(iter(self._journal.history(ids=[name])), None) or self._view().jobs.get(name)

    def _log(self, job: Job, message: Message) -> tuple[list[str], str]:
        """The end of the log of the attempt that it is about, or why there is none."""
        if message.word not in announcement.WITH_LOG or not self._lines:
            return [], ""
        launches = [
            event
            for event in self._journal.events(job=job.id, kinds=(facts.Launched,))
            if event.at <= message.at
        ]
        if not launches or not isinstance(last := launches[-1], facts.Launched):
            return [], ""
        node = last.placement.parts[0][0]
        try:
            size = int(self._tail(node, job.id, last.attempt, 0, 1)["size"])
            piece = self._tail(node, job.id, last.attempt, max(size - END_OF_LOG, 0), END_OF_LOG)
            text = base64.b64decode(piece["data"]).decode("utf-8", "replace")
        except (GpqError, ValueError, KeyError, TypeError) as error:
            return [], f"Its log cannot be had now: {redaction.plain(str(error))[:200]}"
        # of its first line only a part was read
        whole = text if size <= END_OF_LOG else text.partition("\n")[2]
        return redaction.last_lines(whole, self._lines, job.spec.env), ""

    # -- what is remembered ------------------------------------------------------------------------

    def _read(self) -> State:
        """Of another database, or an older state of it, nothing that happened so far is told
        again."""
        state, why = outbox.read(self._path)
        if why:
            log.warning("%s cannot be read and begins anew: %s", self._path, why)
        last, _ = self._journal.news(1 << 62, announcement.KINDS, 1)
        if state.store != self._journal.id or state.seq > last:
            state = State(self._journal.id, last)
            self._keep(state, write=True)
        return state

    def _keep(self, state: State, *, write: bool) -> None:
        """Remember, then show."""
        try:
            if write:
                outbox.write(self._path, state)
                self._kept = state.seq
        except OSError as error:
            log.warning(
                "%s cannot be written, so a notification may be sent twice: %s", self._path, error
            )
        self._state = state


def _wanted(
    entries: Sequence[tuple[int, announcement.Told]], jobs: Mapping[JobId, Job]
) -> list[Message]:
    messages: dict[tuple[int, str, str, int], Message] = {}
    for seq, event in entries:
        job = jobs.get(event.job)
        word = announcement.word_of(event, job) if job is not None and job.spec.notify else ""
        if job is None or not word or not announcement.is_wanted(word, event, job):
            continue
        line = event_text.event_line(event)
        # all servers of an attempt tell that it runs
        fact = event.attempt if isinstance(event, facts.Started) else seq
        for target in job.spec.notify:
            messages.setdefault(
                (job.id, target, word, fact), Message(seq, event.at, job.id, target, word, line)
            )
    return list(messages.values())
