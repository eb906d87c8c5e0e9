"""What `gpq top` does to a job: cancel, hold, release, another priority; and the sentence about
what came of it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from gpq.client.connection import Lasting
from gpq.errors import GpqError
from gpq.rpc import job_answers, requests
from gpq.rpc.job_answers import JobView
from gpq.rpc.requests import Request
from gpq.views.queue import ENDED

TOLD = 10.0  # seconds that a remark stays if no key is pressed
LEAST = 1.0  # seconds that it stays at least
# with what makes a sentence of the answer
Order = tuple[Request, type[msgspec.Struct], Callable[[Any], str]]


class Deeds:
    """Asked for by one thread, carried out by another, one after the other."""

    def __init__(self, done: Callable[[], None]) -> None:
        """`done` hears of each answer, in the other thread."""
        self._said = ("", 0.0, 0.0)  # when, and until when; seconds, monotonic
        self._saying = threading.Lock()  # both threads do
        self._given = 0  # counted by the thread that asks
        self._answered = 0  # by the other one
        self._done = done
        self._priorities: dict[int, int] = {}  # that were asked for and may not be seen yet
        self._queue: queue.SimpleQueue[Order] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="deeds", daemon=True).start()

    def cancel(self, job: JobView) -> None:
        self._give(requests.Cancel([str(job.id)], wait=0.0), job_answers.CancelResult, _cancelled)
        self.say(_being_cancelled(job.id))

    def hold(self, job: JobView) -> None:
        """Or release it, if it is held."""
        if job.state == "held":
            self._give(
                requests.Release([str(job.id)]),
                job_answers.Changed,
                lambda said: _changed(said, "released"),
            )
        else:
            self._give(
                requests.Hold([str(job.id)]),
                job_answers.Changed,
                lambda said: _changed(said, "is to be held"),
            )

    def prioritise(self, job: JobView, by: int) -> None:
        to = self._priorities[job.id] = self._priorities.get(job.id, job.priority) + by
        request = requests.Edit([str(job.id)], {"priority": to})
        self._give(request, job_answers.Changed, lambda said: _changed(said, f"has priority {to}"))

    def seen(self, jobs: Iterable[JobView]) -> None:
        """An answer came that shows what was done."""
        if self._given == self._answered:
            self._priorities.clear()
        told = self.said()
        for job in jobs if told else ():
            if job.state in ENDED and told == _being_cancelled(job.id):
                self.say(f"job {job.id} {job.state}")

    def finish(self, seconds: float) -> None:
        """Wait so long for what was asked for last: who leaves at once meant it all the same."""
        until = time.monotonic() + seconds
        while self._given != self._answered and time.monotonic() < until:
            time.sleep(0.01)

    def say(self, text: str) -> None:
        with self._saying:
            now = time.monotonic()
            self._said = (text, now, now + TOLD)

    def read(self) -> None:
        """A key was pressed: what was told before it may go, unless it came only just now."""
        with self._saying:
            text, at, until = self._said
            self._said = (text, at, min(until, max(at + LEAST, time.monotonic())))

    def said(self) -> str:
        """What was told last, while it is to be seen."""
        text, _, until = self._said
        return text if time.monotonic() < until else ""

    def _give(self, *order: Any) -> None:
        self._given += 1
        self._queue.put(order)

    def _run(self) -> None:
        with Lasting(lambda text: None, quiet=True) as daemon:
            while True:
                request, kind, told = self._queue.get()
                try:
                    said = told(daemon.call(request, kind))
                except GpqError as error:
                    daemon.close()
                    said = sentence(error)
                self.say(said)
                self._answered += 1
                self._done()


def sentence(error: GpqError) -> str:
    """What is so, then what to do."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


def _cancelled(said: job_answers.CancelResult) -> str:
    for job, why in said.waiting.items():
        return f"job {job}: the order waits for its server ({why})"
    for job, nodes in said.given_up.items():
        return (
            f"job {job} given up: nothing is known of its processes on {', '.join(nodes)}, taken"
            " out of gpq"
        )
    if said.remaining:
        return _being_cancelled(said.remaining[0])
    return (
        f"job {said.cancelled[0]} cancelled: no process is left"
        if said.cancelled
        else "it had ended: nothing to cancel"
    )


def _being_cancelled(job: int) -> str:
    return f"job {job} is being cancelled"


def _changed(said: job_answers.Changed, what: str) -> str:
    if said.messages:
        return said.messages[0]
    if said.jobs:
        return "; ".join([f"job {said.jobs[0]} {what}", *said.warnings])
    return "; ".join(said.unchanged) or "nothing changed"
