"""Plain text for terminals of any width: escaping, durations, aligned tables. Imports only what is
cheap.

`safe` is the only place that escapes text from jobs and servers for the terminal.
"""

import os
import sys

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Sequence

COLOURS = {  # of states, as codes of a terminal: 2 is dim, 31 red, 32 green, 33 yellow
    "running": 32,
    "starting": 36,
    "stopping": 36,
    "pending": 33,
    "held": 35,
    "completed": 2,
    "failed": 31,
    "timeout": 31,
    "cancelled": 2,
}


def safe(text: str) -> str:
    r"""`text` with whatever a terminal might obey or hide (C0, C1, ESC, bidi, zero width) in the
    form \x1b or \u202e."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(ord(char)) for char in text)


def _escape(point: int) -> str:
    if point < 0x100:
        return f"\\x{point:02x}"
    if point < 0x10000:
        return f"\\u{point:04x}"
    return f"\\U{point:08x}"


def width(text: str) -> int:
    """The columns that `text`, which is already safe, needs on a terminal."""
    if text.isascii():
        return len(text)
    import unicodedata  # imported only for names outside ASCII

    wide_count = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide_count - sum(unicodedata.combining(char) != 0 for char in text)


def cut(text: str, columns: int, mark: str = "…") -> str:
    """`text` in at most `columns` columns. `mark` stands for the part that is cut."""
    if width(text) <= columns:
        return text
    if columns <= len(mark):
        return mark[:columns]
    prefix = text[: columns - len(mark)]
    while width(prefix) > columns - len(mark):
        prefix = prefix[:-1]
    return prefix + mark


def pad(text: str, columns: int, *, right: bool = False) -> str:
    room = " " * (columns - width(text))
    if right:
        return room + text
    return text + room


def wrap(text: str, limit: int, first: str = "", indent: str = "") -> list[str]:
    """`text` in lines of at most `limit` columns (0: one line). `first` starts the first line, and
    `indent` all others."""
    if not limit or width(first + text) <= limit:
        return [first + text]
    room = max(limit - max(len(first), len(indent)), 8)
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        if line and width(line) + 1 + width(word) > room:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
        while len(line) > room:  # a long path or word
            lines.append(line[:room])
            line = line[room:]
    lines.append(line)
    return [(first if index == 0 else indent) + part for index, part in enumerate(lines)]


def wrap_all(texts: list[str], limit: int, first: str, indent: str) -> list[str]:
    """The lines of several texts, each as `wrap` does it."""
    return [line for text in texts for line in wrap(text, limit, first, indent)]


def duration(seconds: float | None) -> str:
    """At most two units: 42s, 3m10s, 2h05m, 4d03h. "-" if not known."""
    if seconds is None:
        return "-"
    whole_seconds = max(int(seconds), 0)
    if whole_seconds < 60:
        return f"{whole_seconds}s"
    if whole_seconds < 3600:
        return f"{whole_seconds // 60}m{whole_seconds % 60:02d}s"
    if whole_seconds < 86400:
        return f"{whole_seconds // 3600}h{whole_seconds % 3600 // 60:02d}m"
    return f"{whole_seconds // 86400}d{whole_seconds % 86400 // 3600:02d}h"


def moment(stamp: str) -> str:
    """A stamp of the daemon's (UTC, ISO 8601) in local time: ``2026-11-27 18:00:00``."""
    from datetime import datetime  # not needed by `gpq status`

    try:
        at = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    except ValueError:
        return safe(stamp)
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def number(value: float | None, suffix: str = "") -> str:
    """About three digits: 0.052, 1.85, 42.1, 4210. "-" if not known."""
    if value is None:
        return "-"
    size = abs(value)
    bounds = (1000, 10, 1)  # from each bound on, one decimal less
    digits = sum(size < bound for bound in bounds) if size else 2
    return f"{value:.{digits}f}{suffix}"


