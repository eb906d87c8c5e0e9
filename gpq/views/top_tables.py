"""The tables of `gpq top`: GPUs, jobs with the columns that fit, fairness, changes, and the page of
servers with every process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gpq.control.query_language import known
from gpq.core.model.accounts import UserShare
from gpq.rpc.daemon_answers import TopView
from gpq.rpc.job_answers import EventView, JobView
from gpq.rpc.job_columns import COLUMNS, JobColumn, shown_on
from gpq.rpc.node_answers import DeviceView, NodeView, ProcessView
from gpq.views import plain, queue
from gpq.views.nodes import gib, last_seen, memory, occupant, utilisation
from gpq.views.plain import Column, duration, moment, number, safe
from gpq.views.queue import ENDED, percent, ranges
from gpq.views.utilisation import PIECES, Past

FRAME = 6  # width of a panel's frame and of the cursor
WISHED = {"name": 24, "reason": 32}  # widths for which other columns make room
# `keep` of a user that is the same for all, of the reason, and of the sorted column
USER, REASON, SORTED = 30, 44, 97
# from this width on the goodput table is only as wide as its cells, so that rows are easy to read
WIDE = 140
IDLE = ("pending", "held")  # states without GPUs
SLIM = 64  # below this width the two lower panels are below each other
RATIOS = {5: 1}  # the cell that takes the remaining room
Cells = tuple[str | Text, ...]
WITH_FLOORS = 50  # below this width the floors of users are left out
NARROW = 110  # below this width only half of the past is shown


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


def fit_columns(
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
        growth = min(max(max(map(plain.width, column.cells)) - column.size, 0), room)
        column.size += growth
        room -= growth
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


CELLS, SLIM_CELLS = (0, 1, 2, 3, 4, 5), (0, 3, 5)  # cells of a line of GPUs that are shown


def grid(*titles: str, right: str, give: str, expand: bool = True) -> Table:
    """A table without lines. The columns in `right` (words) are aligned right, and the one named
    `give` takes or gives room."""
    table = Table(
        box=None,
        expand=expand,
        padding=(0, 1, 0, 0),
        show_edge=False,
        header_style="dim",
        pad_edge=False,
    )
    for title in titles:
        side: Literal["left", "right"] = "right" if title in right.split() else "left"
        ratio = 1 if title == give else None
        table.add_column(title, justify=side, no_wrap=True, overflow="ellipsis", ratio=ratio)
    return table


def device_table(
    nodes: list[NodeView], lines: int | None, width: int, past: Past | None = None
) -> RenderableType:
    """One line per GPU, or per server if there are too many. With a `past`, its last minutes
    instead of a bar."""
    if not nodes:
        return Text("no servers")
    is_measured = any(device.utilisation is not None for node in nodes for device in node.devices)
    has_room = lines is None or sum(max(len(node.devices), 1) for node in nodes) <= lines
    shown_nodes = nodes if lines is None or len(nodes) <= lines else nodes[: lines - 1]
    rows = []
    for node in shown_nodes:
        devices = node.devices if has_room else []
        rows += [_device(node, device, past, is_measured=is_measured) for device in devices] or [
            _summary(node, past, is_measured=is_measured)
        ]
    cells = CELLS if width >= SLIM else SLIM_CELLS
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), show_header=False, pad_edge=False)
    for cell in cells:
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=RATIOS.get(cell))
    for row in rows:
        table.add_row(*(row[cell] for cell in cells))
    if len(shown_nodes) < len(nodes):
        table.add_row(f"+{len(nodes) - len(shown_nodes)} servers")
    return table


def _device(node: NodeView, device: DeviceView, past: Past | None, *, is_measured: bool) -> Cells:
    picture, used, owners = bar(device.utilisation), memory(device), dict[int, str]()
    if past is not None:  # its last minutes
        picture, owners = past.utilisation(node.name, device.id), past.owners
        if device.used_mib:
            used = f"{past.memory(node.name, device.id)} {used}"
    return (
        f"{safe(node.name)}:{device.index}",
        safe(device.type).removeprefix("NVIDIA "),
        picture if is_measured else "",
        utilisation(device).rjust(4) if is_measured else "",
        used,
        _occupancy(device, device.state if node.state == "up" else node.state, owners),
    )


def _occupancy(device: DeviceView, state: str, owners: Mapping[int, str]) -> Text:
    """What uses it. Problems are red. `state`: of the GPU or of its server."""
    text = owner_of(device, owners)
    if state != "ok":
        return Text(f"{safe(state)} {text}", style="red")
    return Text(text, style="green" if device.job is not None else "dim")


def owner_of(device: DeviceView, owners: Mapping[int, str]) -> str:
    """Like `occupant`, with the user of the job: `job 3 of ana`."""
    if device.job is None or not owners.get(device.job):
        return occupant(device)
    job = f"job {device.job}"
    return occupant(device).replace(job, f"{job} of {safe(owners[device.job])}", 1)


def _summary(node: NodeView, past: Past | None, *, is_measured: bool) -> Cells:
    """One line: mean utilisation, and the jobs with their GPUs."""
    loads = [device.utilisation for device in node.devices if device.utilisation is not None]
    mean = round(sum(loads) / len(loads)) if loads else None
    picture = ""
    if is_measured:
        picture = past.server(node.name) if past is not None else bar(mean)
    load = f"{mean:3}%" if mean is not None else ""
    indices_by_job: dict[int, list[int]] = {}
    for device in node.devices:
        if device.job is not None:
            indices_by_job.setdefault(device.job, []).append(device.index)
    jobs = ", ".join(
        f"job {job} on {ranges(indices)}" for job, indices in sorted(indices_by_job.items())
    )
    occupancy = Text(jobs or "idle", style="green" if jobs else "dim")
    if node.state != "up":
        state = f"{safe(node.state)} {safe(node.reason)}"
        occupancy = Text(f"{state} {jobs or 'idle'}", style="red")
    return safe(node.name), f"{len(node.devices)} GPUs", picture, load, "", occupancy


def bar(value: int | None, cells: int = 10) -> str:
    length = round(cells * min(max(value or 0, 0), 100) / 100)
    return plain.drawable("█", "#") * length + plain.drawable("░", ".") * (cells - length)


def job_table(
    jobs: Sequence[JobView], heads: Sequence[JobColumn], width: int, look: ListView | None = None
) -> Table:
    """A row for each of these jobs. With a `look`, a cursor and an arrow at the sorted column."""
    columns = fit_columns(jobs, heads, width, look or ListView())
    titles = [column.title for column in columns]
    table = grid(
        *([] if look is None else [""]),
        *(_head(title, look) for title in titles),
        right=" ".join(_head(column.title, look) for column in columns if column.right),
        give=_head("REASON" if "REASON" in titles else "NAME", look),
        expand=width < WIDE,
    )
    mark = plain.ellipsis()
    for index, job in enumerate(jobs):
        cells = [Text(plain.cut(column.cells[index], column.size, mark)) for column in columns]
        if "STATE" in titles:
            cells[titles.index("STATE")].stylize(state_of(job).style)
        is_selected = look is not None and job.id == look.selected
        if look is not None:
            cells.insert(0, Text(">" if is_selected else ""))
        style = "dim" if job.state in ENDED else ""
        table.add_row(*cells, style="reverse" if is_selected else style)
    return table


def _head(title: str, look: ListView | None) -> str:
    """The title, with an arrow if the column is sorted."""
    if look is None or not look.sort or title != COLUMNS[look.sort].title:
        return title
    return title + (plain.drawable("↓", "v") if look.descending else plain.drawable("↑", "^"))


def goodput_table(
    jobs: list[JobView], lines: int | None, width: int, filter: str = ""
) -> RenderableType:
    """Running jobs first. Columns that are empty or do not fit are left out."""
    if not jobs and filter:
        return Text("no live job matches the filter")
    if not jobs:
        return Text("no jobs: submit one with gpq submit")
    sorted_jobs = sorted(jobs, key=lambda job: (job.gpus == 0, job.id))
    shown_jobs = sorted_jobs[: _row_count(len(jobs), lines)]
    table = job_table(shown_jobs, heads(jobs, "once"), width)
    if len(shown_jobs) < len(sorted_jobs):
        table.add_row("", f"+{len(sorted_jobs) - len(shown_jobs)} more")
    return table


def fairness_table(
    view: TopView, jobs: list[JobView], lines: int | None, width: int
) -> RenderableType:
    """By user, then by job: share of the GPUs, speedup on the fair share, and finish-time fairness
    (rho). With several users and enough room also the floors, such as `5 +3` for a floor of 5 GPUs
    and 3 more."""
    floors = {user.user: _floor(user) for user in view.users if user.floor is not None}
    if width < WITH_FLOORS:
        floors = {}
    titles = ["WHO", "GPUS", *(["FLOOR"] if floors else []), "SHARE", "SPEEDUP", "RHO"]
    table = grid(*titles, right=" ".join(titles[1:]), give="WHO")
    total = sum(device.job is not None for node in view.nodes for device in node.devices)
    rows = [
        (
            safe(user.user),
            str(user.gpus),
            *([floors.get(user.user, "")] if floors else []),
            f"{percent(user.share)}/{percent(user.fair_share)}",
            number(user.speedup, "x"),
            number(user.rho),
        )
        for user in view.users
    ]
    rows += [
        (
            f" {job.id} {safe(job.name)}",
            str(job.gpus),
            *([""] if floors else []),
            percent(job.gpus / total if total else 0.0),
            number(job.speedup, "x"),
            number(job.rho),
        )
        for job in jobs
        if job.gpus
    ]
    if not rows:
        return Text("no GPU is in use")
    shown_rows = rows[: _row_count(len(rows), lines)]
    for row in shown_rows:
        table.add_row(*row)
    if len(shown_rows) < len(rows):
        table.add_row(f"+{len(rows) - len(shown_rows)} more")
    return table


def _floor(user: UserShare) -> str:
    return f"{user.floor} +{user.borrowed}" if user.borrowed else str(user.floor)


def _row_count(count: int, lines: int | None) -> int:
    """How many of `count` rows fit in this many lines, below the titles and above a line that
    counts the rest."""
    if lines is None or count + 1 <= lines:
        return count
    return max(lines - 2, 0)


def change_lines(changes: list[EventView], width: int, lines: int | None) -> RenderableType:
    """The changes, newest first: time, job, change and reason, each in as many lines as needed. The
    last may be cut."""
    if not changes:
        return Text("none yet")
    text: list[str] = []
    for change in changes:
        job = f"job {change.job} " if change.job is not None else ""
        text += plain.wrap(
            job + safe(change.text), max(width, 20), f"{plain.moment(change.at)[11:]} ", "  "
        )
        if lines is not None and len(text) >= lines:
            break
    return Text("\n".join(text[:lines]), no_wrap=True, overflow="ellipsis")


def process_lines(nodes: list[NodeView], past: Past, width: int) -> list[Text]:
    """The lines of the page. The terminal cuts what is wider."""
    text: list[Text] = []
    room = PIECES if width >= NARROW else PIECES // 2
    for node in nodes:
        style = "bold" if node.state == "up" else "bold red"
        head = f"{safe(node.name)}  {safe(node.state)}  {node.cores} cores  {gib(node.memory_mib)}"
        text.append(
            Text(f"{head}  seen {last_seen(node)}  {safe(node.reason)}".rstrip(), style=style)
        )
        text += [
            Text(f"  not in the database of gpq: {safe(line)}", style="red")
            for line in node.strangers
        ]
        text += [Text(f"  {safe(line)}", style="yellow") for line in node.damage]
        for device in node.devices:
            text += _gpu_block(node, device, past, room)
        text.append(Text(""))
    return text[:-1] or [Text("no servers")]


def _gpu_block(node: NodeView, device: DeviceView, past: Past, room: int) -> list[Text]:
    kind = safe(device.type).removeprefix("NVIDIA ")
    load = memory_curve = ""
    if device.utilisation is not None:
        load = f"{past.utilisation(node.name, device.id, room)} {utilisation(device):>4}"
    if device.used_mib:
        memory_curve = f"{past.memory(node.name, device.id, room // 2)} "
    line = Text(f"  {device.index} {kind}  {load}  {memory_curve}{memory(device)}  ")
    line.append_text(_occupancy(device, device.state, past.owners))
    return [line, *(Text(_process(process)) for process in device.processes)]


def _process(process: ProcessView) -> str:
    since = f"  since {moment(process.since)[5:16]}" if process.since else ""
    job = "not gpq's" if process.job is None else f"job {process.job}"
    command = safe(process.command or process.name)
    owner = f"      pid {process.pid}  {safe(process.user)}"
    return f"{owner}  {gib(process.memory_mib)}  {job}{since}  {command}"
