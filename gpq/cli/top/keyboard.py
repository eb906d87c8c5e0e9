"""The keys of a terminal by name, read with curses."""

from __future__ import annotations

import curses
import sys

ESCAPE_MS = 100  # after which Esc counts as the key and not as the start of another key
LONGEST_CODE = 8  # the most characters that a terminal sends for one key
NAMES = {
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_LEFT: "left",
    curses.KEY_RIGHT: "right",
    curses.KEY_PPAGE: "pageup",
    curses.KEY_NPAGE: "pagedown",
    curses.KEY_HOME: "home",
    curses.KEY_END: "end",
    curses.KEY_ENTER: "enter",
    curses.KEY_BACKSPACE: "backspace",
    "\n": "enter",
    "\r": "enter",
    "\x1b": "esc",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "kill",
    "\x0c": "redraw",
    "\t": "tab",
}
SEQUENCES = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "1~": "home",
    "4~": "end", "5~": "pageup", "6~": "pagedown",
}  # fmt: skip


class Keyboard:
    """The keyboard of an open screen. Never waits."""

    def __init__(self) -> None:
        self.attached = sys.stdin.isatty()
        self._input = curses.newpad(1, 1)  # reading from the window itself would draw it
        self._input.keypad(True)
        self._input.nodelay(True)
        curses.set_escdelay(ESCAPE_MS)

    def read(self) -> str:
        """A character, or the name of a key. "" if there is none."""
        key = self._next()
        if key == "\x1b":
            next_key = self._next()
            if next_key in ("[", "O"):
                return self._sequence()
            if next_key:
                _push_back(next_key)
        if key in NAMES:
            return NAMES[key]
        return key if isinstance(key, str) and key.isprintable() else ""

    def _next(self) -> str | int:
        """A character, or the number of a key. "" if there is none."""
        if not self.attached:
            return ""
        try:
            return self._input.get_wch()
        except curses.error:
            return ""

    def _sequence(self) -> str:
        """The name of a key from its escape sequence, for terminals with a wrong description."""
        code = ""
        while (character := self._next()) and isinstance(character, str):
            if len(code) >= LONGEST_CODE:
                break
            code += character
            if character.isalpha() or character == "~":
                break
        return SEQUENCES.get(code, "")


def _push_back(key: str | int) -> None:
    """Let the next read return it."""
    if isinstance(key, str):
        curses.unget_wch(key)
    else:
        curses.ungetch(key)
