"""This terminal while it is that of a program elsewhere: each key goes there as it is, and the
program's output moves the cursor."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Callable
from contextlib import suppress

DETACH = b"\x1d"  # Ctrl-]
# What a program that runs on may have switched on: another screen, mouse, bracketed paste, a hidden
# cursor, colours
UNDO = b"\x1b[?47l\x1b[?1000;1002;1003;1006;2004l\x1b[?25h\x1b[m"


def is_whole() -> bool:
    """Are stdin, stdout and stderr a terminal?"""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream is not None and stream.isatty() for stream in streams)


class RawTerminal:
    """As a context: when it ends, the terminal is as it was before. After an error, the program
    may run on, so what that has done with the terminal is undone."""

    def __init__(self) -> None:
        self._before = termios.tcgetattr(0)
        self._is_raw = False

    def __enter__(self) -> RawTerminal:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        with suppress(OSError, termios.error):  # it is gone
            if error is not None and self._is_raw:
                os.write(1, UNDO + b"\r\n")
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def begin(self) -> None:
        """From here on, keys go through. What was typed before does, too."""
        if not self._is_raw:
            self._is_raw = True
            with suppress(termios.error):
                tty.setraw(0, termios.TCSADRAIN)

    def note(self, show: Callable[[str], None], line: str) -> None:
        """Show a line in the middle of what the program prints."""
        with suppress(OSError):
            os.write(2, b"\r\n")
            show(line)
            os.write(2, b"\r")

    def size(self) -> tuple[int, int]:
        """(rows, columns)."""
        with suppress(OSError):
            columns, rows = os.get_terminal_size(0)
            return rows, columns
        return 24, 80
