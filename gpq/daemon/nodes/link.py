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
MAX_LINE = 64 << 20  # bytes. No agent sends a longer line
CHUNK = 1 << 16
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
        self._pending: dict[int, Callback] = {}
        self._lock = threading.Lock()
        self._lost = ""
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, name=f"{name}-writer", daemon=True)
        self._writer.start()

    def send(self, op: str, fields: Mapping[str, Any], callback: Callback) -> None:
        """Queue a request. Never blocks. `callback` gets the reply in the reader's thread. If the
        link is lost first, it gets ``{"ok": False, "lost": True, ...}``, at once or later."""
        with self._lock:
            number = next(self._numbers)
            reason = self._lost
            if not reason:
                self._pending[number] = callback
        if reason:
            callback(_lost_reply(reason))
            return
        self._outbox.put(wire.encode({"v": wire.VERSION, "id": number, "op": op, **fields}))

    def serve(self, silence: Seconds) -> NoReturn:
        """Read until the link is lost, and raise LinkLost. Hearing nothing for `silence` seconds
        counts as lost.

        It counts seconds by polls that found nothing, so a daemon that was itself stopped for a
        while blames nobody.
        """
        for line in self._lines(silence):
            try:
                message = _decode(line)
            except ValueError:
                # such as a login banner
                log.info("%s: noise on the line: %.200r", self._name, line)
                continue
            number = message.get("id")
            if not isinstance(number, int):
                continue
            with self._lock:
                callback = self._pending.pop(number, None)
            if callback is not None:  # the greeting has the number 0
                callback(message)
        raise LinkLost(self._lost)

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
        size = missed_polls = 0
        while not self._lost:
            if not poller.poll(pace.POLL * 1000):
                missed_polls += 1
                if missed_polls * pace.POLL >= silence:
                    raise LinkLost(NO_ANSWER)
                continue
            missed_polls = 0
            try:
                chunk = os.read(descriptor, CHUNK)
            except OSError as error:
                raise LinkLost(f"cannot read from the agent: {error.strerror}") from None
            if not chunk:
                last_words = self._channel.last_words()
                raise LinkLost(
                    f"the agent ended: {last_words}" if last_words else "the agent ended"
                )
            *lines, tail = chunk.split(b"\n")
            for part in lines:
                yield b"".join([*pieces, part])
                pieces, size = [], 0
            pieces.append(tail)
            size += len(tail)
            if size > MAX_LINE:
                raise LinkLost("the agent sent a line that is too long")

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
        message = json.loads(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))
    return message


def _lost_reply(reason: str) -> Reply:
    return {"ok": False, "lost": True, "error": reason}
