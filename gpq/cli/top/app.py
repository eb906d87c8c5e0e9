"""`gpq top` on a terminal: what each key does, and which picture is shown. Draws with `views`,
polls with `poller`, and never blocks."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import RenderableType
from rich.text import Text

from gpq.cli.top.actions import Deeds, sentence
from gpq.cli.top.job_list import JobList
from gpq.cli.top.open_job import OpenJob
from gpq.cli.top.poller import Feed, look, parse_filter
from gpq.cli.top.screen import Screen
from gpq.client.connection import Lasting
from gpq.errors import GpqError, NotFound, UsageError
from gpq.rpc.daemon_answers import TopLook, TopView
from gpq.rpc.job_answers import JobView
from gpq.views import once, processes, status_bar
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
        self._keys: dict[str, Callable[[], None]] = {
            "c": self._cancel, "h": self._hold, "+": lambda: self._prioritise(1),
            "=": lambda: self._prioritise(1), "-": lambda: self._prioritise(-1), "?": self._help,
            "redraw": screen.redraw,
        }  # fmt: skip
        self._list_keys: dict[str, Callable[[], None]] = {
            "enter": self._open, "/": self._edit_filter, "esc": lambda: self._filter(""),
            "s": lambda: self._list.sort(1), "right": lambda: self._list.sort(1),
            "S": lambda: self._list.sort(-1), "left": lambda: self._list.sort(-1),
            "r": self._list.reverse, "n": self._show_servers,
        }  # fmt: skip

    def run(self) -> None:
        try:
            while True:
                self._take_in()
                width, height = self._screen.width, self._screen.height
                body, keys = self._picture(width, height - 2)
                self._screen.paint(self._head(width), body, self._foot(keys, width))
                key = self._screen.key(1.0)
                if key == "gone" or (key and not self._pressed(key)):
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

    def _pressed(self, key: str) -> bool:
        """False when it is over."""
        if key != "redraw":
            self._deeds.read()
        if self._mode == "help" and key not in SCROLLS:
            self._mode = self._previous_mode
        elif self._draft is not None:
            self._type(key)
        elif self._cancel_candidate is not None:
            self._confirm(key)
        elif key in self._keys:
            self._keys[key]()
        elif self._mode == "list":
            return self._in_list(key)
        else:
            self._in_page(key)
        return True

    def _in_list(self, key: str) -> bool:
        """False when it is over."""
        if key == "q":
            return False
        if key in self._list_keys:
            self._list_keys[key]()
        else:
            self._move(key)
        return True

    def _in_page(self, key: str) -> None:
        """A key on the page of a job, of the servers or of the help."""
        if key in ("esc", "q", "left", "backspace"):
            self._mode, self._scroll = "list", 0
            self._close()
        elif key in ("l", "tab") and self._open_job is not None and self._mode == "job":
            self._open_job.turn()
            self._scroll = 0
        else:
            step = _moves(self._screen.height - 4).get(key, 0)
            if self._open_job is not None and self._mode == "job" and self._open_job.is_log:
                step = -step
            self._scroll = max(self._scroll + step, 0)

    def _show_servers(self) -> None:
        self._mode, self._scroll = "servers", 0

    def _edit_filter(self) -> None:
        self._draft = self._list.filter

    def _move(self, key: str) -> None:
        page = max(self._list.room(self._view, self._screen.height - 2) - 1, 1)
        moves = {**_moves(page), "g": -FAR, "G": FAR}
        if key in moves:
            self._list.move(moves[key])

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

    def _help(self) -> None:
        self._previous_mode, self._mode, self._scroll = self._mode, "help", 0

    # -- one job -----------------------------------------------------------------------------------

    def _current_job(self) -> JobView | None:
        """The open job, or the job under the cursor."""
        if self._mode == "job" and self._open_job is not None:
            return self._open_job.job
        return self._list.current() if self._mode == "list" else None

    def _open(self) -> None:
        job = self._current_job()
        if job is not None:
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

    def _confirm(self, key: str) -> None:
        job, self._cancel_candidate = self._cancel_candidate, None
        if job is None or key not in ("y", "Y"):
            self._deeds.say("nothing was cancelled")
        else:
            self._deeds.cancel(job)

    def _hold(self) -> None:
        if (job := self._current_job()) is not None:
            self._deeds.hold(job)

    def _prioritise(self, step: int) -> None:
        if (job := self._current_job()) is not None:
            self._deeds.prioritise(job, step)

    # -- pictures ----------------------------------------------------------------------------------

    def _picture(self, width: int, height: int) -> tuple[RenderableType, str]:
        """The picture between the first and last line, and the keys for the last line."""
        if self._mode == "help":
            return self._scrolled(status_bar.keys(width), height), status_bar.HELP_KEYS
        if self._mode == "servers":
            lines = processes.lines(self._view.nodes, self._samples, width)
            return self._scrolled(lines, height), status_bar.PAGE_KEYS
        if self._mode == "job" and self._open_job is not None:
            picture, self._scroll = self._open_job.picture(self._scroll, width, height)
            return picture, status_bar.JOB_KEYS
        picture = self._list.picture(self._view, self._samples, width, height)
        return picture, status_bar.LIST_KEYS

    def _scrolled(self, lines: list[Text], height: int) -> RenderableType:
        picture, self._scroll = status_bar.window(lines, self._scroll, height)
        return picture

    def _head(self, width: int) -> Text:
        last_look = self._feed.last_look
        age, problem = time.monotonic() - last_look.at, last_look.problem
        if (
            problem is not None and not isinstance(problem, REFUSED)
        ) or age > last_look.pause + LATE_SECONDS:
            return status_bar.late(age, problem.message if problem is not None else "", width)
        return once.header(self._view, self._list.rows, width, self._good_filter)

    def _foot(self, keys: str, width: int) -> Text:
        if self._draft is not None:
            return status_bar.prompt(self._draft, width)
        if self._cancel_candidate is not None:
            return status_bar.question(self._cancel_candidate, width)
        remark = self._deeds.remark()
        return status_bar.told(remark, width) if remark else status_bar.hints(keys, width)


def _moves(page: int) -> dict[str, int]:
    return {
        "up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page, " ": page,
        "home": -FAR, "end": FAR,
    }  # fmt: skip
