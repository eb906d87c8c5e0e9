"""Writes the notification for one message, or for several to the same target. Adds the end of the
log."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

from gpq.core.model.events import Launched
from gpq.core.model.jobs import Job
from gpq.core.model.units import JobId, Seconds
from gpq.daemon.notifications import announcement, redaction
from gpq.daemon.notifications.announcement import Notification
from gpq.daemon.notifications.journal import JournalReader
from gpq.daemon.notifications.outbox import Message
from gpq.daemon.service.logs import Tail
from gpq.errors import GpqError

END_OF_LOG = 16 << 10  # bytes to read


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
        jobs = {
            name: job
            for message in batch
            if (job := self._reader.job(name := JobId(message.job))) is not None
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

    def _log(self, job: Job, message: Message) -> tuple[list[str], str]:
        """The end of the attempt's log, or why there is none."""
        if message.word not in announcement.WITH_LOG or not self._lines:
            return [], ""
        launch = self._reader.launch(job.id, message.at)
        if launch is None:
            return [], ""
        try:
            text = self._end_of_log(launch)
        except (GpqError, ValueError, KeyError, TypeError) as error:
            return [], f"Cannot read its log now: {error}"
        return redaction.last_lines(text, self._lines, job.spec.env), ""

    def _end_of_log(self, launch: Launched) -> str:
        """Whole lines, from the attempt's first server."""
        node = launch.placement.parts[0][0]
        size = int(self._tail(node, launch.job, launch.attempt, 0, 1)["size"])
        begin = max(size - END_OF_LOG, 0)
        piece = self._tail(node, launch.job, launch.attempt, begin, END_OF_LOG)
        text = base64.b64decode(piece["data"]).decode("utf-8", "replace")
        if begin > 0:  # the first line is cut
            return text.partition("\n")[2]
        return text
