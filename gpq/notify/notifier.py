"""Sends notifications about jobs. The journal says what to send, and a separate file remembers what
was sent.

Level, not edge: gpq sends everything in the journal after `seq` and everything that waits, at least
once, even after a restart. Each target has one thread, and each message one process, so a dead
target delays nothing else. After the last try a message is lost, and `gpq show` says so.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict

from gpq_agent import wire

from gpq.core.model.jobs import Job
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.errors import GpqError
from gpq.notify import announcement, journal
from gpq.notify.announcement import Notification
from gpq.notify.journal import Journal, JournalReader, Message, State
from gpq.notify.worker_pool import Courier
from gpq.ports import Tail

END_OF_LOG = 16 << 10  # bytes to read

# between the tries. After the last one the message is lost
BACKOFF: tuple[Seconds, ...] = (10.0, 60.0, 300.0, 1800.0, 7200.0)
MOST_AT_ONCE = 8  # targets
ONE_BY_ONE = 3  # messages to one target. More at once become one message
KEPT_EVERY = 10_000  # events without messages, after which `seq` is written anyway
PAUSE: Seconds = 0.3  # between two looks at the journal
LONGEST_PAUSE: Seconds = 60.0
LAST_WORDS: Seconds = 2.0  # at the end of the daemon

log = logging.getLogger(__name__)


class Notifier:
    """Call `start`, then `close`. Any thread may call `notes`."""

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
        self._journal, self._view, self._changed, self._now = journal, view, changed, now
        self._reader = JournalReader(journal, view, now)
        self._writer = LetterWriter(self._reader, tail, now, lines)
        self._path, self._backoff = path, tuple(backoff)
        self._lock = threading.Lock()
        self._busy: dict[str, Courier] = {}  # targets that are busy
        self._state = self._read()
        self._written_seq = self._state.seq
        self._looked: Snapshot | None = None
        self._closing = threading.Event()
        self._nudged = False  # a target's thread has ended
        self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)

    # -- from any thread ---------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Gives up what is being sent. The next daemon sends it."""
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
        """A line for each message about a job that was not sent, or not yet."""
        return self._state.notes(job, self._now())

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
                pause = self._serve()
            except Exception:
                log.exception("notifications are delayed")
                pause = LONGEST_PAUSE
            with self._changed:
                if self._looked is self._view() and not self._nudged and not self._closing.is_set():
                    self._changed.wait(pause)
                self._nudged = False
            self._closing.wait(PAUSE)

    def look(self) -> None:
        """Adds all new messages from the journal to the queue, durably."""
        snapshot = self._view()
        while True:
            page = self._reader.page(self._state.seq)
            with self._lock:
                is_due = bool(page.messages) or page.seq - self._written_seq >= KEPT_EVERY
                self._keep(self._state.with_news(page.seq, page.messages), write=is_due)
            if not page.is_full or page.is_early or self._closing.is_set():
                break
        self._looked = None if page.is_early else snapshot

    def _serve(self) -> Seconds:
        """Starts to send what is due. Returns the seconds until the next message."""
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
                batch = [
                    message
                    for message in self._state.waiting
                    if message.target == target and message.due <= now
                ]
                if not batch:
                    break
                if len(batch) <= ONE_BY_ONE:  # otherwise all in one
                    del batch[1:]
                letter = self._writer.letter(batch)
                why = ""
                if letter is not None:
                    why = courier.deliver(target, letter.title, letter.body)
                if self._closing.is_set() and why:
                    break
                self._note_try(batch, why)
        except Exception:
            if not self._closing.is_set():
                log.exception("a notification is delayed")
        finally:
            with self._lock:
                self._busy.pop(target, None)
            with self._changed:
                self._nudged = True
                self._changed.notify_all()

    def _note_try(self, batch: Sequence[Message], why: str) -> None:
        """`why`: why it was not sent, "" if it was."""
        now = self._now()
        with self._lock:
            if why:
                state = self._state.after_failure(batch, why, now, self._backoff)
            else:
                state = self._state.after_success(batch)
            self._keep(state, write=True)
        if why:
            log.warning("notification to %s: %s", batch[0].target, why)

    # -- what is remembered ------------------------------------------------------------------------

    def _read(self) -> State:
        """After a new or restored database, gpq sends nothing about the past."""
        state, why = journal.read_state(self._path)
        if why:
            log.warning("cannot read %s, so it starts empty: %s", self._path, why)
        end = self._reader.end()
        if state.store != self._journal.id or state.seq > end:
            state = State(self._journal.id, end)
            self._keep(state, write=True)
        return state

    def _keep(self, state: State, *, write: bool) -> None:
        """Writes first, then publishes."""
        try:
            if write:
                wire.write_json(self._path, asdict(state))
                self._written_seq = state.seq
        except OSError as error:
            log.warning(
                "cannot write %s, so a notification may be sent twice: %s", self._path, error
            )
        self._state = state


class LetterWriter:
    """`lines`: how many of the log to send, at most."""

    def __init__(
        self, reader: JournalReader, tail: Tail, now: Callable[[], Seconds], lines: int
    ) -> None:
        self._reader = reader
        self._tail = tail
        self._now = now
        self._lines = lines

    def letter(self, batch: Sequence[Message]) -> Notification | None:
        """None if the jobs are no longer known."""
        jobs = {name: self._reader.job(name) for name in {JobId(one.job) for one in batch}}
        pairs = [
            (job, message) for message in batch if (job := jobs[JobId(message.job)]) is not None
        ]
        if not pairs:
            return None
        if len(batch) > 1:
            return announcement.digest(
                [announcement.headline(job, message.word, message.said) for job, message in pairs]
            )
        [(job, message)] = pairs
        lines, note = self._log(job, message)
        return announcement.letter(job, message.word, message.said, lines, note, self._now())

    def _log(self, job: Job, message: Message) -> tuple[list[str], str]:
        """The end of the attempt's log, or why there is none."""
        launch = None
        if self._lines and message.word in announcement.WITH_LOG:
            launch = self._reader.launch(job.id, message.at)
        if launch is None:
            return [], ""
        node = launch.placement.parts[0][0]  # the attempt's first server
        try:
            size = int(self._tail(node, launch.job, launch.attempt, 0, 1)["size"])
            begin = max(size - END_OF_LOG, 0)
            piece = self._tail(node, launch.job, launch.attempt, begin, END_OF_LOG)
            text = base64.b64decode(piece["data"]).decode("utf-8", "replace")
        except (GpqError, ValueError, KeyError, TypeError) as error:
            return [], f"Cannot read its log now: {error}"
        if begin > 0:  # the first line is cut
            text = text.partition("\n")[2]
        return announcement.last_lines(text, self._lines, job.spec.env), ""
