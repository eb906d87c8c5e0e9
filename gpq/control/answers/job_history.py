"""Records and journal -> the answers of `gpq history` and `gpq report`. Reads, and changes
nothing."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta

import msgspec

from gpq.control import event_text
from gpq.control.selectors import is_selector, resolve
from gpq.core.accounting import accrual, sums, usage
from gpq.core.accounting import report as reports
from gpq.core.accounting.usage import Record
from gpq.core.model.jobs import HOLDS_DEVICES, TERMINAL, JobState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.errors import NotFound, UsageError
from gpq.ports import History, Wanted
from gpq.rpc import account_answers, requests

HOUR: Seconds = 3600.0
DAY: Seconds = 24 * HOUR
LATEST: Seconds = 4_102_444_800.0  # the year 2100
MAX_COMMAND = 200  # characters of the command in a row


def history(
    request: requests.History, snapshot: Snapshot, past: History, now: Seconds
) -> account_answers.HistoryList:
    """Raises UsageError and NotFound."""
    for state in request.states:
        if state not in TERMINAL:
            terminal_states = ", ".join(sorted(TERMINAL))
            raise UsageError(
                f"`{state}` is no state of a job that ended",
                f"known are {terminal_states}; `gpq status` has the others",
            )
    if request.limit < 0:
        raise UsageError("a limit is 0 (none) or more", "name another one")
    _check(request)
    ids, names, notes = _named(request.jobs, snapshot, past)
    criteria = Wanted(
        ids,
        names,
        request.user,
        request.states,
        request.since,
        request.until,
        request.limit or None,
    )
    records = past.records(criteria)[::-1]
    hidden = max(past.count(criteria) - len(records), 0) if request.limit else 0
    return account_answers.HistoryList(
        [ended(record) for record in records], hidden, notes, event_text.stamp(now)
    )


def _named(
    selectors: Sequence[str], snapshot: Snapshot, past: History
) -> tuple[list[JobId], list[str], list[str]]:
    """(ids, names, a line for each that has not ended)."""
    if not selectors:
        return [], [], []
    job_ids = resolve(selectors, snapshot, past)
    live_ids = [name for name in job_ids if name in snapshot.jobs]
    words = [word.strip() for selector in selectors for word in selector.split(",")]
    names = [word for word in words if not is_selector(word)]
    ended_ids = [name for name in job_ids if name not in snapshot.jobs]
    if not ended_ids and not (names and past.count(Wanted(names=names))):
        problem = (
            f"job {live_ids[0]} has not ended"
            if len(live_ids) == 1
            else "none of these jobs has ended"
        )
        raise NotFound(problem, "`gpq status` lists what runs and waits")
    return ended_ids, names, [f"job {name} has not ended" for name in live_ids]


def ended(record: Record) -> account_answers.EndedView:
    account, failed = record.account, record.state is JobState.FAILED
    command = shlex.join(record.spec.argv)
    return account_answers.EndedView(
        id=int(record.id),
        name=record.spec.name,
        user=record.spec.user,
        state=str(record.state),
        exit_status=record.exit.status if record.exit is not None else None,
        reason=event_text.exit_line(record.exit) if failed else "",
        submitted_at=event_text.stamp(record.submitted_at),
        ended_at=event_text.stamp(record.ended_at or record.submitted_at),
        wait_seconds=account.waited,
        run_seconds=record.run_seconds,
        gpus=record.service / record.run_seconds
        if record.run_seconds > 0
        else float(record.last_replicas),
        gpu_hours=record.service / HOUR,
        goodput_hours=_hours(account.worth),
        restarts=record.restarts,
        restart_gpu_hours=_hours(account.restart_cost),
        failed_gpu_hours=_hours(account.failed) if account.restart_cost is not None else None,
        rho=account.rho,
        command=command if len(command) <= MAX_COMMAND else command[: MAX_COMMAND - 3] + "...",
    )


def _check(request: requests.History | requests.Report) -> None:
    for moment in (request.since, request.until):
        if moment is not None and not 0 <= moment <= LATEST:
            raise UsageError("that moment is out of range", "name one between 1970 and 2100")


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / HOUR


# -- report ----------------------------------------------------------------------------------------


def report(
    request: requests.Report, snapshot: Snapshot, past: History, now: Seconds
) -> account_answers.ReportView:
    """`snapshot` is read before the store is: a job that ends meanwhile counts as it ended. Raises
    UsageError."""
    if request.by not in reports.BY:
        raise UsageError(
            f"there is no report by {request.by}", f"known are {', '.join(reports.BY)}"
        )
    _check(request)
    live = {
        job.id: replace(usage.record_of(job), account=accrual.so_far(job, now))
        for job in snapshot.jobs.values()
    }
    tallies = {
        (job.id, job.attempt): accrual.tally(job, now)
        for job in snapshot.jobs.values()
        if job.state in HOLDS_DEVICES
    }
    records = {
        **live,
        **{record.id: record for record in past.records(Wanted(since=request.since))},
    }
    first = min((record.submitted_at for record in records.values()), default=now - DAY)
    since = max(first, request.since if request.since is not None else first)
    horizon = math.nextafter(now, math.inf)  # what ends at this moment is in it
    until = max(horizon if request.until is None else min(request.until, horizon), since)
    edges = cut(since, until, DAY if request.by == "day" else None)
    if len(edges) < 2:  # nothing has been yet
        summary = reports.report(
            {}, usage.Journal(), (since, since + 1.0), request.by, now, by_user=True
        )
        return _view(request, summary, [since, until], records, now)
    # clocks are set at times
    journal = usage.read(past.journal(usage.KINDS, first - DAY), now, tallies)
    by_user = snapshot.config.by_user
    summary = reports.report(records, journal, edges, request.by, now, by_user=by_user)
    return _view(request, summary, edges, records, now)


def _view(
    request: requests.Report,
    summary: sums.Report,
    edges: Sequence[Seconds],
    records: Mapping[JobId, Record],
    now: Seconds,
) -> account_answers.ReportView:
    pieces = [
        account_answers.Piece(
            event_text.stamp(start),
            event_text.stamp(end),
            [
                account_answers.UserPiece(
                    user, part.held / HOUR, part.worth / HOUR, part.fair / HOUR
                )
                for user, part in piece.items()
            ],
        )
        for start, end, piece in zip(edges, edges[1:], summary.pieces, strict=False)
    ]
    bounds = (0.0, *sums.RHO_EDGES)
    bars = zip(bounds, (*sums.RHO_EDGES, None), summary.rho_counts, strict=True)
    return account_answers.ReportView(
        since=event_text.stamp(edges[0]),
        until=event_text.stamp(edges[-1]),
        by=request.by,
        rows=_rows(request.by, summary, edges, records),
        total=_row("", summary.total, None),
        pieces=pieces,
        rho_bars=[account_answers.RhoBar(*bar) for bar in bars],
        now=event_text.stamp(now),
    )


def _rows(
    by: str, summary: sums.Report, edges: Sequence[Seconds], records: Mapping[JobId, Record]
) -> list[account_answers.ReportRow]:
    """Days in their order; of all others those with the most GPU hours first."""
    if by == "day":
        days = sorted(
            ((int(key), figures) for key, figures in summary.rows.items()), key=lambda pair: pair[0]
        )
        return [
            _row(datetime.fromtimestamp(edges[day]).date().isoformat(), figures, None)
            for day, figures in days
        ]
    rows = []
    fair = sum(figures.fair or 0.0 for figures in summary.rows.values())
    for key, figures in sorted(
        summary.rows.items(), key=lambda pair: (-pair[1].held, len(pair[0]), pair[0])
    ):
        row = _row(key, figures, records.get(JobId(int(key))) if by == "job" else None)
        if figures.fair is not None:
            share = figures.held / summary.total.held if summary.total.held else 0.0
            row = msgspec.structs.replace(
                row, share=share, fair_share=figures.fair / fair if fair else 0.0
            )
        rows.append(row)
    return rows


def _row(key: str, figures: sums.Figures, record: Record | None) -> account_answers.ReportRow:
    return account_answers.ReportRow(
        key=key,
        user=record.spec.user if record is not None else "",
        name=record.spec.name if record is not None else "",
        jobs=figures.jobs,
        completed=figures.ended.get(JobState.COMPLETED, 0),
        failed=figures.ended.get(JobState.FAILED, 0),
        cancelled=figures.ended.get(JobState.CANCELLED, 0),
        timeout=figures.ended.get(JobState.TIMEOUT, 0),
        gpu_hours=figures.held / HOUR,
        goodput_hours=_hours(figures.worth),
        known_gpu_hours=figures.known / HOUR,
        efficiency=figures.efficiency,
        share=None,
        fair_share=None,
        waits=figures.waits,
        wait_median_seconds=figures.wait_median,
        wait_p95_seconds=figures.wait_p95,
        restarts=figures.restarts,
        restart_gpu_hours=figures.restarting / HOUR,
        failed_gpu_hours=figures.failed / HOUR,
        rhos=figures.rhos,
        rho_median=figures.rho_median,
        rho_max=figures.rho_max,
    )


# -- pieces of the window --------------------------------------------------------------------------


def cut(since: Seconds, until: Seconds, step: Seconds | None = None) -> list[Seconds]:
    """The window, cut at full local hours (up to two days), days (up to two months), Mondays (up to
    two years), or firsts of months; with `step` a day always at days. A single edge where the
    window has no length."""
    if until <= since:
        return [since]
    span = until - since
    next_edge: Callable[[datetime], datetime]
    at = datetime.fromtimestamp(since)
    if step is None and span <= 2 * DAY:
        at, next_edge = (
            at.replace(minute=0, second=0, microsecond=0),
            lambda moment: moment + timedelta(hours=1),
        )
    elif step is not None or span <= 62 * DAY:
        at, next_edge = _midnight(at.date()), lambda moment: moment + timedelta(days=1)
    elif span <= 731 * DAY:
        at, next_edge = (
            _midnight(at.date() - timedelta(days=at.weekday())),
            lambda moment: moment + timedelta(days=7),
        )
    else:
        at, next_edge = _midnight(at.date().replace(day=1)), _next_month
    edges = [since]
    while (at := next_edge(at)).timestamp() < until:
        if at.timestamp() > edges[-1]:  # an hour may come twice
            edges.append(at.timestamp())
    return [*edges, until]


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day)


def _next_month(moment: datetime) -> datetime:
    return _midnight((moment.date().replace(day=1) + timedelta(days=32)).replace(day=1))
