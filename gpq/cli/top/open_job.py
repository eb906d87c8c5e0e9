"""The open job in `gpq top`, and its page, which is polled while it is open: `gpq show`, `gpq why`,
and the new part of its log."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from gpq.cli.top.poller import Feed
from gpq.client.connection import Lasting
from gpq.errors import DaemonUnreachable, GpqError
from gpq.rpc import job_answers, requests
from gpq.rpc.job_answers import JobView
from gpq.views import job_page, top
from gpq.views.job_page import PARTS, Page
from gpq.views.terminal import ERASE, Filter

LOG_LINES = 2000  # lines of a log that are kept
TAIL = 64 << 10  # bytes before the end at which reading begins
LONGEST = 8192  # characters of a line
MOST_PIECES = 16  # pieces of a log that are read before the next picture

FOLLOW_SECONDS = 1.0  # the longest time between two reads of a log


class OpenJob:
    def __init__(self, job: JobView, interval: float, wake: Callable[[], None]) -> None:
        """The polling thread calls `wake` after each answer."""
        self.feed: Feed[Page] = Feed(PageFeed(job.id), min(interval, FOLLOW_SECONDS), wake)
        self._row = job  # the job as in the list
        self._part = 0  # index in `PARTS`

    @property
    def job(self) -> JobView:
        """The job as in the last answer."""
        page = self.feed.last_look.answer
        return page.detail.job if page is not None else self._row

    @property
    def is_log(self) -> bool:
        """Is only the log shown? It scrolls from its end."""
        return PARTS[self._part] == "log"

    def turn(self) -> None:
        """Show the next part."""
        self._part = (self._part + 1) % len(PARTS)

    def picture(self, scroll: int, width: int, height: int) -> tuple[RenderableType, int]:
        """The picture, and how far it is really scrolled."""
        last_look = self.feed.last_look
        if last_look.problem is not None and last_look.problem.message:
            title = top.message(last_look.problem.message, width)
        else:
            title = job_page.head(self.job, width)
        if last_look.answer is None:
            return top.stack([title, Text("asking the daemon")]), scroll
        body, scroll = job_page.picture(
            last_look.answer, PARTS[self._part], scroll, width, height - 1
        )
        return Group(title, body), scroll


class PageFeed:
    """Answers the page of one job when called with a connection. For one thread."""

    def __init__(self, job: int) -> None:
        self._job = str(job)
        self._log = Log()

    def __call__(self, daemon: Lasting) -> Page:
        detail = daemon.call(requests.Show(self._job), job_answers.JobDetail)
        why = daemon.call(requests.Why(self._job), job_answers.Explanation)
        self._log.read(daemon, self._job, detail.job.attempt)
        return Page(detail, why, tuple(self._log.lines), self._log.about)


class Log:
    """The end of the log of the latest attempt, on its first server."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=LOG_LINES)
        self.about = ""
        self._attempt = 0
        self._offset = -1  # negative: nothing was read yet
        self._filter = Filter()
        self._open_line = ""  # the last line, until it ends

    def read(self, daemon: Lasting, job: str, attempt: int) -> None:
        """Read everything new. `about` says why the log cannot be read, because the rest of the
        page is still useful."""
        if attempt != self._attempt:
            self._attempt, self._offset, self._filter = attempt, -1, Filter()
            if self.lines:
                self._write(("\n" if self._open_line else "") + f"--- attempt {attempt} ---\n")
        if not attempt:
            self.about = "it has not started yet"
            return
        try:
            for _ in range(MOST_PIECES):
                if not self._piece(daemon, job):
                    return
        except DaemonUnreachable:
            raise
        except GpqError as error:
            self.about = error.message

    def _piece(self, daemon: Lasting, job: str) -> bool:
        first = self._offset < 0
        request = requests.Logs(
            job, self._attempt, offset=max(self._offset, 0), tail=TAIL if first else 0
        )
        chunk = daemon.call(request, job_answers.LogChunk)
        self.about = chunk.silent or f"attempt {chunk.attempt} on {chunk.node}"
        if chunk.silent:
            return False
        data = base64.b64decode(chunk.data)
        if first and chunk.offset > len(data):  # the piece begins in the middle of a line
            data = data.partition(b"\n")[2]
        if chunk.skipped:
            self._write(
                ("\n" if self._open_line else "") + "--- left out: the log exceeded its limit ---\n"
            )
        self._offset = chunk.offset
        self._write(self._filter.feed(data))
        return bool(chunk.data)

    def _write(self, text: str) -> None:
        if self._open_line:
            self.lines.pop()
        *complete_lines, self._open_line = (self._open_line + text).split("\n")
        self.lines.extend(_visible_text(line) for line in complete_lines)
        if len(self._open_line) > LONGEST:
            self._open_line = _visible_text(self._open_line)
        if self._open_line:
            self.lines.append(_visible_text(self._open_line))


def _visible_text(line: str) -> str:
    """What a terminal shows of a line, where a progress bar overwrites itself."""
    parts = [part for part in line.split(ERASE) if part]
    return parts[-1][:LONGEST] if parts else ""