def terminal_width() -> int:
    """$COLUMNS, or else the width of the terminal. 0 means no limit, as in a pipe."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 0


def wants_colour(choice: str) -> bool:
    """`choice` is --color: always, never or auto. auto means a terminal that is not dumb, and no
    NO_COLOR."""
    if choice != "auto":
        return choice == "always"
    return (
        not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and sys.stdout.isatty()
    )


def drawable(signs: str, ascii_signs: str) -> str:
    """`signs` if the encoding of stdout has them, or else `ascii_signs`."""
    encoding = getattr(sys.stdout, "encoding", None) or ""
    if encoding.lower().replace("-", "") == "utf8":
        return signs
    return ascii_signs


def ellipsis() -> str:
    """The mark for text that was cut."""
    return drawable("…", "~")


class Column:
    """One column: its title, its cells (safe text), and what may happen to it on a narrow terminal.

    It may be cut to `least` columns. Whole columns are dropped in the order of `keep`, lowest
    first.
    """

    __slots__ = ("cells", "keep", "least", "right", "size", "title")

    def __init__(
        self, title: str, cells: list[str], keep: int, *, least: int = 0, right: bool = False
    ) -> None:
        self.title = title
        self.cells = cells
        self.keep = keep
        self.least = least
        self.right = right
        self.size = max(len(title), max(map(width, cells), default=0))

    @property
    def slack(self) -> int:
        """How many columns can be cut from it."""
        return max(self.size - self.least, 0) if self.least else 0


class Head:
    """The title of a column, and what may happen to it, as in `Column`."""

    __slots__ = ("keep", "least", "right", "title")

    def __init__(self, title: str, keep: int, *, least: int = 0, right: bool = False) -> None:
        self.title = title
        self.keep = keep
        self.least = least
        self.right = right


def columns(heads: tuple[Head, ...], rows: "Sequence[tuple[str, ...]]") -> list[Column]:
    """A column below each head. Each row has a cell for each of them."""
    return [
        Column(
            head.title, [row[place] for row in rows], head.keep, least=head.least, right=head.right
        )
        for place, head in enumerate(heads)
    ]


def fit(columns: list[Column], limit: int) -> list[Column]:
    """The columns that say something and fit in `limit` (0: all)."""
    useful_columns = [
        column
        for column in columns
        if column.keep > 90 or any(cell not in ("", "-") for cell in column.cells)
    ]
    return squeeze(useful_columns, limit)


def squeeze(columns: list[Column], limit: int, gap: int = 2, spare: int = 0) -> list[Column]:
    """The columns that fit in `limit` (0: all), with `gap` between two. Others are cut or dropped,
    but never all. Those with a lower `keep` than `spare` are dropped before any is cut."""
    visible_columns = list(columns)
    while limit and len(visible_columns) > 1:
        widths = sum(column.size for column in visible_columns)
        excess = widths + gap * (len(visible_columns) - 1) - limit
        if excess <= 0:
            break
        lowest = min(visible_columns, key=lambda column: column.keep)
        if lowest.keep >= spare and sum(column.slack for column in visible_columns) >= excess:
            for column in sorted(visible_columns, key=lambda column: column.keep):
                reduction = min(excess, column.slack)
                column.size -= reduction
                excess -= reduction
            break
        visible_columns.remove(lowest)
    if limit and len(visible_columns) == 1:
        visible_columns[0].size = min(visible_columns[0].size, limit)
    return visible_columns


def table(
    columns: list[Column], limit: int = 0, *, colour: bool = False, mark: str = "…"
) -> list[str]:
    """The lines of an aligned table, with the titles first. No line is wider than `limit` (0: no
    limit)."""
    visible_columns = fit(columns, limit)
    parts = []
    for column in visible_columns:
        lines = _align(column, mark, is_last=column is visible_columns[-1])
        if colour and column.title == "STATE":
            lines[1:] = map(_colour, lines[1:])
        parts.append(lines)
    return [line.rstrip() for line in map("  ".join, zip(*parts, strict=True))]


def _align(column: Column, mark: str, *, is_last: bool) -> list[str]:
    """Its title and cells, padded to the width of the column. The last column needs no padding."""
    size = column.size
    lines = [column.title, *column.cells]
    if max(map(len, lines)) > size or not all(map(str.isascii, lines)):
        lines = [cut(line, size, mark) for line in lines]
        return [pad(line, size, right=column.right) for line in lines]
    if column.right:
        return [line.rjust(size) for line in lines]
    if is_last:
        return lines
    return [line.ljust(size) for line in lines]


def tint(line: str) -> str:
    """A line with states in their colours. Only a word in a cell, in brackets or after a colon
    counts, and not "held" in "held by job 3"."""
    import re  # `gpq status` does not need it

    state = rf"(?:(?<=  )|(?<=\()|(?<=: ))({'|'.join(COLOURS)})(?=  |$|[),;]| \(| on )"
    return re.sub(state, lambda match: _colour(match[1]), line)


def _colour(state: str) -> str:
    code = COLOURS.get(state.rstrip())
    return state if code is None else f"\x1b[{code}m{state}\x1b[0m"
