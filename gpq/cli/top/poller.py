"""A thread that asks the daemon again and again for `gpq top`, so that no key waits: the last
answer is there at any moment."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from gpq.client.connection import Lasting
from gpq.errors import GpqError, UsageError
from gpq.options.query import is_query
from gpq.rpc import daemon_answers, requests

T = TypeVar("T")
V = TypeVar("V", bound=daemon_answers.TopView)
IDLE = 4.0  # times as long as an answer took: an asker lets the daemon work for others


def parse_filter(text: str) -> tuple[list[str], list[str]]:
    """Selectors and conditions of a filter. Raises UsageError."""
    try:
        words = shlex.split(text)
    except ValueError:
        raise UsageError(
            f"`{text[:80]}`: a quote is not closed", "press / to change the filter"
        ) from None
    query = [word for word in words if is_query(word)]
    return [word for word in words if word not in query], [shlex.quote(word) for word in query]


def look(daemon: Lasting, text: str, kind: type[V]) -> V:
    """What there is of the jobs that a filter asks for."""
    jobs, query = parse_filter(text)
    return daemon.call(requests.Top(jobs, query), kind)


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """The last answer, when it came (seconds, monotonic), when the next is asked for, and what is
    the matter since."""

    answer: T | None = None
    at: float = 0.0
    pause: float = 0.0
    problem: GpqError | None = None


class Feed(Generic[T]):
    """Asks `look` again every `interval` seconds until it is closed; `news` hears of each answer,
    in the feed's thread."""

    def __init__(
        self,
        look: Callable[[Lasting], T],
        interval: float,
        news: Callable[[], None],
        first: T | None = None,
    ) -> None:
        self.last_look: Seen[T] = Seen(first, time.monotonic(), interval)
        # a mistake of ours in the thread, for the main one to raise
        self.broken: BaseException | None = None
        self._look = look
        self._interval = interval
        self._news = news
        self._hurry = threading.Event()
        self._closed = False
        self._waits_first = first is not None
        threading.Thread(target=self._run, name="feed", daemon=True).start()

    def now(self) -> None:
        """Ask at once."""
        self._hurry.set()

    def close(self) -> None:
        """Ask no more; an answer that is under way is not waited for."""
        self._closed = True
        self._hurry.set()

    def _run(self) -> None:
        try:
            with Lasting(lambda text: None, quiet=True) as daemon:  # the picture tells of it itself
                if self._waits_first:
                    self._pause(self._interval)
                while not self._closed:
                    start = time.monotonic()
                    pause = self._ask(daemon, start)
                    self._news()
                    self._pause(pause)
        except BaseException as error:  # a thread's traceback would only tear the picture
            self.broken = error
            self._news()

    def _ask(self, daemon: Lasting, start: float) -> float:
        """For how long to ask no more."""
        try:
            answer = self._look(daemon)
        except GpqError as error:
            daemon.close()  # what it may still say belongs to another question
            self.last_look = replace(self.last_look, problem=error)
            return self._interval
        now = time.monotonic()
        pause = max(self._interval, IDLE * (now - start))
        self.last_look = Seen(answer, now, pause)
        return pause

    def _pause(self, seconds: float) -> None:
        self._hurry.wait(seconds)
        self._hurry.clear()
