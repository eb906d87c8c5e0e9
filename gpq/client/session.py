"""The streams of a job of `gpq run`, over connections that may break.

Each connection is a relay on the job's server (gpq_agent.node.console), started as agents are. The
daemon is not in between. After a break, output goes on where it was, because the server keeps it in
the log. Input and signals are kept here until the console has them.

Three threads: one connects and writes the output, one reads stdin, and the caller's waits for
signals.
"""

from __future__ import annotations

import errno
import os
import queue
import secrets
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from gpq_agent import wire

from gpq.client.terminal import DETACH, RawTerminal
from gpq.connectors.local import Channel
from gpq.errors import GpqError, Refused

CHUNK = 1 << 16
LEAST_PAUSE, MOST_PAUSE = 0.1, 5.0  # seconds between two tries to connect
STREAM_OF = {wire.STDOUT: 1, wire.STDERR: 2}

News = int | BaseException | None  # a signal, what ended the session, or None: all is written


class Detached(Exception):
    """Somebody has left the session, and the program runs on."""


class NoWay(GpqError):
    """There is nothing to connect to, and there never will be."""

    code = Refused.code


def is_reader_gone(stream: int, error: OSError) -> bool:
    """Does this error of a write mean that nobody reads any more?"""
    return error.errno == errno.EPIPE or (error.errno == errno.EIO and os.isatty(stream))


