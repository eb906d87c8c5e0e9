"""`gpq top` on a terminal: what each key does, and which picture is shown. Draws with `views`,
polls with `poller`, and never blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from rich.console import RenderableType
from rich.text import Text

from gpq.cli.top.open_job import OpenJob
from gpq.cli.top.poller import Deeds, Feed, look, parse_filter, sentence
from gpq.cli.top.screen import Screen
from gpq.client import team
from gpq.client.connection import Lasting
from gpq.errors import GpqError, NotFound, UsageError
from gpq.rpc.daemon_answers import TopLook, TopView
from gpq.rpc.job_answers import JobView
from gpq.rpc.team_messages import Look
from gpq.views import team as team_view
from gpq.views import top, top_tables
from gpq.views.queue import ENDED
from gpq.views.utilisation import Past

PARTING_SECONDS = 5.0  # seconds to wait for the last action at the end
LATE_SECONDS = 3.0  # seconds of delay before gpq says that an answer is late
REFUSED = (UsageError, NotFound)  # a bad filter: go back to the one before
SCROLLS = ("up", "down", "pageup", "pagedown", "home", "end")
FAR = 1 << 30


class Browser:
    """One session of `gpq top`. `run` returns when it ends."""

    def __init__(self, screen: Screen, first: TopView, filter: str, interval: float) -> None:
        self._screen = screen
        self._interval = interval
        self._list = JobList(filter)
        self._good_filter = filter  # the last filter that the daemon accepted
        self._feed: Feed[tuple[str, TopView]] = Feed(
            self._ask, interval, screen.wake, (filter, first)
        )
        self._deeds = Deeds(self._ask_now)
        self._samples = Past()
        self._open_job: OpenJob | None = None
        self._mode = "list"  # or "job", "servers", "help"
        self._previous_mode = "list"  # the mode that the help returns to
        self._scroll = 0
        self._draft: str | None = None  # a filter that the user is typing
        self._cancel_candidate: JobView | None = None  # a job that waits for the y to cancel it
        self._answer_time = 0.0  # time of the last answer
        self._problem: GpqError | None = None  # the last problem
        higher = partial(self._on_job, partial(self._deeds.prioritise, step=1))
        lower = partial(self._on_job, partial(self._deeds.prioritise, step=-1))
        self._keys: dict[str, Callable[[], None]] = {
            "c": self._cancel, "h": partial(self._on_job, self._deeds.hold), "+": higher,
            "=": higher, "-": lower, "?": partial(self._show, "help"), "redraw": screen.redraw,
        }  # fmt: skip
        self._list_keys: dict[str, Callable[[], None]] = {
            "enter": partial(self._on_job, self._open), "/": self._edit_filter,
            "esc": partial(self._filter, ""), "s": partial(self._list.sort, 1),
            "right": partial(self._list.sort, 1), "S": partial(self._list.sort, -1),
            "left": partial(self._list.sort, -1), "r": self._list.reverse,
            "n": partial(self._show, "servers"),
        }  # fmt: skip

    def run(self) -> None:
        try:
            while True:
                self._take_in()
                width, height = self._screen.width, self._screen.height
                body, keys = self._picture(width, height - 2)
                self._screen.paint(self._head(width), body, self._foot(keys, width))
                key = self._screen.key(1.0)
                if key == "gone" or (key and not self._press(key)):
                    return
        finally:
            self._feed.close()
            self._close()
            self._deeds.finish(PARTING_SECONDS)

    def _ask(self, daemon: Lasting) -> tuple[str, TopView]:
        filter = self._list.filter
        return filter, look(daemon, filter, TopLook)

    # -- answers ---------------------------------------------------------------------------------

    def _ask_now(self) -> None:
        """Poll at once after an action. Called from any thread."""
        self._feed.now()
        open_job = self._open_job
        if open_job is not None:
            open_job.feed.now()
        self._screen.wake()

    def _take_in(self) -> None:
        if self._feed.broken is not None:
            raise self._feed.broken
        if self._open_job is not None and self._open_job.feed.broken is not None:
            raise self._open_job.feed.broken
        last_look = self._feed.last_look
        if last_look.problem is not self._problem:
            self._problem = last_look.problem
            if isinstance(self._problem, REFUSED):
                self._deeds.say(sentence(self._problem))
                self._list.restore_filter(self._good_filter)
                self._feed.now()
        if last_look.answer is not None and last_look.at != self._answer_time:
            self._answer_time = last_look.at
            self._good_filter, view = last_look.answer
            self._samples.note(view.nodes, view.jobs, last_look.at)
            self._deeds.note_jobs(view.jobs)
        self._list.take_in(self._view.jobs, self._answer_time)

    @property
    def _view(self) -> TopView:
        answer = self._feed.last_look.answer
        assert answer is not None, "the feed began with one"
        return answer[1]

    # -- keys --------------------------------------------------------------------------------------

    def _press(self, key: str) -> bool:
        """False when it is over."""
        if key != "redraw":
            self._deeds.read()
        if self._mode == "help" and key not in SCROLLS:
            self._mode = self._previous_mode
        elif self._draft is not None:
            self._type(key)
        elif self._cancel_candidate is not None:
            if key in ("y", "Y"):
                self._deeds.cancel(self._cancel_candidate)
            else:
                self._deeds.say("nothing was cancelled")
            self._cancel_candidate = None
        elif key in self._keys:
            self._keys[key]()
        elif self._mode != "list":
            self._in_page(key)
        elif key == "q":
            return False
        elif key in self._list_keys:
            self._list_keys[key]()
        else:
            page = max(self._list.room(self._view, self._screen.height - 2) - 1, 1)
            step = {**_moves(page), "g": -FAR, "G": FAR}.get(key)
            if step is not None:
                self._list.move(step)
        return True

    def _in_page(self, key: str) -> None:
        """A key on the page of a job, of the servers or of the help."""
        if key in ("esc", "q", "left", "backspace"):
            self._mode, self._scroll = "list", 0
            self._close()
        elif key in ("l", "tab") and self._page is not None:
            self._page.turn()
            self._scroll = 0
        else:
            step = _moves(self._screen.height - 4).get(key, 0)
            if self._page is not None and self._page.is_log:
                step = -step
            self._scroll = max(self._scroll + step, 0)

    def _edit_filter(self) -> None:
        self._draft = self._list.filter

    def _type(self, key: str) -> None:
        """Edit the filter, only at its end."""
        draft = self._draft or ""
        if key == "enter":
            self._draft = None
            self._filter(draft.strip())
        elif key == "esc" or (key == "backspace" and not draft):
            self._draft = None
        elif key == "backspace":
            self._draft = draft[:-1]
        elif key == "kill":
            self._draft = ""
        elif len(key) == 1:
            self._draft = draft + key

    def _filter(self, text: str) -> None:
        try:
            parse_filter(text)
        except UsageError as error:
            self._deeds.say(error.message)
            return
        self._list.filter_by(text)
        self._feed.now()

    def _show(self, mode: str) -> None:
        self._previous_mode, self._mode, self._scroll = self._mode, mode, 0

    # -- one job -----------------------------------------------------------------------------------

    @property
    def _page(self) -> OpenJob | None:
        """The open job, unless the help hides it."""
        return self._open_job if self._mode == "job" else None

    def _current_job(self) -> JobView | None:
        """The open job, or the job under the cursor."""
        if self._page is not None:
            return self._page.job
        return self._list.current() if self._mode == "list" else None

    def _on_job(self, act: Callable[[JobView], None]) -> None:
        job = self._current_job()
        if job is not None:
            act(job)

    def _open(self, job: JobView) -> None:
        self._mode, self._scroll = "job", 0
        self._open_job = OpenJob(job, self._interval, self._screen.wake)

    def _close(self) -> None:
        if self._open_job is not None:
            self._open_job.feed.close()
        self._open_job = None

    def _cancel(self) -> None:
        job = self._current_job()
        if job is not None and job.state in ENDED:
            self._deeds.say(f"job {job.id} has already ended ({job.state})")
        else:
            self._cancel_candidate = job

    # -- pictures ----------------------------------------------------------------------------------

    def _picture(self, width: int, height: int) -> tuple[RenderableType, str]:
        """The picture between the first and last line, and the keys for the last line."""
        if self._mode == "help":
            return self._scroll_lines(top.keys(width), height), top.HELP_KEYS
        if self._mode == "servers":
            lines = top_tables.process_lines(self._view.nodes, self._samples, width)
            return self._scroll_lines(lines, height), top.PAGE_KEYS
        if self._page is not None:
            picture, self._scroll = self._page.picture(self._scroll, width, height)
            return picture, top.JOB_KEYS
        picture = self._list.picture(self._view, self._samples, width, height)
        return picture, top.LIST_KEYS

    def _scroll_lines(self, lines: list[Text], height: int) -> RenderableType:
        picture, self._scroll = top.window(lines, self._scroll, height)
        return picture

    def _head(self, width: int) -> Text:
        last_look = self._feed.last_look
        age, problem = time.monotonic() - last_look.at, last_look.problem
        if (
            problem is not None and not isinstance(problem, REFUSED)
        ) or age > last_look.pause + LATE_SECONDS:
            return top.late(age, problem.message if problem is not None else "", width)
        return top.header(self._view, self._list.rows, width, self._good_filter)

    def _foot(self, keys: str, width: int) -> Text:
        if self._draft is not None:
            return top.prompt(self._draft, width)
        if self._cancel_candidate is not None:
            return top.question(self._cancel_candidate, width)
        remark = self._deeds.remark()
        return top.message(remark, width) if remark else top.hints(keys, width)


def _moves(page: int) -> dict[str, int]:
    return {
        "up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page, " ": page,
        "home": -FAR, "end": FAR,
    }  # fmt: skip


def watch_team(screen: Screen, first: Look, interval: float) -> None:
    """`gpq top --team`, until q."""
    feed = Feed(lambda daemon: team.look(), interval, screen.wake, first)
    title = Text(f"team {team.own_team().name}", style="bold")
    scroll, key = 0, ""
    while key not in ("q", "gone"):
        if feed.broken is not None:
            raise feed.broken
        latest, width, height = feed.last_look, screen.width, screen.height - 2
        head, lines = title, map(Text, team_view.page(latest.answer or first, width))
        if latest.problem is not None:
            head = top.late(time.monotonic() - latest.at, latest.problem.message, width)
        body, scroll = top.window(list(lines), scroll, height)
        screen.paint(head, body, top.hints("up/down scroll  q quit", width))
        key = screen.key(1.0)
        scroll = max(scroll + _moves(height).get(key, 0), 0)
    feed.close()


class JobList:
    """The view of the latest jobs."""

    def __init__(self, filter: str) -> None:
        self.rows: list[JobView] = []
        self._look = top_tables.ListView(filter=filter)
        self._order_key: object = None  # what `rows` were made from

    @property
    def filter(self) -> str:
        return self._look.filter

    def filter_by(self, text: str) -> None:
        self._look = replace(self._look, filter=text, first=0)

    def restore_filter(self, text: str) -> None:
        """Go back to the filter whose rows are shown."""
        self._look = replace(self._look, filter=text)

    def take_in(self, jobs: Sequence[JobView], answer_time: float) -> None:
        order_key = (answer_time, self._look.sort, self._look.descending, self._look.filter)
        if order_key == self._order_key:
            return
        position, self._order_key = top.place(self.rows, self._look), order_key
        self.rows = top.in_order(jobs, self._look)
        if self.rows and all(job.id != self._look.selected for job in self.rows):
            self._select(min(position, len(self.rows) - 1))

    def current(self) -> JobView | None:
        """The job under the cursor."""
        return self.rows[top.place(self.rows, self._look)] if self.rows else None

    def move(self, step: int) -> None:
        if self.rows:
            position = top.place(self.rows, self._look) + step
            self._select(min(max(position, 0), len(self.rows) - 1))

    def _select(self, position: int) -> None:
        self._look = replace(self._look, selected=self.rows[position].id)

    def sort(self, step: int) -> None:
        """Sort by the column `step` places to the right."""
        heads = top_tables.heads(self.rows, "top", self._look.sort)
        names = ["", *(head.name for head in heads)]
        index = names.index(self._look.sort) if self._look.sort in names else 0
        self._look = replace(self._look, sort=names[(index + step) % len(names)], first=0)

    def reverse(self) -> None:
        column = self._look.sort or "id"
        self._look = replace(self._look, sort=column, descending=not self._look.descending)

    def room(self, view: TopView, height: int) -> int:
        """Number of visible rows."""
        return top.room_for_jobs(view, len(self.rows), height)

    def picture(self, view: TopView, samples: Past, width: int, height: int) -> RenderableType:
        first = top.first_row(self.rows, self._look, self.room(view, height))
        self._look = replace(self._look, first=first)
        return top.picture(view, self.rows, self._look, samples, width, height)
