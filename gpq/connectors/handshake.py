"""The first words over a fresh pipe to a server: past the noise of login scripts, to the program
that gpq wants.

It reads no byte beyond its last answer, because what follows belongs to that program. It never
blocks for long.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpq import pace
from gpq.errors import GpqError, Refused

NOISE = 64 << 10  # bytes that login scripts may print before
LOOK = 0.25  # seconds between two calls of `waiting`


class Handshake:
    """Raises EOFError if the pipe ends, GpqError if the data is invalid, and whatever `waiting`
    raises."""

    def __init__(self, source: int, sink: int, host: str, waiting: Callable[[], None]) -> None:
        self._source = source
        self._sink = sink
        self._host = host
        self._waiting = waiting
        self._began = time.monotonic()
        self.noise = b""  # output before the server's shell was ready
        self.seconds = 0.0  # until the server's shell was ready
        os.set_blocking(sink, False)

    def expect_shell(self, ready: str) -> None:
        """Skip what login scripts print. The shell then waits for us, so nothing can follow its
        word."""
        heard = b""
        word = ready.encode("ascii") + b"\n"
        while not heard.endswith(word):
            if len(heard) > NOISE:
                raise GpqError(
                    f"{self._host}: the login scripts print more than {NOISE >> 10} KiB",
                    "make .bashrc (.cshrc, config.fish) print nothing in non-interactive shells",
                )
            heard += self._read(1 << 12, pace.LOGIN_PATIENCE)
            self.noise = heard[-NOISE:]
        self.seconds = time.monotonic() - self._began

    def block(self, request: Mapping[str, object], content: bytes | None) -> None:
        self.raw_block(json.dumps(request).encode("utf-8"))
        if content is not None:
            self.raw_block(content)

    def raw_block(self, content: bytes) -> None:
        self.say(b"%08x" % len(content) + content)

    def say(self, data: bytes) -> None:
        buffer = memoryview(data)
        poller = select.poll()
        poller.register(self._sink, select.POLLOUT)
        while buffer:
            self._poll(poller, pace.SHELL_PATIENCE)
            try:
                buffer = buffer[os.write(self._sink, buffer[: 1 << 14]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:  # the answer says why, or there is no answer
                return

    def answer(self, word: str, no_python: str, python: str) -> Mapping[str, Any]:
        """The next line that begins with `word`. Raises GpqError for a refusal."""
        noise = 0
        while noise <= NOISE:
            line = self._line()
            noise += len(line)
            first_word, _, content = line.decode("utf-8", "replace").rstrip("\n").partition(" ")
            if first_word == no_python:
                raise self._no_python(python, content.strip(" ,"))
            if first_word != word:
                continue
            answer: Mapping[str, Any] = json.loads(content)
            if not answer["ok"]:
                raise GpqError(f"{self._host}: {answer['error']}", str(answer.get("hint", "")))
            return answer
        raise GpqError(
            f"{self._host}: Python there prints text when it starts",
            "check sitecustomize and PYTHONSTARTUP",
        )

    def over(self) -> None:
        os.set_blocking(self._sink, True)

    def _no_python(self, python: str, versions: str) -> Refused:
        if python:
            return Refused(
                f"{self._host}: {versions or f'there is no {python}'}, but gpq needs Python 3.8 or"
                " newer",
                "correct `python` of that server",
            )
        return Refused(
            f"{self._host}: no Python 3.8 or newer was found"
            + (f" ({versions})" if versions else ""),
            'install one, or name it: `python = "/path/to/python3"` of that server',
        )

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n") and len(line) <= NOISE:
            line += self._read(1, pace.SHELL_PATIENCE)
        return line

    def _read(self, size: int, patience: float) -> bytes:
        poller = select.poll()
        poller.register(self._source, select.POLLIN)
        self._poll(poller, patience)
        data = os.read(self._source, size)
        if not data:
            raise EOFError
        return data

    def _poll(self, poller: select.poll, patience: float) -> None:
        until = time.monotonic() + patience
        while not poller.poll(LOOK * 1000):
            self._waiting()
            if time.monotonic() > until:
                raise GpqError(
                    f"{self._host}: logged in, but heard nothing for {patience:.0f} s",
                    f"`ssh {self._host} true` must end on its own: a login script may be waiting"
                    " for input",
                )
