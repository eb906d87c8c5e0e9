"""The job that is open in `gpq top`: its page, which is asked for as long as it is open."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from gpq.cli.top.job_poller import PageFeed
from gpq.cli.top.poller import Feed
from gpq.rpc.job_answers import JobView
from gpq.views.top import job_page, status_bar
from gpq.views.top.job_page import PARTS, Page

FOLLOW_SECONDS = 1.0  # at most, until a log is asked for what it gained


class OpenJob:
    def __init__(self, job: JobView, interval: float, wake: Callable[[], None]) -> None:
        """`wake` hears of each answer, in another thread."""
        self.feed: Feed[Page] = Feed(PageFeed(job.id), min(interval, FOLLOW_SECONDS), wake)
        self._row = job  # as the list had it
        self._part = 0  # which of `PARTS`

    @property
    def job(self) -> JobView:
        """As it was last told."""
        page = self.feed.last_look.answer
        return page.detail.job if page is not None else self._row

    @property
    def is_log(self) -> bool:
        """Is the log alone seen? It is scrolled from its end."""
        return PARTS[self._part] == "log"

    def turn(self) -> None:
        """To the next part."""
        self._part = (self._part + 1) % len(PARTS)

    def picture(self, scroll: int, width: int, height: int) -> tuple[RenderableType, int]:
        """And how far it is scrolled really."""
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
