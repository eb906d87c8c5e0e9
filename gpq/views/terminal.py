"""Makes the output of a job safe for a terminal: colours (SGR) pass, and every other control code
is shown as text."""

from __future__ import annotations

import codecs
import re

from gpq.views.plain import safe

SGR = re.compile(r"\x1b\[[0-9;:]*m")
PART = re.compile(r"(\x1b\[[0-9;:]*m|\r?\n|\r|\t)")
OPEN = re.compile(r"(?:\x1b(?:\[[0-9;:]{0,32})?|\r)\Z")  # may become an SGR code or a line end
ERASE = "\r\x1b[K"  # for a progress bar, so that nothing of the older text stays visible


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
        if part in ("\n", "\r\n"):
            return "\n"
        if part == "\r":
            return ERASE
        if part == "\t" or SGR.fullmatch(part):
            return part
        return safe(part)
