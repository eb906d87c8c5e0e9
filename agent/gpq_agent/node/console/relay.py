"""One connection of `gpq run` to a job on this server: sends the output that is in the attempt's
log, and passes other frames between the client and the console.

    python -m gpq_agent.node --spool DIR --attach 42.1

It needs no console to send what a job has printed, so an end of the job loses nothing.
"""

import argparse
import contextlib
import os
import select
import socket
import sys
import threading
import time
from typing import Iterator, NoReturn, Optional, Tuple

from gpq_agent import wire
from gpq_agent.node.console.console import ERR, OUT, RECORD
from gpq_agent.node.host import logs, procs
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool import shapes
from gpq_agent.node.spool.spool import Spool, own_path

CHUNK = 1 << 16  # bytes
PAUSE = 0.05  # seconds between two looks for the console


def main() -> NoReturn:
    """With the arguments of the agent (node/main.py), and `--attach`. Does not return."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--spool", "--checkpoints", "--attach"):
        parser.add_argument(name, default="")
    options, _ = parser.parse_known_args()
    sink = os.dup(1)
    os.dup2(2, 1)  # a stray print must not get into the stream
    code = 0
    try:
        place = Spool(own_path(options.spool), own_path(options.checkpoints))
        if enter(place, options.attach):
            Relay(sink).run()
        else:
            line = "the files of attempt {} are gone".format(options.attach)
            procs.write_all(sink, wire.frame(wire.REFUSED, line.encode("ascii", "replace")))
    except (EOFError, BrokenPipeError):
        pass  # the client is gone
    except (SpoolError, wire.NotPrivate, OSError, ValueError) as error:
        sys.stderr.write("{}\n".format(error))
        sys.stderr.flush()
        code = 1
    os._exit(code)  # a thread may still wait for the client


def enter(place: Spool, key: str) -> bool:
    """Make the attempt's folder the current one, wherever it moves to from now on. False if there
    is none."""
    for _ in range(2):  # it may move between the two steps
        with contextlib.suppress(FileNotFoundError):
            os.chdir(place.folder(key))
            return True
    return False


class Printed:
    """What the attempt of this folder has printed after byte `offset` of its log, by stream. Of
    what is there first, the last `most` bytes."""

    def __init__(self, offset: int, most: int) -> None:
        self._offset, self._most = offset, most
        self._stream = ERR  # until the first record. What comes before is gpq's own
        self._records, self._read_to = b"", 0  # that are read, and where the next ones begin
        self._next: Optional[Tuple[int, int]] = None

    def frames(self) -> Iterator[bytes]:
        """What is there now. May be called again when there is more. Raises OSError."""
        _, _, size = logs.tail(wire.LOG, 0, 0)
        if size - self._offset > self._most:
            yield wire.frame(wire.SKIPPED, wire.COUNT.pack(size - self._most - self._offset))
            self._offset = size - self._most
        self._most = wire.EVERYTHING
        while True:
            data, skipped, offset, _ = logs.kept_tail(wire.LOG, self._offset, CHUNK)
            if skipped:
                yield wire.frame(wire.SKIPPED, wire.COUNT.pack(skipped))
            yield from self._by_stream(data, offset - len(data))
            self._offset = offset
            if not data:
                return

    def _by_stream(self, data: bytes, offset: int) -> Iterator[bytes]:
        while data:
            self._advance(offset)
            size = len(data) if self._next is None else self._next[0] - offset
            kind = wire.STDOUT if self._stream == OUT else wire.STDERR
            yield wire.frame(kind, data[:size])
            data, offset = data[size:], offset + size

    def _advance(self, offset: int) -> None:
        """Go to the last record at or before `offset`."""
        while True:
            if self._next is None:
                self._next = self._record()
            if self._next is None or self._next[0] > offset:
                return
            self._stream = self._next[1]
            self._next = None

    def _record(self) -> Optional[Tuple[int, int]]:
        """The next record, if there is one."""
        size = RECORD.size
        if not self._records:
            data, skipped, end, _ = logs.kept_tail(wire.STREAMS, self._read_to, CHUNK)
            start = end - len(data)
            if skipped:  # a hole may begin and end within a record
                data, start = data[-start % size :], start + -start % size
            self._records = data[: len(data) // size * size]
            self._read_to = start + len(self._records)
        if not self._records:
            return None
        offset, stream = RECORD.unpack_from(self._records)
        self._records = self._records[size:]
        return offset, stream


class Relay:
    """Of the attempt of this folder. The client is on stdin and `sink`. Raises EOFError and
    BrokenPipeError when it is gone or has to connect again."""

    def __init__(self, sink: int) -> None:
        self._sink = sink
        self._console: Optional[socket.socket] = None
        self._boot = procs.boot_id()

    def run(self) -> None:
        """Returns when the client has all of the output."""
        kind, hello = wire.read_frame(_from_client)
        if kind != wire.HELLO:
            raise ValueError("a connection begins with HELLO: install the same gpq on both ends")
        greeting = wire.greeting(hello)
        printed = Printed(greeting.offset, greeting.most)
        threading.Thread(target=self._pass_on, daemon=True).start()
        while True:
            if self._console is None:
                self._connect(hello)
            has_ended = self._console is None and self._has_ended()  # before the last look
            for frame in printed.frames():
                procs.write_all(self._sink, frame)
            if has_ended:
                if _is_removed():
                    raise ValueError("the files of this attempt are gone")
                procs.write_all(self._sink, wire.frame(wire.OVER))
                return
            self._hear()

    def _has_ended(self) -> bool:
        """Has the console ended? Nobody else writes to the log."""
        if os.path.lexists(wire.EXIT) or _is_removed():
            return True
        first = shapes.statement(".", wire.STARTED)
        return first is not None and not procs.lives(first, self._boot)

    def _connect(self, hello: bytes) -> None:
        """Connect to the console, if it listens yet."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(wire.CONSOLE)
            connection.sendall(wire.frame(wire.HELLO, hello))
        except OSError:
            connection.close()
            return
        self._console = connection

    def _hear(self) -> None:
        """Wait for news of the console, and pass them on."""
        if self._console is None:
            time.sleep(PAUSE)
            return
        try:
            kind, body = wire.read_frame(self._console.recv)
            while kind == wire.STATE and select.select([self._console], [], [], 0)[0]:
                kind, body = wire.read_frame(self._console.recv)
        except (EOFError, OSError):
            self._lose()
            return
        procs.write_all(self._sink, wire.frame(kind, body))
        if kind == wire.REPLACED:
            raise EOFError

    def _lose(self) -> None:
        """The console has ended, or it has taken another connection instead of this one. Then the
        client may have frames on the way that nobody got, so it must begin anew."""
        self._console = None
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(wire.CONSOLE)
            raise EOFError

    def _pass_on(self) -> None:
        """Frames of the client, in a thread of its own: a signal must pass while output waits. The
        end of the client ends this process."""
        with contextlib.suppress(EOFError, OSError, ValueError):
            while True:
                kind, body = wire.read_frame(_from_client)
                if self._console is not None:
                    with contextlib.suppress(OSError):  # the console has ended
                        self._console.sendall(wire.frame(kind, body))
        os._exit(0)


def _is_removed() -> bool:
    """Is the folder of the attempt gone?"""
    return not os.stat(".").st_nlink


def _from_client(size: int) -> bytes:
    return os.read(0, size)
