"""The open job in `gpq top`, and its page, which is polled while it is open."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from gpq.cli.top.job_poller import PageFeed
from gpq.cli.top.poller import Feed
from gpq.rpc.job_answers import JobView
from gpq.views.top import job_page, status_bar
from gpq.views.top.job_page import PARTS, Page

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
            title = status_bar.told(last_look.problem.message, width)
        else:
            title = job_page.head(self.job, width)
        if last_look.answer is None:
            return status_bar.stacked([title, Text("asking the daemon")]), scroll
        body, scroll = job_page.picture(
            last_look.answer, PARTS[self._part], scroll, width, height - 1
        )
        return Group(title, body), scroll
