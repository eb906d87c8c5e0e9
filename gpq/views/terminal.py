"""Makes the output of a job safe for a terminal: colours (SGR) pass, and every other control code
is shown as text."""

from __future__ import annotations

import codecs
import re

from gpq.views.plain import safe

SGR = re.compile(r"\x1b\[[0-9;:]*m")
PART = re.compile(r"(\x1b\[[0-9;:]*m|\r?\n|\r|\t)")
OPEN = re.compile(r"(?:\x1b(?:\[[0-9;:]{0,32})?|\r)\Z")  # may become an SGR code or a line end
LONGEST_STATE = 1 << 16  # bytes of an unfinished line that `LastStates` keeps
ERASE = "\r\x1b[K"  # for a progress bar, so that nothing of the older text stays visible
SHOWN = {"\n": "\n", "\r\n": "\n", "\r": ERASE, "\t": "\t"}


class Filter:
    """Filters one stream of bytes, which may be cut anywhere."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._open_text = ""

    def feed(self, data: bytes) -> str:
        """The text of `data` that is complete. An unfinished code at the end comes with the next
        piece."""
        text = self._open_text + self._decoder.decode(data)
        tail = OPEN.search(text)
        self._open_text = tail.group() if tail else ""
        return "".join(map(self._show, PART.split(text[: len(text) - len(self._open_text)])))

    @staticmethod
    def _show(part: str) -> str:
        if SGR.fullmatch(part):
            return part
        return SHOWN.get(part) or safe(part)


class LastStates:
    """Leaves out what a later part of the same line overwrites, as a progress bar does. For one
    stream of bytes, which may be cut anywhere."""

    def __init__(self) -> None:
        self._open_line = b""
        self._began = False  # has `rest` given the beginning of the line?

    def feed(self, data: bytes) -> bytes:
        """The lines that end in `data`. `rest` has the one that does not."""
        first, *later_lines = (self._open_line + data).split(b"\n")
        state = _last_state(first)
        if self._began and state != first:
            state = b"\r" + state  # over what was given
        self._began = self._began and not later_lines
        *lines, self._open_line = [state, *map(_last_state, later_lines)]
        complete = b"".join(line + b"\n" for line in lines)
        return complete + self.rest() if len(self._open_line) > LONGEST_STATE else complete

    def rest(self) -> bytes:
        """The unfinished line so far, without what an earlier call gave."""
        line, self._open_line = self._open_line, b""
        self._began = self._began or bool(line)
        return line


def _last_state(line: bytes) -> bytes:
    return line[line.rstrip(b"\r").rfind(b"\r") + 1 :]
