"""The tables of `gpq history` and `gpq report`."""

from __future__ import annotations

from collections.abc import Sequence

from gpq.rpc.account_answers import EndedView, HistoryList, ReportRow, ReportView
from gpq.views.plain import Column, Head, duration, ellipsis, moment, number, safe, table, wrapped
from gpq.views.queue import percent

TITLES = {"user": "USER", "job": "JOB", "server": "SERVER", "day": "DAY"}
HISTORY = (
    Head("ID", 99, right=True),
    Head("NAME", 80, least=8),
    Head("USER", 60, least=4),
    Head("STATE", 98),
    Head("EXIT", 50, right=True),
    Head("SUBMITTED", 20),
    Head("ENDED", 55),
    Head("WAIT", 65, right=True),
    Head("RAN", 75, right=True),
    Head("GPUS", 62, right=True),
    Head("GPU H", 85, right=True),
    Head("GOODPUT H", 70, right=True),
    Head("RESTARTS", 30, right=True),
    Head("COST H", 28, right=True),
    Head("RHO", 25, right=True),
    Head("REASON", 22, least=12),
)
# after the first column. On a narrow terminal, the columns with the lowest numbers are dropped
# first
REPORT = (
    Head("NAME", 80, least=8),
    Head("OWNER", 60, least=4),
    Head("JOBS", 70, right=True),
    Head("GPU H", 98, right=True),
    Head("GOODPUT H", 90, right=True),
    Head("WORTH", 75, right=True),
    Head("SHARE", 85, right=True),
    Head("FAIR", 84, right=True),
    Head("WAIT", 65, right=True),
    Head("P95", 64, right=True),
    Head("RESTARTS", 40, right=True),
    Head("COST H", 45, right=True),
    Head("GAIN H", 48, right=True),
    Head("FAILED H", 50, right=True),
    Head("RHO", 35, right=True),
    Head("MAX", 34, right=True),
)


def history(answer: HistoryList, limit: int, bar: str = "") -> list[str]:
    """The jobs in the order of their ends, and how many more there are."""
    text = ["no jobs ended in this time"]
    if answer.jobs:
        text = table(history_columns(answer.jobs), limit, mark=ellipsis())
    if answer.hidden:
        remark = (
            f"{answer.hidden} more ended earlier: gpq history -n {answer.hidden + len(answer.jobs)}"
        )
        text += wrapped(remark, limit)
    return text


def history_columns(rows: Sequence[EndedView]) -> list[Column]:
    cells = [_history_cells(row) for row in rows]
    return [head.column(cells) for head in HISTORY]


def _history_cells(row: EndedView) -> dict[str, str]:
    return {
        "ID": str(row.id),
        "NAME": safe(row.name) or "-",
        "USER": safe(row.user),
        "STATE": safe(row.state),
        "EXIT": _exit(row),
        "SUBMITTED": moment(row.submitted_at)[:16],
        "ENDED": moment(row.ended_at)[:16],
        "WAIT": duration(row.wait_seconds),
        "RAN": duration(row.run_seconds),
        "GPUS": _count(row.gpus),
        "GPU H": hours(row.gpu_hours),
        "GOODPUT H": hours(row.goodput_hours),
        "RESTARTS": str(row.restarts or "-"),
        "COST H": hours(row.restart_gpu_hours or None),
        "RHO": number(row.rho),
        "REASON": safe(row.reason),
    }


def _exit(row: EndedView) -> str:
    """The exit code. For a cancelled job it is only that of its signal, so it is left out."""
    if row.exit_status is None or row.state == "cancelled":
        return "-"
    return str(row.exit_status)


def _count(gpus: float) -> str:
    return f"{gpus:.1f}".removesuffix(".0")


def hours(value: float | None) -> str:
    """`0.02` and more. Less is `<0.01`."""
    if value is not None and 0 < value < 0.005:
        return "<0.01"
    return number(value)


def report(answer: ReportView, limit: int, bar: str = "") -> list[str]:
    """One row each, and the total."""
    head = wrapped(f"{moment(answer.since)[:16]} to {moment(answer.until)[:16]}", limit)
    if not answer.rows:
        return [*head, *wrapped("no job used a GPU, waited or ended in this time", limit)]
    rows = [*answer.rows, answer.total] if len(answer.rows) > 1 else answer.rows
    return [*head, "", *table(report_columns(rows, answer.by), limit, mark=ellipsis())]


def report_columns(rows: Sequence[ReportRow], by: str) -> list[Column]:
    cells = [_report_cells(row, by) for row in rows]
    first = Head(TITLES[by], 99, least=4, right=by == "job")
    return [head.column(cells) for head in (first, *REPORT)]


def _report_cells(row: ReportRow, by: str) -> dict[str, str]:
    return {
        TITLES[by]: safe(row.key) or "all",
        "NAME": safe(row.name) or "-",
        "OWNER": safe(row.user) or "-",
        "JOBS": "-" if by == "job" else str(row.jobs),
        "GPU H": hours(row.gpu_hours),
        "GOODPUT H": hours(row.goodput_hours),
        "WORTH": percent(row.efficiency),
        "SHARE": percent(row.share),
        "FAIR": percent(row.fair_share),
        "WAIT": duration(row.wait_median_seconds),
        "P95": duration(row.wait_p95_seconds) if row.waits > 1 else "-",
        "RESTARTS": _restarts(row),
        "COST H": hours(row.restart_gpu_hours or None),
        "GAIN H": hours_of(row.gained_hours, row.promised_hours),
        "FAILED H": hours(row.failed_gpu_hours or None),
        "RHO": number(row.rho_median),
        "MAX": number(row.rho_max) if row.rhos > 1 else "-",
    }


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
