"""The picture of `gpq top`: GPUs by server, goodput, fairness, and the latest changes, as rich
renderables.

Everything fits in the given size. A last row counts the rest, and nothing is wrapped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gpq.rpc.daemon_answers import TopLook, TopView
from gpq.rpc.job_answers import JobView
from gpq.views import plain
from gpq.views.accounts import hours_of
from gpq.views.plain import duration, number, safe
from gpq.views.queue import ENDED
from gpq.views.tables import (
    IDLE,
    SLIM,
    change_lines,
    device_table,
    fairness_table,
    goodput_table,
)


def frame(view: TopView, width: int, height: int | None, filter: str = "") -> RenderableType:
    """One picture, `width` columns wide and `height` lines high, or as high as needed (None)."""
    live_jobs = [job for job in view.jobs if job.state not in ENDED]
    rows = shares(
        height,
        devices=sum(len(node.devices) for node in view.nodes),
        jobs=len(live_jobs),
        users=len(view.users),
    )
    return Group(
        header(view, live_jobs, width, filter),
        panel("GPUs", device_table(view.nodes, rows[0], width), rows[0]),
        panel("goodput", goodput_table(live_jobs, rows[1], width, filter), rows[1]),
        *lower(view, live_jobs, width, rows[2]),
    )


def lower(
    view: TopView, live: list[JobView], width: int, lines: int | None
) -> list[RenderableType]:
    """Fairness and changes, side by side if there is room. Below `SLIM` columns only the changes,
    or both below each other."""
    half = width // 2 if width >= SLIM else width
    fairness = panel("fairness", fairness_table(view, live, lines), lines)
    changes = panel(
        "latest changes", change_lines(view.changes, (width - half or width) - 4, lines), lines
    )
    if width < SLIM:
        if lines is None:
            return [fairness, changes]
        return [changes]
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
    """The summary of everything, and how much of it the `filter` shows (`rows`)."""
    live_jobs = [job for job in rows if job.state not in ENDED]
    states: Mapping[str, int] = Counter(job.state for job in live_jobs)
    if isinstance(view, TopLook):
        states = view.states
    job_counts = [_by_state(states)]
    if filter:
        job_counts.append(_shown(len(live_jobs), len(rows), sum(states.values())))
    gpus = _busy_gpus(view)
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
    if held_jobs:
        return f"{text}, {held_jobs} held"
    return text


def _shown(live: int, rows: int, total: int) -> str:
    """`3 of 7 jobs and 2 that ended shown`."""
    remark = f" and {rows - live} that ended" if rows > live else ""
    return f"{live} of {total} jobs{remark} shown"


def _busy_gpus(view: TopView) -> str:
    devices = [device for node in view.nodes for device in node.devices]
    return f"{sum(device.job is not None for device in devices)}/{len(devices)} GPUs"


def _is_too_wide(parts: Sequence[str], width: int) -> bool:
    return len("  ".join(parts)) > width
