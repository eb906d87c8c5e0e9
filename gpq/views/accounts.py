"""The tables of `gpq history` and `gpq report`, and their CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from gpq.rpc.account_answers import EndedView, HistoryList, ReportRow, ReportView
from gpq.views.plain import (
    Column,
    Head,
    columns,
    duration,
    ellipsis,
    moment,
    number,
    safe,
    table,
    wrap,
)
from gpq.views.queue import percent

TITLES = {"user": "USER", "job": "JOB", "server": "SERVER", "day": "DAY"}
HISTORY = (
    Head("ID", 99, right=True), Head("NAME", 80, least=8), Head("USER", 60, least=4),
    Head("STATE", 98), Head("EXIT", 50, right=True), Head("SUBMITTED", 20), Head("ENDED", 55),
    Head("WAIT", 65, right=True), Head("RAN", 75, right=True), Head("GPUS", 62, right=True),
    Head("GPU H", 85, right=True), Head("GOODPUT H", 70, right=True),
    Head("RESTARTS", 30, right=True), Head("COST H", 28, right=True), Head("RHO", 25, right=True),
    Head("REASON", 22, least=12),
)  # fmt: skip
REPORT = (
    Head("NAME", 80, least=8), Head("OWNER", 60, least=4), Head("JOBS", 70, right=True),
    Head("GPU H", 98, right=True), Head("GOODPUT H", 90, right=True), Head("WORTH", 75, right=True),
    Head("SHARE", 85, right=True), Head("FAIR", 84, right=True), Head("WAIT", 65, right=True),
    Head("P95", 64, right=True), Head("RESTARTS", 40, right=True), Head("COST H", 45, right=True),
    Head("GAIN H", 48, right=True), Head("FAILED H", 50, right=True), Head("RHO", 35, right=True),
    Head("MAX", 34, right=True),
)  # fmt: skip


def history(answer: HistoryList, limit: int, bar: str = "") -> list[str]:
    """The jobs in the order of their ends, and how many more there are."""
    text = ["no jobs ended in this time"]
    if answer.jobs:
        text = table(history_columns(answer.jobs), limit, mark=ellipsis())
    if answer.hidden:
        remark = (
            f"{answer.hidden} more ended earlier: gpq history -n {answer.hidden + len(answer.jobs)}"
        )
        text += wrap(remark, limit)
    return text


def history_columns(jobs: Sequence[EndedView]) -> list[Column]:
    rows = []
    for job in jobs:
        # of a cancelled job it is only the code of its signal
        is_telling = job.exit_status is not None and job.state != "cancelled"
        row = (
            str(job.id), safe(job.name) or "-", safe(job.user), safe(job.state),
            str(job.exit_status) if is_telling else "-", moment(job.submitted_at)[:16],
            moment(job.ended_at)[:16], duration(job.wait_seconds), duration(job.run_seconds),
            f"{job.gpus:.1f}".removesuffix(".0"), hours(job.gpu_hours), hours(job.goodput_hours),
            str(job.restarts or "-"), hours(job.restart_gpu_hours or None), number(job.rho),
            safe(job.reason),
        )  # fmt: skip
        rows.append(row)
    return columns(HISTORY, rows)


def hours(value: float | None) -> str:
    """`0.02` and more. Less is `<0.01`."""
    if value is not None and 0 < value < 0.005:
        return "<0.01"
    return number(value)


def report(answer: ReportView, limit: int, bar: str = "") -> list[str]:
    """One row each, and the total."""
    head = wrap(f"{moment(answer.since)[:16]} to {moment(answer.until)[:16]}", limit)
    if not answer.rows:
        return [*head, *wrap("no job used a GPU, waited or ended in this time", limit)]
    rows = [*answer.rows, answer.total] if len(answer.rows) > 1 else answer.rows
    return [*head, "", *table(report_columns(rows, answer.by), limit, mark=ellipsis())]


def report_columns(lines: Sequence[ReportRow], by: str) -> list[Column]:
    rows = []
    for line in lines:
        warm_restarts = f", {line.warm_restarts} warm" if line.warm_restarts else ""
        row = (
            safe(line.key) or "all", safe(line.name) or "-", safe(line.user) or "-",
            "-" if by == "job" else str(line.jobs), hours(line.gpu_hours),
            hours(line.goodput_hours), percent(line.efficiency), percent(line.share),
            percent(line.fair_share), duration(line.wait_median_seconds),
            duration(line.wait_p95_seconds) if line.waits > 1 else "-",
            f"{line.restarts or '-'}{warm_restarts}", hours(line.restart_gpu_hours or None),
            hours_of(line.gained_hours, line.promised_hours), hours(line.failed_gpu_hours or None),
            number(line.rho_median), number(line.rho_max) if line.rhos > 1 else "-",
        )  # fmt: skip
        rows.append(row)
    return columns((Head(TITLES[by], 99, least=4, right=by == "job"), *REPORT), rows)


def hours_of(gained: float, promised: float) -> str:
    """What growths saved, and how much of it was promised: `1.20 of 1.50`."""
    if not promised:
        return "-"
    return f"{hours(gained)} of {hours(promised)}"


def csv_lines(rows: Iterable[Mapping[str, object]], kind: type[msgspec.Struct]) -> Iterator[str]:
    """A line of names, and one for each row, with the names and units of the JSON. Unknown values
    are empty cells."""
    names = kind.__struct_fields__
    for cells in chain([names], ([_csv_cell(row[name]) for name in names] for row in rows)):
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerow(cells)
        yield stream.getvalue()


def _csv_cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.1f}"
    return safe(value) if isinstance(value, str) else value
