"""A terminal for one gpq process, and what it shows (drawn by pyte). Tests press keys and wait for pictures."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

from tests.support.waiting import state

PATIENCE = 60.0


class Picture(pyte.Screen):
    """Adds what pyte lacks: REP, SU and SD, and moving the cursor cancels a pending line wrap."""

    last = " "

    def draw(self, data: str) -> None:
        self.last = data[-1:] or self.last
        super().draw(data)

    def repeat_last(self, count: int = 1) -> None:
        self.draw(self.last * (count or 1))

    def scroll_up(self, count: int = 1) -> None:
        self._at_the_top(self.delete_lines, count)

    def scroll_down(self, count: int = 1) -> None:
        self._at_the_top(self.insert_lines, count)

    def cursor_to_line(self, line: int | None = None) -> None:
        self.cursor.x = min(self.cursor.x, self.columns - 1)
        super().cursor_to_line(line)

    def cursor_up(self, count: int | None = None) -> None:
        self.cursor.x = min(self.cursor.x, self.columns - 1)
        super().cursor_up(count)

    def cursor_down(self, count: int | None = None) -> None:
        self.cursor.x = min(self.cursor.x, self.columns - 1)
        super().cursor_down(count)

    def _at_the_top(self, shift: Callable[[int], None], count: int) -> None:
        x, y = self.cursor.x, self.cursor.y
        self.cursor.y = self.margins.top if self.margins is not None else 0
        shift(count or 1)
        self.cursor.x, self.cursor.y = x, y


PIECES_SECONDS = 0.05  # longest pause between two pieces of a picture while the program still draws
RESTLESS_SECONDS = 10.0  # longest wait for a picture that never settles


class Stream(pyte.ByteStream):
    csi = {**pyte.ByteStream.csi, "b": "repeat_last", "S": "scroll_up", "T": "scroll_down"}  # noqa: RUF012
    events = pyte.ByteStream.events | {"repeat_last", "scroll_up", "scroll_down"}


class Terminal:
    """gpq in the foreground of a new session, as from a login shell."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *argv: str,
        columns: int = 80,
        lines: int = 24,
        shell: bool | Sequence[str] = False,
    ) -> None:
        """`shell`: run a shell with job control instead, into which the test types the command. A list is the shell's
        command line."""
        self.picture = Picture(columns, lines)
        self.written = b""
        self._stream = Stream(self.picture)
        self._ended: int | None = None
        self.pid, self._ours = pty.fork()
        self.before = termios.tcgetattr(self._ours) if self.pid else []
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            started = [sys.executable, "-m", "gpq", *argv]
            command = list(shell) if not isinstance(shell, bool) else ["/bin/sh", "-i"] if shell else started
            os.execve(command[0], command, dict(environment))

    def pump(self, seconds: float = 0.05) -> bool:
        """Take in new output. Returns False when nobody can write any more."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self._ours, 65536)
        except OSError:  # EIO: the other end is closed
            return False
        self.written += piece
        self._stream.feed(piece)
        return bool(piece)

    @property
    def rows(self) -> list[str]:
        return [line.rstrip() for line in self.picture.display]

    @property
    def text(self) -> str:
        return "\n".join(self.rows)

    def until(self, seen: Callable[[Terminal], object], what: str = "") -> None:
        deadline = time.monotonic() + PATIENCE
        while not seen(self):
            alive = self.pump() and time.monotonic() < deadline
            assert alive or seen(self), f"never seen: {what}\n{self.text}"
        self._take_in_the_rest()

    def _take_in_the_rest(self) -> None:
        """A picture comes in several pieces, and the awaited line may be in the first one. The picture is complete when
        no more arrives and the program that draws it sleeps. A program that is only delayed does not sleep."""
        end = time.monotonic() + RESTLESS_SECONDS
        while time.monotonic() < end:
            if not select.select([self._ours], [], [], PIECES_SECONDS)[0]:
                if self._sleeps():
                    return
            elif not self.pump():
                return

    def _sleeps(self) -> bool:
        """Does every thread of the foreground process wait for something?"""
        with contextlib.suppress(OSError):  # the process or one of its threads has ended
            threads = Path(f"/proc/{os.tcgetpgrp(self._ours)}/task").iterdir()
            return all(state(thread / "stat") not in "RD" for thread in threads)
        return True

    def shows(self, *words: str) -> None:
        """Wait until all these words are visible."""
        self.until(lambda terminal: all(word in terminal.text for word in words), ", ".join(words))

    def shows_no_more(self, word: str) -> None:
        self.until(lambda terminal: word not in terminal.text, f"no {word}")

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        self.picture.resize(lines, columns)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def modes(self) -> Sequence[object]:
        """The settings of the terminal, such as cooked or raw mode."""
        return termios.tcgetattr(self._ours)

    def row(self, word: str) -> str:
        """The first row that contains the word, or "" if there is none yet."""
        return next((row for row in self.rows if word in row), "")

    def highlighted(self) -> list[str]:
        """The rows in reverse video, such as the row with the cursor."""
        buffer = self.picture.buffer
        return [row for y, row in enumerate(self.rows) if any(buffer[y][x].reverse for x in range(2, 10))]

    def end(self) -> int:
        """Waits until the process ends by itself. Returns its exit status, which is negative for a signal."""
        deadline = time.monotonic() + PATIENCE
        while self._ended is None:
            self.pump()
            assert time.monotonic() < deadline, f"the process does not end\n{self.text}"
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended = os.waitstatus_to_exitcode(status)
        while self.pump(0.0) and select.select([self._ours], [], [], 0.0)[0]:
            pass
        return self._ended

    @property
    def after(self) -> Sequence[object]:
        return self.modes()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ended is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._ours)


def stopped(pid: int) -> bool:
    """Has Ctrl-Z stopped the process?"""
    return state(Path(f"/proc/{pid}/stat")) == "T"
