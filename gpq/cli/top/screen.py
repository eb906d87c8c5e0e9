"""The terminal of `gpq top`: a full screen with curses, which sends only changes. Handles keys and
size, and restores the terminal at the end.

Owns the terminal and its signals. Knows nothing of what is drawn.
"""

from __future__ import annotations

import contextlib
import curses
import locale
import os
import select
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Any

from gpq.errors import GpqError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.style import Style

MOST_PAIRS = 256  # of colours
OWN_COLOURS = (-1, -1)  # default colour on default background
MOST_EMPTY_READS = 50  # in a row although input was ready: the terminal is gone
SIGNALS = (signal.SIGWINCH, signal.SIGTERM, signal.SIGTSTP)
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


class Screen:
    """Open inside its `with` block. One thread draws and reads. Any thread may call `wake`."""

    def __init__(self, console: Console, *, colour: bool) -> None:
        """`console` only renders. It never writes."""
        self._console = console
        self._colour = colour
        self._signals: list[int] = []  # signals that arrived, in order
        self._previous_handlers: dict[int, Any] = {}
        self._empty_reads = 0
        self.unicode = False
        self.width, self.height = 80, 24

    def __enter__(self) -> Screen:
        """Raises GpqError if there is no description of the terminal."""
        self.unicode = _unicode()
        _describe()
        self._wake_reader, self._wake_writer = os.pipe()
        for end in (self._wake_reader, self._wake_writer):
            os.set_blocking(end, False)
        for number in SIGNALS:
            self._previous_handlers[number] = signal.signal(
                number, lambda number, _: self._signals.append(number)
            )
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        self._window = curses.initscr()
        try:
            for setting in (curses.noecho, curses.cbreak, lambda: curses.curs_set(0)):
                with contextlib.suppress(curses.error):
                    # a terminal that cannot hide its cursor shows it
                    setting()
            self._keyboard = Keyboard()
            self._palette = Palette(colour=self._colour)
            self._measure()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the terminal. If a SIGTERM came, obey it now."""
        with contextlib.suppress(curses.error):
            curses.endwin()
        signal.set_wakeup_fd(-1)
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        reader, writer, self._wake_writer = self._wake_reader, self._wake_writer, -1
        for end in (writer, reader):
            os.close(end)
        if signal.SIGTERM in self._signals:
            os.kill(os.getpid(), signal.SIGTERM)

    def wake(self) -> None:
        """End a waiting `key`."""
        with contextlib.suppress(OSError):  # full, so it wakes anyway, or closed, so nobody waits
            os.write(self._wake_writer, b"\0")

    def paint(self, head: RenderableType, body: RenderableType, foot: RenderableType) -> None:
        """Draw the first line, the last line, and the part between. Only changes are sent."""
        self._window.erase()
        self._draw(head, 0, 1)
        self._draw(body, 1, self.height - 2)
        self._draw(foot, self.height - 1, 1)
        self._window.noutrefresh()
        curses.doupdate()

    def _draw(self, picture: RenderableType, top: int, lines: int) -> None:
        """Draw at most `lines` lines from the line `top` on."""
        from rich.cells import cell_len, set_cell_size

        options = self._console.options.update(width=self.width, height=max(lines, 1))
        encoding = options.encoding = "utf-8" if self.unicode else "ascii"
        for row, line in enumerate(
            self._console.render_lines(picture, options, pad=False)[: max(lines, 0)], top
        ):
            column = 0
            for segment in line:
                text = segment.text.encode(encoding, "backslashreplace").decode(encoding)
                size = cell_len(text)
                if column + size > self.width:
                    text = set_cell_size(text, self.width - column)
                if text:
                    with contextlib.suppress(curses.error):
                        # the last cell is drawn, but the cursor cannot move on
                        self._window.addstr(
                            row, column, text, self._palette.attribute(segment.style)
                        )
                column += size
                if column >= self.width:
                    break

    def key(self, seconds: float) -> str:
        """A character or the name of a key. "" after `seconds` or when another thread wakes it.
        "gone" without a terminal and after SIGTERM."""
        key = self._keyboard.read()
        if key:
            return key
        readable, _, _ = select.select(
            [self._wake_reader, *([0] if self._keyboard.attached else [])], [], [], seconds
        )
        if self._wake_reader in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_reader, 4096)
        if signal.SIGTERM in self._signals:
            return "gone"
        while self._signals:
            if self._signals.pop(0) == signal.SIGTSTP:
                self._suspend()
            self._measure()
            self.redraw()
        key = self._keyboard.read()
        if 0 in readable and not key:
            self._empty_reads += 1
            return "gone" if self._empty_reads > MOST_EMPTY_READS else ""
        self._empty_reads = 0
        return key

    def redraw(self) -> None:
        """Send the next picture completely, because another program wrote on the terminal."""
        self._window.clearok(True)

    def _suspend(self) -> None:
        """On Ctrl-Z, give the terminal back to the shell. After `fg`, draw everything again."""
        curses.endwin()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, lambda number, _: self._signals.append(number))
        curses.reset_prog_mode()
        with contextlib.suppress(curses.error):
            curses.curs_set(0)

    def _measure(self) -> None:
        """Read the size of the terminal, or COLUMNS and LINES if it has none."""
        try:
            size = os.get_terminal_size(sys.__stdout__.fileno())  # type: ignore[union-attr]
        except OSError:
            size = os.terminal_size((0, 0))
        if not (size.columns and size.lines):
            size = shutil.get_terminal_size((80, 24))
        self.width, self.height = max(size.columns, 2), max(size.lines, 2)
        curses.resizeterm(self.height, self.width)


def _unicode() -> bool:
    """Can the terminal show more than ASCII, according to the locale? Also works if Python uses
    UTF-8 in the C locale."""
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" and hasattr(
        curses.window, "get_wch"
    )
    if is_utf8 and locale.nl_langinfo(locale.CODESET).upper() != "UTF-8":
        try:
            locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
        except locale.Error:
            return False
    return is_utf8


def _describe() -> None:
    """Treat an unknown terminal as an xterm, because nearly all are. Raises GpqError."""
    for name in (os.environ.get("TERM", ""), "xterm-256color", "xterm", "vt100"):
        try:
            curses.setupterm(name or "unknown", sys.__stdout__.fileno())  # type: ignore[union-attr]
        except curses.error:
            continue
        if curses.tigetstr("cup"):
            os.environ["TERM"] = name
            return
    raise GpqError(
        f"this machine does not know the terminal `{os.environ.get('TERM', '')}`",
        "use `gpq top --once`, or set TERM",
    )


class Palette:
    """Turns styles of rich into attributes of curses, with the colours of the terminal. Without
    colours, the rest of a style stays."""

    def __init__(self, *, colour: bool) -> None:
        self._attributes: dict[Style, int] = {}
        self._pairs: dict[tuple[int, int], int] = {}
        self._colour = colour and curses.has_colors()
        if self._colour:
            curses.start_color()
            curses.use_default_colors()

    def attribute(self, style: Style | None) -> int:
        if style is None:
            return curses.A_NORMAL
        if style in self._attributes:
            return self._attributes[style]
        attributes = curses.A_NORMAL
        for is_set, attribute in (
            (style.bold, curses.A_BOLD),
            (style.dim, curses.A_DIM),
            (style.reverse, curses.A_REVERSE),
            (style.underline, curses.A_UNDERLINE),
        ):
            if is_set:
                attributes |= attribute
        if self._colour:
            pair = (_number(style.color), _number(style.bgcolor))
            if pair != OWN_COLOURS:
                attributes |= self._pair(pair)
        self._attributes[style] = attributes
        return attributes

    def _pair(self, pair: tuple[int, int]) -> int:
        """A pair of colours for curses, or the default colours if curses has no more pairs."""
        if pair not in self._pairs:
            number = len(self._pairs) + 1
            if number >= min(curses.COLOR_PAIRS, MOST_PAIRS):
                return curses.A_NORMAL
            # the plain colour for a bright one, if the terminal has only eight
            foreground, background = (
                colour if colour < curses.COLORS else colour % 8 for colour in pair
            )
            curses.init_pair(number, foreground, background)
            self._pairs[pair] = number
        return curses.color_pair(self._pairs[pair])


def _number(colour: Any) -> int:
    """The number of the colour among sixteen. -1: the default colour."""
    from rich.color import ColorSystem

    if colour is None:
        return -1
    number = colour.downgrade(ColorSystem.STANDARD).number
    return -1 if number is None else int(number)


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
            if isinstance(next_key, int):  # let the next read return it
                curses.ungetch(next_key)
            elif next_key:
                curses.unget_wch(next_key)
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
