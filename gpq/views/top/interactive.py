"""The interactive picture of `gpq top`: the list of jobs with a cursor, the GPUs above it, and
shares and changes below it.

Everything fits in the given size. The rest can be scrolled to, or is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from gpq.rpc.daemon_answers import TopView
from gpq.rpc.job_answers import JobView
from gpq.views import plain
from gpq.views.plain import safe
from gpq.views.queue import ENDED
from gpq.views.top import job_columns, once, tables
from gpq.views.top.utilisation import Past

LAST = "age"  # the last column of jobs
Key = Callable[[JobView], float | str | None]
KEYS: Mapping[str, Key] = {
    "job": lambda job: job.id,
    "name": lambda job: job.name.casefold(),
    "user": lambda job: job.user.casefold(),
    "state": lambda job: job.state,
    "GPUs": lambda job: job.gpus,
    "batch": lambda job: job.total_batch or None,
    "goodput": lambda job: job.goodput,
    "eff": lambda job: job.efficiency,
    "done": lambda job: job.progress,
    "ETA": lambda job: job.eta_seconds,
    "thruput": lambda job: job.throughput,
    "restarts": lambda job: job.restarts,
    "prio": lambda job: job.priority,
    "age": lambda job: job.age_seconds,
}
ONLY_JOBS = 12  # below this height the jobs fill the screen
NO_LOWER = 18  # below this height fairness and changes are left out


@dataclass(frozen=True, slots=True)
class ListView:
    """The view of the list."""

    selected: int | None = None  # the job under the cursor
    first: int = 0  # row at the top
    sort: str = ""  # title of a column. "": running jobs first, or as in the query
    descending: bool = False
    filter: str = ""


def titles(rows: Sequence[JobView], look: ListView, width: int) -> list[str]:
    """The columns that fit and are not empty."""
    return job_columns.titles(rows, width, LAST, look.sort)


def ordered(jobs: Sequence[JobView], look: ListView) -> list[JobView]:
    """The sorted jobs. Jobs without a value in the sorted column come last in both directions."""
    if not look.sort:
        if "sort=" in look.filter:
            return list(jobs)
        return sorted(jobs, key=lambda job: (job.state in ENDED, job.gpus == 0, job.id))
    key = KEYS[look.sort]
    values = [(value, job) for job in jobs if (value := key(job)) is not None]
    values.sort(key=lambda pair: pair[0], reverse=look.descending)
    return [*(job for _, job in values), *(job for job in jobs if key(job) is None)]


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
        parts.append(f"by {look.sort}{direction}")
    if look.filter:
        parts.append(f"/{safe(look.filter)}")
    return Text(plain.cut("  ".join(parts), max(width - 8, 7), plain.ellipsis()))


def _table(
    rows: list[JobView], first: int, room: int, look: ListView, width: int
) -> RenderableType:
    visible_jobs = rows[first : first + room]
    if not visible_jobs:
        return Text(_why_empty(look))
    job_cells = [job_columns.cells(job) for job in visible_jobs]
    names, reason = job_columns.with_reason(
        titles(rows, look, width), rows, job_cells, width, look.sort
    )
    table = tables.grid(
        "",
        *(_head(name, look) for name in names),
        right=" ".join(_head(name, look) for name in job_columns.RIGHT.split()),
        give="reason" if reason else _head("name", look),
        expand=width < tables.WIDE,
    )
    for job, row in zip(visible_jobs, job_cells, strict=True):
        cells = job_columns.narrowed(row, reason)
        cursor = ">" if job.id == look.selected else ""
        table.add_row(cursor, *(cells[name] for name in names), style=_style(job, look))
    return table


def _why_empty(look: ListView) -> str:
    if look.filter:
        return "no job matches: press / to change the filter, Esc to clear it"
    return "no jobs: submit one with gpq submit"


def _head(name: str, look: ListView) -> str:
    """The title, with an arrow if the column is sorted."""
    if name != look.sort:
        return name
    if look.descending:
        return name + plain.drawable("↓", "v")
    return name + plain.drawable("↑", "^")


def _style(job: JobView, look: ListView) -> str:
    if job.id == look.selected:
        return "reverse"
    if job.state in ENDED:
        return "dim"
    return ""
