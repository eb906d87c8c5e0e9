"""The columns of jobs in both forms of `gpq top`: which ones are not empty, and which ones fit.
Draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from rich.text import Text

from gpq.control.answers.query_language import known
from gpq.rpc.job_answers import JobView
from gpq.rpc.job_columns import JobColumn, shown_on
from gpq.views import plain, queue
from gpq.views.plain import Column, duration, safe

FRAME = 6  # width of a panel's frame and of the cursor
WISHED = {"name": 24, "reason": 32}  # widths for which other columns make room
# `keep` of a user that is the same for all, of the reason, and of the sorted column
USER, REASON, SORTED = 30, 44, 97


@dataclass(frozen=True, slots=True)
class ListView:
    """The view of the list."""

    selected: int | None = None  # the job under the cursor
    first: int = 0  # row at the top
    sort: str = ""  # name of a column. "": running jobs first, or as in the query
    descending: bool = False
    filter: str = ""


def heads(jobs: Sequence[JobView], screen: str, sort: str = "") -> list[JobColumn]:
    """The columns that are not empty for all jobs. `sort` always stays."""
    return [
        head
        for head in shown_on(screen)
        if head.kind == "text" or head.name == sort or any(known(head.name, job) for job in jobs)
    ]


def fitted(
    jobs: Sequence[JobView], heads: Sequence[JobColumn], width: int, look: ListView
) -> list[Column]:
    """The columns of these jobs that fit. Long names and reasons get the room that is left."""
    rows = [{**msgspec.to_builtins(job), "state": state_of(job).plain} for job in jobs]
    room = width - FRAME
    columns = queue.columns(rows, heads, {"reason": 18}, USER)
    for head, column in zip(heads, columns, strict=True):
        column.size = min(column.size, WISHED.get(head.name, column.size))
        if head.name == "reason":
            column.keep = REASON
        if head.name == look.sort:
            column.size, column.keep = max(column.size, len(head.title) + 1), SORTED  # an arrow
    with_text = [column for column in columns if any(column.cells)]
    fitting = plain.squeeze(with_text, room, gap=1, spare=REASON)
    room = max(room - sum(column.size + 1 for column in fitting) + 1, 0)
    for column in reversed(fitting):
        missing = max(map(plain.width, column.cells)) - column.size
        if missing > 0:
            column.size += min(missing, room)
            room -= min(missing, room)
    return fitting


def state_of(job: JobView) -> Text:
    """The state. `unknown 40s`: the server is silent. `hung 90s`: no replica makes progress.
    `running nan`: a metric is not finite. `running !3`: the others wait for replica 3."""
    if job.unknown_seconds is not None:
        return Text(f"unknown {duration(job.unknown_seconds)}", style="red")
    if job.hung_seconds is not None:
        return Text(f"hung {duration(job.hung_seconds)}", style="red")
    if job.diverged and job.ended_at is None:
        return Text(f"{safe(job.state)} {safe(job.diverged[0].value)}", style="red")
    if job.stragglers:  # the first to look at
        return Text(f"{safe(job.state)} !{job.stragglers[0]}", style="yellow")
    colour = plain.COLOURS.get(job.state, 2)
    return Text(safe(job.state), style="dim" if colour == 2 else f"color({colour - 30})")
