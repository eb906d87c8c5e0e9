"""Copies the files of a job, or an archive, to one server: the kernel carries the bytes from the
pipe of one process to the pipe of another. The connections to the agents do not see them.

After a cut it starts again, and the server then asks only for the files that it does not have
whole. The server verifies everything with SHA-256 before it counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from gpq_agent import wire

from gpq.connectors.local import Channel
from gpq.core.feasibility.checkpoints import Staging
from gpq.core.model.actions import Launch
from gpq.core.model.units import Seconds
from gpq.errors import GpqError, NodeSilent

MOST_AT_ONCE = 1 << 20  # bytes
MOST_LINE = 4 << 20  # bytes
LONGEST_WORDS = 1000  # characters of an error
LOOK: Seconds = 0.2  # between two checks whether anybody still wants it
PAUSE: Seconds = 0.5  # between two tries to connect
GIVE_UP: Seconds = 60.0  # of silence, after which the caller decides what to do
LONG_WORK: Seconds = 3600.0  # to list or to sync everything, without a word meanwhile

# Opens a process on a server, and calls its argument meanwhile. Raises NodeSilent, GpqError
Open = Callable[[Callable[[], None]], Channel]


class Abandoned(Exception):
    """Nobody wants it any more."""


@dataclass
class Gauge:
    """How far a transfer is. Written by its thread, read by any."""

    progress: int = 0  # bytes on the server
    total: int = 0
    moved: int = 0  # bytes that this transfer really sent
    seconds: Seconds = 0.0  # seconds that this took
    note: str = ""  # what it waits for

    @property
    def rate(self) -> float:
        """Bytes per second, 0 while that is not known."""
        if self.seconds <= 0:
            return 0.0
        return self.moved / self.seconds


@dataclass
class Task:
    """What is on its way for one attempt that is about to start. Written by the threads of its
    attempt, read by any."""

    launch: Launch
    began: Seconds
    state: str = "running"  # "running", "done", "failed"
    what: str = ""  # what is copied, and from where
    note: str = ""  # what it waits for before there are transfers
    gauges: list[Gauge] = field(default_factory=list)

    def progress(self) -> Staging | None:
        """None in its first moment, when it is not yet known what it is."""
        if not self.what:
            return None
        gauges = list(self.gauges)
        notes = (gauge.note for gauge in gauges)
        return Staging(
            self.what,
            sum(gauge.progress for gauge in gauges),
            sum(gauge.total for gauge in gauges),
            sum(gauge.rate for gauge in gauges),
            next(filter(None, notes), self.note),
        )


class Transfer:
    """`source` and `target` open the two processes, unless `is_there` says that there is nothing to
    do. `turn` is held while they run. `is_wanted` is called now and then."""

    def __init__(
        self,
        source: Open,
        target: Open,
        turn: Callable[[], contextlib.AbstractContextManager[None]],
        is_there: Callable[[], bool],
        is_wanted: Callable[[], bool],
        gauge: Gauge,
    ) -> None:
        self._source = source
        self._target = target
        self._turn = turn
        self._is_there = is_there
        self._is_wanted = is_wanted
        self.gauge = gauge
        self._earlier = 0, 0.0  # bytes and seconds before this try
        self._began = 0.0  # the content of this try, after the listing

    def run(self) -> None:
        """Returns when everything is there. Raises Abandoned, NodeSilent if one end was silent for
        GIVE_UP seconds, GpqError if it is impossible."""
        cut_at: Seconds | None = None
        while True:
            before = self.gauge.progress
            try:
                with self._turn():
                    if not self._is_there():
                        self._once()
                return
            except NodeSilent as error:
                now = time.monotonic()
                if cut_at is None or self.gauge.progress > before:
                    cut_at = now
                self.gauge.note = f"interrupted: {error.message}"
                if now - cut_at > GIVE_UP:
                    raise
            self._check()
            time.sleep(PAUSE)

    def _once(self) -> None:
        with contextlib.ExitStack() as stack:

            def enter(end: Open) -> Channel:
                channel = end(self._check)
                stack.callback(channel.close)
                stack.callback(channel.reader.close)  # first, because the process may be writing
                return channel

            with ThreadPoolExecutor(2, "staging-connect") as pool:  # both at the same time
                source, target = pool.submit(enter, self._source), pool.submit(enter, self._target)
            self._pump(source.result(), target.result())

    def _pump(self, source: Channel, target: Channel) -> None:
        """Carry bytes there and lines back, until the target says that everything is there."""
        inlet, outlet, answers = (
            end.fileno() for end in (source.reader, target.writer, target.reader)
        )
        for pipe in (inlet, outlet):
            with contextlib.suppress(OSError):  # fewer turns, if the kernel allows that much
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, MOST_AT_ONCE)
        news, room = select.poll(), select.poll()
        news.register(inlet, select.POLLIN)
        news.register(answers, select.POLLIN)
        room.register(outlet, select.POLLOUT)
        text, self._earlier = b"", (self.gauge.moved, self.gauge.seconds)
        self._began, self.gauge.note = time.monotonic(), ""
        heard_at = self._began
        while time.monotonic() - heard_at < LONG_WORK:
            self._check()
            ready = [descriptor for descriptor, _ in news.poll(LOOK * 1000)]
            self.gauge.seconds = self._earlier[1] + time.monotonic() - self._began
            if answers in ready:
                data = os.read(answers, MOST_AT_ONCE)
                if len(text) > MOST_LINE:
                    raise GpqError("a server sent a line that is too long", "try again")
                if not data:
                    raise NodeSilent(source.last_words() or target.last_words() or "it was cut")
                *lines, text = (text + data).split(b"\n")
                heard_at = time.monotonic()
                if any(self._hear(line, source) for line in lines):
                    return
            elif inlet in ready and room.poll(LOOK * 1000):
                moved = 0
                with contextlib.suppress(BrokenPipeError):
                    moved = os.splice(inlet, outlet, MOST_AT_ONCE)
                if not moved:  # one end is gone
                    news.unregister(inlet)
                    target.writer.close()
                heard_at = time.monotonic()
                self.gauge.moved += moved
        raise NodeSilent(f"a server said nothing for {LONG_WORK:.0f} s")

    def _hear(self, line: bytes, source: Channel) -> bool:
        """Is it all there?"""
        try:
            message = wire.decode(line)
            if "error" in message:
                raise GpqError(_words(message["error"]), _words(message.get("hint", "")))
            if "missing" in message:
                self.gauge.moved, self._began = self._earlier[0], time.monotonic()
                rest = memoryview(line + b"\n")
                while rest:
                    rest = rest[source.writer.write(rest) :]
            if "done" in message:
                self.gauge.progress = _bytes(message["done"])
                self.gauge.total = _bytes(message["total"]) or self.gauge.total
            return bool(message.get("ok"))
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise GpqError(
                f"a server said something invalid: {error!r:.200}", "try again"
            ) from None
        except OSError as error:
            raise NodeSilent(source.last_words() or str(error)) from None

    def _check(self) -> None:
        if not self._is_wanted():
            raise Abandoned


def _bytes(value: Any) -> int:
    return min(max(int(value), 0), 1 << 53)


def _words(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode("utf-8")[:LONGEST_WORDS]
