"""Threads that talk to the daemon for `gpq top`, so that keys never wait. One polls, and the last
answer is always available. The other acts on jobs, and each action ends in a sentence about the
result.
"""

from __future__ import annotations

import queue
import shlex
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import msgspec

from gpq.client.connection import Lasting
from gpq.errors import GpqError, UsageError
from gpq.rpc import daemon_answers, job_answers, requests
from gpq.rpc.job_answers import JobView
from gpq.rpc.requests import Request
from gpq.views.queue import ENDED, is_query

T = TypeVar("T")
V = TypeVar("V", bound=daemon_answers.TopView)
# pause this many times as long as an answer took, so that the daemon has time for others
IDLE = 4.0
REMARK_SECONDS = 10.0  # seconds that a message stays if no key is pressed
LEAST_SECONDS = 1.0  # seconds that a message stays at least
# with the function that makes a sentence of the answer
Order = tuple[Request, type[msgspec.Struct], Callable[[Any], str]]


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


class Deeds:
    """One thread asks for actions, and another runs them one after the other."""

    def __init__(self, on_answer: Callable[[], None]) -> None:
        """The other thread calls `on_answer` after each answer."""
        self._remark = ("", 0.0, 0.0)  # text, begin and end in seconds (monotonic)
        self._remark_lock = threading.Lock()  # because both threads write the message
        self._order_count = 0  # only the asking thread writes it
        self._answer_count = 0  # only the other thread writes it
        self._on_answer = on_answer
        self._priorities: dict[int, int] = {}  # requested, but perhaps not shown yet
        self._queue: queue.SimpleQueue[Order] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="deeds", daemon=True).start()

    def cancel(self, job: JobView) -> None:
        self._send(
            requests.Cancel([str(job.id)], wait=0.0), job_answers.CancelResult, _cancel_outcome
        )
        self.say(_being_cancelled(job.id))

    def hold(self, job: JobView) -> None:
        """Hold the job, or release it if it is held."""
        request: Request = requests.Hold([str(job.id)])
        outcome = "will be held"
        if job.state == "held":
            request, outcome = requests.Release([str(job.id)]), "released"
        self._send(request, job_answers.Changed, lambda answer: _change_outcome(answer, outcome))

    def prioritise(self, job: JobView, step: int) -> None:
        priority = self._priorities[job.id] = self._priorities.get(job.id, job.priority) + step
        request = requests.Edit([str(job.id)], {"priority": priority})
        self._send(
            request,
            job_answers.Changed,
            lambda answer: _change_outcome(answer, f"has priority {priority}"),
        )

    def note_jobs(self, jobs: Iterable[JobView]) -> None:
        """Take in an answer that shows the result of actions."""
        if self._order_count == self._answer_count:
            self._priorities.clear()
        remark = self.remark()
        for job in jobs:
            if job.state in ENDED and remark == _being_cancelled(job.id):
                self.say(f"job {job.id} {job.state}")

    def finish(self, seconds: float) -> None:
        """Wait up to `seconds` for the last actions, which count even if the user quits at once."""
        until = time.monotonic() + seconds
        while self._order_count != self._answer_count and time.monotonic() < until:
            time.sleep(0.01)

    def say(self, text: str) -> None:
        with self._remark_lock:
            now = time.monotonic()
            self._remark = (text, now, now + REMARK_SECONDS)

    def read(self) -> None:
        """After a key press, let the message go, unless it is new."""
        with self._remark_lock:
            text, at, until = self._remark
            self._remark = (text, at, min(until, max(at + LEAST_SECONDS, time.monotonic())))

    def remark(self) -> str:
        """The current message."""
        text, _, until = self._remark
        return text if time.monotonic() < until else ""

    def _send(self, *order: Any) -> None:
        self._order_count += 1
        self._queue.put(order)

    def _run(self) -> None:
        with Lasting(lambda text: None, quiet=True) as daemon:
            while True:
                request, kind, describe = self._queue.get()
                try:
                    remark = describe(daemon.call(request, kind))
                except GpqError as error:
                    daemon.close()
                    remark = sentence(error)
                self.say(remark)
                self._answer_count += 1
                self._on_answer()


def sentence(error: GpqError) -> str:
    """The message, then the hint."""
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _cancel_outcome(answer: job_answers.CancelResult) -> str:
    for job, why in answer.waiting.items():
        return f"job {job} will be cancelled when its server answers ({why})"
    for job, nodes in answer.given_up.items():
        return (
            f"job {job} given up: gpq does not know whether its processes still run on"
            f" {', '.join(nodes)}, because that server was removed from gpq"
        )
    if answer.remaining:
        return _being_cancelled(answer.remaining[0])
    if answer.cancelled:
        return f"job {answer.cancelled[0]} cancelled: every process is gone"
    return "it had already ended: nothing to cancel"


def _being_cancelled(job: int) -> str:
    return f"job {job} is being cancelled"


def _change_outcome(answer: job_answers.Changed, outcome: str) -> str:
    if answer.messages:
        return answer.messages[0]
    if answer.jobs:
        return ", ".join([f"job {answer.jobs[0]} {outcome}", *answer.warnings])
    return ", ".join(answer.unchanged) or "nothing changed"
