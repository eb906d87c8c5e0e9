"""The tables of `gpq history` and `gpq report`, and their CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import msgspec

from gpq.rpc.account_answers import EndedView, HistoryList, ReportRow, ReportView
from gpq.views.plain import Column, duration, ellipsis, moment, number, safe, table, wrap
from gpq.views.queue import percent

TITLES = {"user": "USER", "job": "JOB", "server": "SERVER", "day": "DAY"}


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


def history_columns(rows: Sequence[EndedView]) -> list[Column]:
    return [
        Column("ID", [str(row.id) for row in rows], 99, right=True),
        Column("NAME", [safe(row.name) or "-" for row in rows], 80, least=8),
        Column("USER", [safe(row.user) for row in rows], 60, least=4),
        Column("STATE", [safe(row.state) for row in rows], 98),
        Column("EXIT", [_exit(row) for row in rows], 50, right=True),
        Column("SUBMITTED", [moment(row.submitted_at)[:16] for row in rows], 20),
        Column("ENDED", [moment(row.ended_at)[:16] for row in rows], 55),
        Column("WAIT", [duration(row.wait_seconds) for row in rows], 65, right=True),
        Column("RAN", [duration(row.run_seconds) for row in rows], 75, right=True),
        Column("GPUS", [f"{row.gpus:.1f}".removesuffix(".0") for row in rows], 62, right=True),
        Column("GPU H", [hours(row.gpu_hours) for row in rows], 85, right=True),
        Column("GOODPUT H", [hours(row.goodput_hours) for row in rows], 70, right=True),
        Column("RESTARTS", [str(row.restarts or "-") for row in rows], 30, right=True),
        Column("COST H", [hours(row.restart_gpu_hours or None) for row in rows], 28, right=True),
        Column("RHO", [number(row.rho) for row in rows], 25, right=True),
        Column("REASON", [safe(row.reason) for row in rows], 22, least=12),
    ]


def _exit(row: EndedView) -> str:
    """The exit code. For a cancelled job it is only that of its signal, so it is left out."""
    if row.exit_status is None or row.state == "cancelled":
        return "-"
    return str(row.exit_status)


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


def report_columns(rows: Sequence[ReportRow], by: str) -> list[Column]:
    return [
        Column(
            TITLES[by], [safe(row.key) or "all" for row in rows], 99, least=4, right=by == "job"
        ),
        Column("NAME", [safe(row.name) or "-" for row in rows], 80, least=8),
        Column("OWNER", [safe(row.user) or "-" for row in rows], 60, least=4),
        Column("JOBS", ["-" if by == "job" else str(row.jobs) for row in rows], 70, right=True),
        Column("GPU H", [hours(row.gpu_hours) for row in rows], 98, right=True),
        Column("GOODPUT H", [hours(row.goodput_hours) for row in rows], 90, right=True),
        Column("WORTH", [percent(row.efficiency) for row in rows], 75, right=True),
        Column("SHARE", [percent(row.share) for row in rows], 85, right=True),
        Column("FAIR", [percent(row.fair_share) for row in rows], 84, right=True),
        Column("WAIT", [duration(row.wait_median_seconds) for row in rows], 65, right=True),
        Column(
            "P95",
            [duration(row.wait_p95_seconds) if row.waits > 1 else "-" for row in rows],
            64,
            right=True,
        ),
        Column("RESTARTS", [_restarts(row) for row in rows], 40, right=True),
        Column("COST H", [hours(row.restart_gpu_hours or None) for row in rows], 45, right=True),
        Column(
            "GAIN H",
            [hours_of(row.gained_hours, row.promised_hours) for row in rows],
            48,
            right=True,
        ),
        Column("FAILED H", [hours(row.failed_gpu_hours or None) for row in rows], 50, right=True),
        Column("RHO", [number(row.rho_median) for row in rows], 35, right=True),
        Column(
            "MAX", [number(row.rho_max) if row.rhos > 1 else "-" for row in rows], 34, right=True
        ),
    ]


def hours_of(gained: float, promised: float) -> str:
    """What growths saved, and how much of it was promised: `1.20 of 1.50`."""
    if not promised:
        return "-"
    return f"{hours(gained)} of {hours(promised)}"


def _restarts(row: ReportRow) -> str:
    """How many, and how many of them by a standby."""
    if row.warm_restarts:
        return f"{row.restarts}, {row.warm_restarts} warm"
    return str(row.restarts or "-")


def csv_text(rows: Sequence[msgspec.Struct], kind: type[msgspec.Struct]) -> str:
    """A line of names, and one for each row, with the names and units of the JSON. Unknown values
    are empty cells."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = kind.__struct_fields__
    writer.writerow(names)
    writer.writerows([_csv_cell(getattr(row, name)) for name in names] for row in rows)
    return stream.getvalue()


def _csv_cell(value: object) -> object:
    if isinstance(value, float):
        if abs(value) < 1e6:
            return f"{value:.6g}"
        return f"{value:.1f}"
    if isinstance(value, str):
        return safe(value)
    return value
