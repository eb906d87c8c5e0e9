"""A thread that polls the daemon for `gpq top`, so that keys never wait. The last answer is always
available."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from gpq.client.connection import Lasting
from gpq.errors import GpqError, UsageError
from gpq.rpc import daemon_answers, requests
from gpq.views.queue import is_query

T = TypeVar("T")
V = TypeVar("V", bound=daemon_answers.TopView)
# pause this many times as long as an answer took, so that the daemon has time for others
IDLE = 4.0


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
    """The daemon's answer for a filter."""
    jobs, query = parse_filter(text)
    return daemon.call(requests.Top(jobs, query), kind)


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """The last answer, its time (seconds, monotonic), the pause until the next, and the problem
    since."""

    answer: T | None = None
    at: float = 0.0
    pause: float = 0.0
    problem: GpqError | None = None


class Feed(Generic[T]):
    """Calls `look` every `interval` seconds until it is closed. Its thread calls `news` after each
    answer."""

    def __init__(
        self,
        look: Callable[[Lasting], T],
        interval: float,
        news: Callable[[], None],
        first: T | None = None,
    ) -> None:
        self.last_look: Seen[T] = Seen(first, time.monotonic(), interval)
        # a bug in the thread, which the main thread raises
        self.broken: BaseException | None = None
        self._look = look
        self._interval = interval
        self._news = news
        self._hurry = threading.Event()
        self._closed = False
        self._waits_first = first is not None
        threading.Thread(target=self._run, name="feed", daemon=True).start()

    def now(self) -> None:
        """Poll at once."""
        self._hurry.set()

    def close(self) -> None:
        """Stop polling. Does not wait for a pending answer."""
        self._closed = True
        self._hurry.set()

    def _run(self) -> None:
        try:
            # the picture shows problems itself
            with Lasting(lambda text: None, quiet=True) as daemon:
                if self._waits_first:
                    self._pause(self._interval)
                while not self._closed:
                    start = time.monotonic()
                    pause = self._ask(daemon, start)
                    self._news()
                    self._pause(pause)
        except BaseException as error:  # a traceback of a thread would only disturb the picture
            self.broken = error
            self._news()

    def _ask(self, daemon: Lasting, start: float) -> float:
        """Poll once. Returns the pause until the next time."""
        try:
            answer = self._look(daemon)
        except GpqError as error:
            daemon.close()  # a late answer would belong to another question
            self.last_look = replace(self.last_look, problem=error)
            return self._interval
        now = time.monotonic()
        pause = max(self._interval, IDLE * (now - start))
        self.last_look = Seen(answer, now, pause)
        return pause

    def _pause(self, seconds: float) -> None:
        self._hurry.wait(seconds)
        self._hurry.clear()
