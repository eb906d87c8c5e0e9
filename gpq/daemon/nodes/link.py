"""One connection to an agent: numbered requests out, their replies in, silence noticed. Knows no
job and no order."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any, NoReturn

from gpq_agent import wire

from gpq import pace
from gpq.connectors.local import Channel
from gpq.core.model.units import Seconds

log = logging.getLogger(__name__)

Reply = Mapping[str, Any]
Callback = Callable[[Reply], None]
Send = Callable[[str, Mapping[str, Any], Callback], None]  # as Link.send

NO_ANSWER = "it sends nothing"  # the display shows for how long
MAX_LINE = 12 << 20  # bytes. No agent sends a longer line
MOST_VALUES = 200_000  # on a line, with keys. 4,096 attempts on 2,048 devices have 150,000
NOISE = 64 << 10  # bytes that are no answer, such as login banners, between two answers
CHUNK = 64 << 10  # bytes to read at once. So many of a line are as good a sign of life as an answer
LONGEST_PAUSE: Seconds = 1.0
MOST_PENDING = 16_384  # requests. An agent leaves none open but watches and setups
HALVES = re.compile(rb"\\u[dD][89a-fA-F]")  # escapes of surrogates


class LinkLost(Exception):
    """The connection is gone or silent. Says why in one line."""


class Link:
    """`serve` runs in the reader's thread until the link is lost. `send` may be called from any
    thread."""

    def __init__(self, channel: Channel, name: str) -> None:
        self._channel = channel
        self._name = name
        self._numbers = itertools.count(1)
        self._pending: dict[int, Callback] = {0: lambda _: None}  # the greeting
        self._lock = threading.Lock()
        self._lost = ""
        self._quiet: Seconds = 0.0  # that it waited since the last sign of life
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, name=f"{name}-writer", daemon=True)
        self._writer.start()

    def send(self, op: str, fields: Mapping[str, Any], callback: Callback) -> None:
        """Queue a request. Never blocks. `callback` gets the reply in the reader's thread. If the
        link is lost first, it gets ``{"ok": False, "lost": True, ...}``, at once or later."""
        with self._lock:
            number = next(self._numbers)
            if len(self._pending) > MOST_PENDING and not self._lost:
                self._lost = f"it left {MOST_PENDING:,} requests unanswered"
                self._outbox.put(None)
            reason = self._lost
            if not reason:
                self._pending[number] = callback
        if reason:
            callback(_lost_reply(reason))
            return
        self._outbox.put(wire.encode({"v": wire.VERSION, "id": number, "op": op, **fields}))

    def serve(self, silence: Seconds) -> NoReturn:
        """Read until the link is lost, and raise LinkLost. Without an answer for `silence` seconds
        it counts as lost, whatever else drips in.

        It counts the seconds that it waited for bytes, each wait up to pace.POLL, so a daemon that
        was itself stopped for a while blames nobody.
        """
        noise, is_logged = 0, False
        for line in self._lines(silence):
            message, callback = self._answer(line)
            if callback is not None:
                noise, self._quiet = 0, 0.0
                callback(message)
                continue
            noise += len(line) + 1
            if noise > NOISE:
                raise LinkLost(f"it sent more than {NOISE >> 10} KiB that are no answer")
            if not is_logged:
                is_logged = True
                log.info("%s: noise on the line: %.200r", self._name, line)
        raise LinkLost(self._lost)

    def _answer(self, line: bytes) -> tuple[Reply, Callback | None]:
        """The message on a line, and who waits for it. Raises LinkLost if it breaks a bound."""
        if _values(line) > MOST_VALUES:
            raise LinkLost(f"it sent a line with more than {MOST_VALUES:,} values")
        try:
            message = _decode(line)
        except ValueError:
            return {}, None
        for name, value in message.items():
            if words := wire.excess(name, value):
                raise LinkLost(f"it sent an answer that is too large: {words}")
        number = message.get("id")
        if not isinstance(number, int):
            return message, None
        with self._lock:
            return message, self._pending.pop(number, None)

    def end(self, reason: str) -> None:
        """Ask the link to end, from any thread. The agent sees the end of its input, and `serve`
        sees the agent's end."""
        with self._lock:
            self._lost = self._lost or reason
        self._outbox.put(None)

    def close(self, reason: str) -> None:
        """After `serve`, in its thread: release the agent and answer everybody who still waits."""
        self.end(reason)
        with self._lock:
            callbacks = list(self._pending.values())
            self._pending.clear()
        with contextlib.suppress(OSError):
            self._channel.close()
        for callback in callbacks:
            callback(_lost_reply(reason))

    def _lines(self, silence: Seconds) -> Iterator[bytes]:
        descriptor = self._channel.reader.fileno()
        poller = select.poll()
        poller.register(descriptor, select.POLLIN | select.POLLHUP | select.POLLERR)
        pieces: list[bytes] = []
        size = fresh = 0
        while not self._lost:
            began, work = time.monotonic(), time.thread_time()
            is_ready = poller.poll(pace.POLL * 1000)
            self._quiet += min(time.monotonic() - began, pace.POLL)
            if self._quiet >= silence:
                raise LinkLost(NO_ANSWER)
            if not is_ready:
                continue
            try:
                chunk = os.read(descriptor, CHUNK)
            except OSError as error:
                raise LinkLost(f"cannot read from the agent: {error.strerror}") from None
            if not chunk:
                last_words = self._channel.last_words()
                raise LinkLost(
                    f"the agent ended: {last_words}" if last_words else "the agent ended"
                )
            fresh += len(chunk)
            if fresh >= CHUNK:
                self._quiet, fresh = 0.0, 0
            *lines, tail = chunk.split(b"\n")
            for part in lines:
                yield b"".join([*pieces, part])
                pieces, size = [], 0
            pieces.append(tail)
            size += len(tail)
            if size > MAX_LINE:
                raise LinkLost(f"it sent a line of more than {MAX_LINE >> 20} MiB")
            # a flood slows its own server: half of this thread's time is for all others
            time.sleep(min(time.thread_time() - work, LONGEST_PAUSE))

    def _write(self) -> None:
        try:
            while (line := self._outbox.get()) is not None:
                buffer = memoryview(line)
                while buffer:
                    buffer = buffer[self._channel.writer.write(buffer) :]
            self._channel.writer.close()
        except (OSError, ValueError) as error:
            # ValueError: closed in between. The reader notices the end.
            log.debug("%s: cannot write: %s", self._name, error)


def _decode(line: bytes) -> Reply:
    """Like wire.decode. Halves of surrogate pairs become question marks, because neither the
    database nor a terminal takes them."""
    message = wire.decode(line)
    if HALVES.search(line):
        text = json.dumps(message, ensure_ascii=False)
        del message  # large ones would otherwise be here twice
        message = json.loads(text.encode("utf-8", "replace"))
    return message


def _values(line: bytes) -> int:
    """At most this many values and keys are in the JSON on a line. Text counts only if it must."""
    marks = b",", b"[", b"{"
    if sum(map(line.count, marks)) > MOST_VALUES:
        line = line.replace(b"\\\\", b"").replace(b'\\"', b"")
        if line.count(b'"') > 4 * MOST_VALUES:
            return line.count(b'"')
        line = b"".join(line.split(b'"')[::2])  # without text
    return sum(map(line.count, marks))


def _lost_reply(reason: str) -> Reply:
    return {"ok": False, "lost": True, "error": reason}
