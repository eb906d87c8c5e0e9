"""The last line of the interactive `gpq top`, the first line when answers are late, the page of
keys, and scrolled lines."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gpq.rpc.job_answers import JobView
from gpq.views import plain
from gpq.views.plain import safe

KEYS = {
    "up down j k": "move (also PgUp PgDn Home End)",
    "Enter": "open the job, with its reasons, curves and growing log",
    "/": "filter, as in gpq status: user=ana state=running sort=-goodput",
    "s S": "sort by the next or the previous column (also right, left)",
    "r": "reverse the order",
    "c": "cancel (asks first)",
    "h": "hold the job, or release it if it is held",
    "+ -": "raise or lower the priority",
    "n": "servers: the last minutes of each GPU, and every process with its user",
    "l": "in a job: show only the log, then everything else",
    "Esc q": "go back. In the list, Esc clears the filter and q quits",
    "Ctrl-L": "redraw the screen",
}
INDENT = 13
LIST_KEYS = (
    "Enter open  / filter  s sort  r reverse  c cancel  h hold  +- prio  n servers  ? keys  q quit"
)
JOB_KEYS = "Esc back  l log  up/down scroll  c cancel  h hold  +- priority  ? keys"
PAGE_KEYS = "Esc back  up/down scroll  ? keys"
HELP_KEYS = "up/down scroll  any other key: back"
LAST = ("  ? keys  q quit", "  ? keys")


def keys(width: int) -> list[Text]:
    """The page of help."""
    pairs = [
        plain.wrapped(effect, width, f"{key:{INDENT}}", " " * INDENT)
        for key, effect in KEYS.items()
    ]
    return [Text(line) for lines in pairs for line in lines]


def late(age: float, reason: str, width: int) -> Text:
    """The first line when the last answer is `age` seconds old."""
    message = f"gpq as of {plain.duration(age)} ago: {safe(reason) or 'the daemon is slow'}"
    return Text(plain.cut(message, width, plain.ellipsis()), style="bold reverse")


def prompt(query: str, width: int) -> Text:
    """The end of the typed filter, with a cursor."""
    line = f"/{safe(query)}_"
    return Text(line[max(len(line) - width + 1, 0) :], style="bold")


def question(job: JobView, width: int) -> Text:
    name = plain.cut(safe(job.name), max(width - 42, 4), plain.ellipsis())
    return Text(
        plain.cut(f"cancel job {job.id} {name}? y: yes, any other key: no", width - 1, ""),
        style="bold reverse",
    )


def told(text: str, width: int) -> Text:
    return Text(plain.cut(safe(text), width - 1, plain.ellipsis()), style="bold")


def hints(keys: str, width: int) -> Text:
    """Whole hints. Help and quit are dropped last."""
    end = next((last for last in LAST if keys.endswith(last)), "")
    keys = keys.removesuffix(end)
    while len(keys + end) >= width and "  " in keys:
        keys = keys.rpartition("  ")[0]
    return Text(plain.cut(keys + end, width - 1, ""), style="dim")


def stacked(lines: Sequence[Text]) -> RenderableType:
    """One line each, cut at the width of the screen."""
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    return Group(*lines)


def window(lines: Sequence[Text], scroll: int, height: int) -> tuple[RenderableType, int]:
    """`height` of the lines from `scroll` on, or from the last position that fills the window, and
    that position."""
    top = max(min(scroll, len(lines) - height), 0)
    return stacked(lines[top : top + max(height, 0)]), top
