"""The picture of `gpq top` as rich renderables: GPUs by server, jobs, fairness, and the latest
changes. `frame` draws it once, and `picture` with a cursor, between a first and a last line.

Everything fits in the given size. A last row counts the rest, and nothing is wrapped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gpq.control import query_language
from gpq.rpc.daemon_answers import TopLook, TopView
from gpq.rpc.job_answers import JobView
from gpq.rpc.job_columns import COLUMNS
from gpq.views import plain, queue, top_tables
from gpq.views.accounts import hours_of
from gpq.views.plain import duration, number, safe
from gpq.views.queue import ENDED
from gpq.views.top_tables import (
    IDLE,
    SLIM,
    ListView,
    change_lines,
    device_table,
    fairness_table,
    goodput_table,
)
from gpq.views.utilisation import Past

ONLY_JOBS = 12  # below this height the jobs fill the screen
NO_LOWER = 18  # below this height fairness and changes are left out
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


def frame(view: TopView, width: int, height: int | None, filter: str = "") -> RenderableType:
    """One picture, `width` columns wide and `height` lines high, or as high as needed (None)."""
    live_jobs = [job for job in view.jobs if job.state not in ENDED]
    team = team_lines(view, height)
    rows = shares(
        height and height - len(team),
        devices=sum(len(node.devices) for node in view.nodes),
        jobs=len(live_jobs),
        users=len(view.users),
    )
    return Group(
        header(view, live_jobs, width, filter),
        stack(team),
        panel("GPUs", device_table(view.nodes, rows[0], width), rows[0]),
        panel("goodput", goodput_table(live_jobs, rows[1], width, filter), rows[1]),
        *lower_panels(view, live_jobs, width, rows[2]),
    )


def team_lines(view: TopView, height: int | None) -> list[Text]:
    """Who has how much in the team, if there is a team and room for it."""
    if view.team is None or (height is not None and height < ONLY_JOBS):
        return []
    return list(map(Text, queue.team_lines(msgspec.to_builtins(view.team))))


def lower_panels(
    view: TopView, live: list[JobView], width: int, lines: int | None
) -> list[RenderableType]:
    """Fairness and changes, side by side if there is room. Below `SLIM` columns only the changes,
    or both below each other."""
    half = width // 2 if width >= SLIM else width
    fairness = panel("fairness", fairness_table(view, live, lines, half), lines)
    changes = panel(
        "latest changes", change_lines(view.changes, (width - half or width) - 4, lines), lines
    )
    if width < SLIM:
        return [fairness, changes] if lines is None else [changes]
    side_by_side = Table.grid(expand=True, padding=0)
    side_by_side.add_column(width=half)
    side_by_side.add_column(width=width - half)
    side_by_side.add_row(fairness, changes)
    return [side_by_side]


def shares(
    height: int | None, *, devices: int, jobs: int, users: int
) -> tuple[int | None, int | None, int | None]:
    """Lines inside the panels of GPUs, goodput and fairness. None: as many as needed."""
    if height is None:
        return None, None, None
    room = max(height - 1 - 6, 6)  # a header, and three borders of two lines
    needs = (max(devices, 1), jobs + 1, max(users + jobs + 1, 4))
    least = (
        min(needs[0], max(room // 4, 2)),
        min(needs[1], max(room // 4, 2)),
        min(needs[2], max(room // 3, 2)),
    )
    heights = list(least)
    for index in (1, 0, 2):  # jobs first, because users look for them
        heights[index] += max(min(needs[index] - heights[index], room - sum(heights)), 0)
    heights[2] += max(room - sum(heights), 0)
    return heights[0], heights[1], heights[2]


def panel(title: str | Text, body: RenderableType, lines: int | None) -> Panel:
    return Panel(
        body,
        title=title,
        title_align="left",
        height=None if lines is None else lines + 2,
        padding=(0, 1),
    )


def header(view: TopView, rows: Sequence[JobView], width: int, filter: str = "") -> Text:
    """The summary of everything, and how much of it the `filter` shows (`rows`). Nothing matters as
    much as a policy that answers wrongly."""
    if isinstance(view, TopLook) and view.fault:
        return Text(plain.cut(safe(view.fault), width, plain.ellipsis()), style="bold reverse")
    live_jobs = [job for job in rows if job.state not in ENDED]
    states: Mapping[str, int] = Counter(job.state for job in live_jobs)
    if isinstance(view, TopLook):
        states = view.states
    job_counts = [_by_state(states)]
    if filter:
        ended_jobs = len(rows) - len(live_jobs)
        remark = f" and {ended_jobs} that ended" if ended_jobs else ""
        job_counts.append(f"{len(live_jobs)} of {sum(states.values())} jobs{remark} shown")
    devices = [device for node in view.nodes for device in node.devices]
    gpus = f"{sum(device.job is not None for device in devices)}/{len(devices)} GPUs"
    parts = [
        f"gpq {plain.moment(view.now)[11:]}",
        gpus,
        *job_counts,
        f"goodput {number(view.cluster_goodput)}",
        f"policy {safe(view.policy)}",
    ]
    if view.promised_hours:
        parts.insert(-1, f"resizes saved {hours_of(view.gained_hours, view.promised_hours)} h")
    if view.round_seconds is not None:
        parts.append(f"round {1000 * view.round_seconds:.1f} ms, {duration(view.round_age)} ago")
    while len(parts) > 2 + len(job_counts) and _is_too_wide(parts, width):  # drop whole parts
        parts.pop()
    if _is_too_wide(parts, width):  # the panel below shows them too
        parts.remove(gpus)
    return Text(plain.cut("  ".join(parts), width, plain.ellipsis()), style="bold", no_wrap=True)


def _by_state(states: Mapping[str, int]) -> str:
    """`3 running, 2 pending, 1 held`."""
    running = sum(count for state, count in states.items() if state not in IDLE)
    text = f"{running} running, {states.get('pending', 0)} pending"
    held_jobs = states.get("held", 0)
    return f"{text}, {held_jobs} held" if held_jobs else text


def _is_too_wide(parts: Sequence[str], width: int) -> bool:
    return len("  ".join(parts)) > width


def in_order(jobs: Sequence[JobView], look: ListView) -> list[JobView]:
    if not look.sort:
        if "sort=" in look.filter:
            return list(jobs)
        return sorted(jobs, key=lambda job: (job.state in ENDED, job.gpus == 0, job.id))
    return query_language.ordered(jobs, look.sort, descending=look.descending)


def place(rows: Sequence[JobView], look: ListView) -> int:
    """The row of the cursor, or 0 if its job is gone."""
    return next((index for index, job in enumerate(rows) if job.id == look.selected), 0)


def first_row(rows: Sequence[JobView], look: ListView, room: int) -> int:
    """The top row that keeps the cursor visible with the least movement."""
    position = place(rows, look)
    first = min(max(look.first, position - room + 1), position)
    return max(min(first, len(rows) - room), 0)


def room_for_jobs(view: TopView, jobs: int, height: int) -> int:
    """Number of visible rows."""
    return max(_lines(view, jobs, height)[1] - 1, 1)


def _lines(view: TopView, jobs: int, height: int) -> tuple[int, int, int]:
    """Lines inside the panels of GPUs, of jobs and below. 0: left out."""
    devices = sum(len(node.devices) for node in view.nodes)
    height -= len(team_lines(view, height))
    if height < ONLY_JOBS:
        return 0, max(height - 2, 1), 0
    if height < NO_LOWER:
        gpus = min(max(devices, 1), (height - 4) // 3)
        return gpus, height - 4 - gpus, 0
    heights = shares(height + 1, devices=devices, jobs=jobs, users=len(view.users))
    return heights[0] or 1, heights[1] or 2, heights[2] or 2


def picture(
    view: TopView, rows: list[JobView], look: ListView, past: Past, width: int, height: int
) -> RenderableType:
    """The picture. `rows`: the jobs of `view` in order. `height` does not count the lines above and
    below."""
    live_jobs = [job for job in rows if job.state not in ENDED]
    gpus, jobs, lower = _lines(view, len(rows), height)
    parts: list[RenderableType] = [stack(team_lines(view, height))]
    if gpus:
        parts.append(panel("GPUs", top_tables.device_table(view.nodes, gpus, width, past), gpus))
    room = jobs - 1
    first = first_row(rows, look, room)
    visible_jobs = rows[first : first + room]
    title = _title(rows, first, len(visible_jobs), look, width)
    table: RenderableType = Text("no jobs: submit one with gpq submit")
    if visible_jobs:
        heads = top_tables.heads(rows, "top", look.sort)
        table = top_tables.job_table(visible_jobs, heads, width, look)
    elif look.filter:
        table = Text("no job matches: press / to change the filter, Esc to clear it")
    parts.append(panel(title, table, jobs))
    if lower:
        parts += lower_panels(view, live_jobs, width, lower)
    return Group(*parts)


def _title(rows: Sequence[JobView], first: int, count: int, look: ListView, width: int) -> Text:
    """`goodput  1-8 of 60  by ETA, descending  /user=ana`."""
    parts = ["goodput"]
    if count < len(rows):
        parts.append(f"{first + 1}-{first + count} of {len(rows)}")
    if look.sort:
        direction = ", descending" if look.descending else ""
        parts.append(f"by {COLUMNS[look.sort].title}{direction}")
    if look.filter:
        parts.append(f"/{safe(look.filter)}")
    return Text(plain.cut("  ".join(parts), max(width - 8, 7), plain.ellipsis()))


def keys(width: int) -> list[Text]:
    """The page of help."""
    lines = []
    for key, effect in KEYS.items():
        lines += plain.wrap(effect, width, f"{key:{INDENT}}", " " * INDENT)
    return list(map(Text, lines))


def late(age: float, reason: str, width: int) -> Text:
    """The first line when the last answer is `age` seconds old."""
    message = f"gpq as of {plain.duration(age)} ago: {safe(reason) or 'no answer yet'}"
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


def message(text: str, width: int) -> Text:
    return Text(plain.cut(safe(text), width - 1, plain.ellipsis()), style="bold")


def hints(keys: str, width: int) -> Text:
    """Whole hints. Help and quit are dropped last."""
    end = next((last for last in LAST if keys.endswith(last)), "")
    keys = keys.removesuffix(end)
    while len(keys + end) >= width and "  " in keys:
        keys = keys.rpartition("  ")[0]
    return Text(plain.cut(keys + end, width - 1, ""), style="dim")


def stack(lines: Sequence[Text]) -> RenderableType:
    """One line each, cut at the width of the screen."""
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    return Group(*lines)


def window(lines: Sequence[Text], scroll: int, height: int) -> tuple[RenderableType, int]:
    """`height` of the lines from `scroll` on, or from the last position that fills the window, and
    that position."""
    top = max(min(scroll, len(lines) - height), 0)
    return stack(lines[top : top + max(height, 0)]), top