class Session:
    """`dial` connects to the job's server. It raises NoWay if that never works again, and another
    GpqError if it does not work now. `signals` gets the numbers of signals to this process. `note`
    shows a line. `most`: bytes to show of what was printed before. `terminal`: this one, if the
    program has one, too. Then a signal leaves the session, and does not go to the program."""

    def __init__(
        self,
        dial: Callable[[], Channel],
        signals: queue.SimpleQueue[News],
        note: Callable[[str], None],
        most: int = wire.EVERYTHING,
        terminal: RawTerminal | None = None,
    ) -> None:
        self.problem = ""  # why some output was not written here
        self._dial = dial
        self._news = signals
        self._note = note if terminal is None else partial(terminal.note, note)
        self._most = most
        self._terminal = terminal
        self._id, self._connections = secrets.token_bytes(16), 0
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._channel: Channel | None = None
        self._is_greeted = False  # by the console, on this connection
        self._printed = 0  # bytes of the log that are written
        self._deaf: set[int] = set()  # streams that nobody reads here any more
        self._signals: list[int] = []  # that the console may not have
        self._obeyed = 0  # signals before these
        self._first: int | None = None  # input that the program had before this session
        self._taken = 0  # bytes of our input that the program has taken
        self._sent = 0  # bytes of it that went over this connection, or were taken
        self._input = b""  # what follows the first `_taken` bytes
        self._is_at_end = self._is_closed = False  # of the input. CLOSE was sent
        self._is_open = True  # the program may read more

    def run(self) -> None:
        """Returns when all that the job printed is written. Raises GpqError, and Detached."""

        def stay_connected() -> None:
            pause, tries = LEAST_PAUSE, 0
            while (problem := self._connect_once()) is not None:
                if self._is_greeted:
                    pause, tries = LEAST_PAUSE, 0
                tries += 1
                if tries == 2:
                    self._note(f"{problem}. Trying again until it works")
                time.sleep(pause)
                pause = min(2 * pause, MOST_PAUSE)

        def follow() -> None:
            end: BaseException | None = None
            try:
                stay_connected()
            except BaseException as error:
                end = error
            self._news.put(end)

        threading.Thread(target=follow, daemon=True).start()
        while True:
            try:
                news = self._news.get(timeout=wire.HEARTBEAT)
            except queue.Empty:
                self._acknowledge()
                continue
            if news is None:
                return
            if isinstance(news, BaseException):
                raise news
            self._pass_on(news)

    def _pass_on(self, number: int) -> None:
        """Send a signal to the program. Raises Detached if that has a terminal."""
        if number == signal.SIGWINCH:
            self._send_size()
            return
        if self._terminal is not None:
            raise Detached
        with self._lock:
            self._signals.append(number)
            if self._is_greeted:
                self._send_signal(len(self._signals) - 1)

    # -- output

    def _connect_once(self) -> str | None:
        """Why the connection could not be made, or broke. None when all is written. Raises NoWay,
        and Refused before the first connection."""
        self._is_greeted = False
        try:
            channel = self._dial()
        except NoWay:
            raise
        except Refused as error:
            if self._first is None:
                raise
            return error.message
        except GpqError as error:
            return error.message
        except OSError as error:
            return f"cannot connect: {error.strerror}"
        try:
            if self._serve(channel):
                return None
            return channel.last_words() or "the connection broke"
        finally:
            with self._lock:
                self._channel = None
            channel.close()

    def _serve(self, channel: Channel) -> bool:
        """Is all written? False: the connection broke. Raises NoWay."""
        self._connections += 1
        greeting = wire.Greeting(
            self._id, self._connections, self._first is not None, self._printed, self._most
        )
        with self._lock:
            self._channel = channel
            self._send(wire.HELLO, greeting.packed())
        while True:
            try:
                kind, body = wire.read_frame(channel.reader.read)
            except (EOFError, OSError, ValueError):
                return False
            if kind == wire.OVER:
                return True
            if kind == wire.REFUSED:
                raise NoWay(body.decode("utf-8", "replace"))
            if kind == wire.REPLACED:
                raise NoWay("another terminal has taken over its streams")
            if kind == wire.STATE:
                self._adjust(*wire.PROGRESS.unpack(body))
            elif kind == wire.SKIPPED:
                [count] = wire.COUNT.unpack(body)
                self._printed += count
                if self._most == wire.EVERYTHING:
                    self._note(f"{count} bytes of output are lost: the log was over its limit")
            elif kind in STREAM_OF:
                self._write(STREAM_OF[kind], body)
                self._printed += len(body)
                self._most = wire.EVERYTHING
                self._acknowledge()

    def _write(self, stream: int, data: bytes) -> None:
        """Raises Detached if the terminal is gone."""
        if stream in self._deaf:
            return
        try:
            while data:
                select.select([], [stream], [])  # the terminal may be set not to block
                with suppress(BlockingIOError):
                    data = data[os.write(stream, data) :]
        except OSError as error:
            if self._terminal is not None:
                raise Detached from None
            if not is_reader_gone(stream, error):
                name = "stdout" if stream == 1 else "stderr"
                self.problem = f"cannot write to {name}: {error.strerror}"
            with self._lock:
                self._deaf.add(stream)
                self._send(wire.DEAF, bytes([stream]))

    def _acknowledge(self) -> None:
        with self._lock:
            self._send(wire.ACK, wire.COUNT.pack(self._printed))

    # -- input

    def _adjust(self, taken: int, obeyed: int, is_open: bool) -> None:
        """The program has taken so many bytes and signals, and may it take more?"""
        with self._lock:
            if self._terminal is not None:
                self._terminal.begin()
            if self._first is None:
                self._first = taken
                threading.Thread(target=self._read_input, daemon=True).start()
            done = taken - self._first
            self._input = self._input[done - self._taken :]
            self._taken = done
            self._signals = self._signals[obeyed - self._obeyed :]
            self._obeyed = obeyed
            if not self._is_greeted:
                self._is_greeted, self._is_closed, self._sent = True, False, done
                self._send_size()
                for stream in self._deaf:
                    self._send(wire.DEAF, bytes([stream]))
                for place in range(len(self._signals)):
                    self._send_signal(place)
            if not is_open:
                self._is_open, self._input = False, b""
            self._push()
            self._room.notify()

    def _read_input(self) -> None:
        while True:
            with self._room:
                self._room.wait_for(lambda: len(self._input) < wire.WINDOW)
            data = b""
            with suppress(OSError):  # it is closed, or a terminal that is gone
                select.select([0], [], [])
                try:
                    data = os.read(0, CHUNK)
                except BlockingIOError:  # another process was faster
                    continue
            if self._terminal is not None and (not data or data.startswith(DETACH)):
                self._news.put(Detached())
                return
            with self._lock:
                if not self._is_open:
                    return
                self._input += data
                self._is_at_end = not data
                self._push()
            if not data:
                return

    def _push(self) -> None:
        """Send what has not been sent on this connection."""
        if not self._is_greeted or not self._is_open:
            return
        data = self._input[self._sent - self._taken :]
        if data:
            self._send(wire.INPUT, data)
            self._sent += len(data)
        if self._is_at_end and not self._is_closed:
            self._is_closed = True
            self._send(wire.CLOSE)

    def _send_size(self) -> None:
        if self._terminal is not None:
            self._send(wire.SIZE, wire.ROWS_COLUMNS.pack(*self._terminal.size()))

    def _send_signal(self, place: int) -> None:
        number = self._signals[place]
        self._send(wire.SIGNAL, wire.NUMBERED.pack(self._obeyed + place, number))

    def _send(self, kind: bytes, body: bytes = b"") -> None:
        """If the connection is broken, the thread that reads notices."""
        with self._lock, suppress(OSError):
            if self._channel is not None:
                data = wire.frame(kind, body)
                while data:
                    data = data[os.write(self._channel.writer.fileno(), data) :]
