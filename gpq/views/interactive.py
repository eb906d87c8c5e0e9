"""The interactive picture of `gpq top`: the list of jobs with a cursor, the GPUs above it, and
shares and changes below it.

Everything fits in the given size. The rest can be scrolled to, or is counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gpq.control.answers import query_language
from gpq.rpc.daemon_answers import TopView
from gpq.rpc.job_answers import JobView
from gpq.rpc.job_columns import COLUMNS
from gpq.views import job_columns, once, plain, tables
from gpq.views.job_columns import ListView
from gpq.views.plain import safe
from gpq.views.queue import ENDED
from gpq.views.utilisation import Past

ONLY_JOBS = 12  # below this height the jobs fill the screen
NO_LOWER = 18  # below this height fairness and changes are left out


def ordered(jobs: Sequence[JobView], look: ListView) -> list[JobView]:
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
    if height < ONLY_JOBS:
        return 0, max(height - 2, 1), 0
    if height < NO_LOWER:
        gpus = min(max(devices, 1), (height - 4) // 3)
        return gpus, height - 4 - gpus, 0
    heights = once.shares(height + 1, devices=devices, jobs=jobs, users=len(view.users))
    return heights[0] or 1, heights[1] or 2, heights[2] or 2


def picture(
    view: TopView, rows: list[JobView], look: ListView, past: Past, width: int, height: int
) -> RenderableType:
    """The picture. `rows`: the jobs of `view` in order. `height` does not count the lines above and
    below."""
    live_jobs = [job for job in rows if job.state not in ENDED]
    gpus, jobs, lower = _lines(view, len(rows), height)
    parts: list[RenderableType] = []
    if gpus:
        parts.append(once.panel("GPUs", tables.device_table(view.nodes, gpus, width, past), gpus))
    room = jobs - 1
    first = first_row(rows, look, room)
    title = _title(rows, first, len(rows[first : first + room]), look, width)
    parts.append(once.panel(title, _table(rows, first, room, look, width), jobs))
    if lower:
        parts += once.lower(view, live_jobs, width, lower)
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


def _table(
    rows: list[JobView], first: int, room: int, look: ListView, width: int
) -> RenderableType:
    visible_jobs = rows[first : first + room]
    if not visible_jobs:
        return Text(_why_empty(look))
    return tables.job_table(visible_jobs, job_columns.heads(rows, "top", look.sort), width, look)


def _why_empty(look: ListView) -> str:
    if look.filter:
        return "no job matches: press / to change the filter, Esc to clear it"
    return "no jobs: submit one with gpq submit"
