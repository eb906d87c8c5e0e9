"""Records of ended jobs and the journal -> the answers of `gpq history` and `gpq report`: who had
what in a window. Reads only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec

from gpq.control import event_text
from gpq.control.selectors import is_selector, resolve
from gpq.core.accounting import accrual, usage
from gpq.core.accounting import report as reports
from gpq.core.accounting.usage import Record
from gpq.core.model.jobs import HOLDS_DEVICES, TERMINAL, JobState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.errors import NotFound, UsageError
from gpq.ports import History, Wanted
from gpq.rpc import account_answers, requests
from gpq.rpc.codec import ROWS, Stream, pages

HOUR: Seconds = 3600.0
DAY: Seconds = 24 * HOUR
LATEST: Seconds = 4_102_444_800.0  # the year 2100
REPORTED = 10_000  # ended jobs, the latest, in a report that does not say since when
MAX_COMMAND = 200  # characters of the command in a row


def report(
    request: requests.Report, snapshot: Snapshot, past: History, now: Seconds
) -> account_answers.ReportView:
    """The snapshot is read before the store, so a job that ends in between counts as ended. Raises
    UsageError."""
    if request.by not in reports.BY:
        raise UsageError(
            f"there is no report by {request.by}", f"use one of {', '.join(reports.BY)}"
        )
    check_moments(request)
    live_records = {
        job.id: replace(usage.record_of(job), account=accrual.so_far(job, now))
        for job in snapshot.jobs.values()
    }
    begin, earlier = request.since, 0
    latest = past.ids(Wanted(until=request.until, limit=REPORTED)) if begin is None else []
    if len(latest) == REPORTED:
        first_records = past.records(Wanted(latest[-1:]))
        if first_records:  # it was not removed just now
            begin = first_records[0].ended_at
            earlier = past.count(Wanted(until=begin))
    ended_records = {record.id: record for record in past.records(Wanted(since=begin))}
    records = live_records | ended_records
    first = min((record.submitted_at for record in records.values()), default=now - DAY)
    since, until = first, math.nextafter(now, math.inf)  # includes what ends at this moment
    if begin is not None and (earlier or request.since is not None):
        since = max(first, begin)
    if request.until is not None:
        until = min(request.until, until)
    until = max(until, since)
    edges = cut(since, until, DAY if request.by == "day" else None)
    if len(edges) < 2:  # nothing has happened yet
        summary = reports.report(
            {}, usage.Journal(), (since, since + 1.0), request.by, now, snapshot.config
        )
        return _view(request, summary, [since, until], records, now, earlier)
    running_attempts = {
        (job.id, job.attempt): accrual.tally(job, now)
        for job in snapshot.jobs.values()
        if job.state in HOLDS_DEVICES
    }
    # somebody may set the clock
    journal = usage.read(past.journal(usage.KINDS, first - DAY), now, running_attempts)
    summary = reports.report(records, journal, edges, request.by, now, snapshot.config)
    return _view(request, summary, edges, records, now, earlier)


def _view(
    request: requests.Report,
    summary: reports.Report,
    edges: Sequence[Seconds],
    records: Mapping[JobId, Record],
    now: Seconds,
    earlier: int,
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
    bounds = (0.0, *reports.RHO_EDGES)
    bars = zip(bounds, (*reports.RHO_EDGES, None), summary.rho_counts, strict=True)
    return account_answers.ReportView(
        since=event_text.stamp(edges[0]),
        until=event_text.stamp(edges[-1]),
        by=request.by,
        rows=_rows(request.by, summary, edges, records),
        total=_row("", summary.total, None),
        pieces=pieces,
        rho_bars=[account_answers.RhoBar(*bar) for bar in bars],
        now=event_text.stamp(now),
        earlier=earlier,
    )


def _rows(
    by: str, summary: reports.Report, edges: Sequence[Seconds], records: Mapping[JobId, Record]
) -> list[account_answers.ReportRow]:
    """Days in their order. All other rows by GPU hours, most first."""
    if by == "day":
        return [
            _row(datetime.fromtimestamp(edges[int(day)]).date().isoformat(), figures, None)
            for day, figures in sorted(summary.rows.items(), key=lambda pair: int(pair[0]))
        ]
    rows = []
    fair = sum(figures.fair or 0.0 for figures in summary.rows.values())
    for key, figures in sorted(
        summary.rows.items(), key=lambda pair: (-pair[1].held, len(pair[0]), pair[0])
    ):
        row = _row(key, figures, records.get(JobId(int(key))) if by == "job" else None)
        if figures.fair is not None:
            row = msgspec.structs.replace(
                row,
                share=_part(figures.held, summary.total.held),
                fair_share=_part(figures.fair, fair),
            )
        rows.append(row)
    return rows


def _part(amount: float, total: float) -> float:
    return amount / total if total else 0.0


def _row(key: str, figures: reports.Figures, record: Record | None) -> account_answers.ReportRow:
    return account_answers.ReportRow(
        key=key,
        user=record.spec.user if record is not None else "",
        name=record.spec.name if record is not None else "",
        jobs=len(figures.jobs),
        completed=figures.ended[JobState.COMPLETED],
        failed=figures.ended[JobState.FAILED],
        cancelled=figures.ended[JobState.CANCELLED],
        timeout=figures.ended[JobState.TIMEOUT],
        gpu_hours=figures.held / HOUR,
        goodput_hours=hours(figures.worth),
        known_gpu_hours=figures.known / HOUR,
        efficiency=figures.efficiency,
        share=None,
        fair_share=None,
        waits=len(figures.waits),
        wait_median_seconds=reports.quantile(figures.waits, 0.5),
        wait_p95_seconds=reports.quantile(figures.waits, 0.95),
        restarts=figures.restarts,
        warm_restarts=figures.warm,
        promised_hours=figures.growths.promised / HOUR,
        gained_hours=figures.growths.measured / HOUR,
        restart_gpu_hours=figures.restarting / HOUR,
        failed_gpu_hours=figures.failed / HOUR,
        rhos=len(figures.rhos),
        rho_median=reports.quantile(figures.rhos, 0.5),
        rho_max=max(figures.rhos, default=None),
    )


# -- pieces of the window --------------------------------------------------------------------------


def cut(since: Seconds, until: Seconds, step: Seconds | None = None) -> list[Seconds]:
    """The window, cut at full local hours (up to two days), days (up to two months), Mondays (up to
    two years) or firsts of months. If `step` is a day, it is always cut at days. A window without
    length has a single edge."""
    if until <= since:
        return [since]
    at, next_edge = _grid(datetime.fromtimestamp(since), until - since, step)
    edges = [since]
    while (at := next_edge(at)).timestamp() < until:
        if at.timestamp() > edges[-1]:  # an hour may come twice
            edges.append(at.timestamp())
    return [*edges, until]


def _grid(
    moment: datetime, span: Seconds, step: Seconds | None
) -> tuple[datetime, Callable[[datetime], datetime]]:
    """(the last edge at or before `moment`, a function from one edge to the next)."""
    midnight = datetime(moment.year, moment.month, moment.day)
    if step is None and span <= 2 * DAY:
        hour = moment.replace(minute=0, second=0, microsecond=0)
        return hour, lambda edge: edge + timedelta(hours=1)
    if step is not None or span <= 62 * DAY:
        return midnight, lambda edge: edge + timedelta(days=1)
    if span <= 731 * DAY:
        monday = midnight - timedelta(days=moment.weekday())
        return monday, lambda edge: edge + timedelta(days=7)
    return midnight.replace(day=1), lambda edge: (edge + timedelta(days=32)).replace(day=1)


def history(
    request: requests.History, snapshot: Snapshot, past: History, now: Seconds
) -> account_answers.HistoryList | Stream:
    """Raises UsageError and NotFound."""
    for state in request.states:
        if state not in TERMINAL:
            terminal_states = ", ".join(sorted(TERMINAL))
            raise UsageError(
                f"no job ends as `{state}`",
                f"use one of {terminal_states}. `gpq status` lists jobs in other states",
            )
    if request.limit < 0:
        raise UsageError("the limit is negative", "use 0 for no limit, or a larger number")
    check_moments(request)
    ids, names, notes = _ids_and_names(request.jobs, snapshot, past)
    criteria = Wanted(
        ids,
        names,
        request.user,
        request.states,
        request.since,
        request.until,
        request.limit or None,
    )
    job_ids = past.ids(criteria)[::-1]
    hidden = max(past.count(criteria) - len(job_ids), 0) if request.limit else 0
    answer = account_answers.HistoryList([], hidden, notes, event_text.stamp(now))
    if len(job_ids) > ROWS:
        return Stream(answer, (_ended_rows(past, page) for page in pages(job_ids)))
    return msgspec.structs.replace(answer, jobs=_ended_rows(past, job_ids))


def _ended_rows(past: History, job_ids: Sequence[JobId]) -> list[account_answers.EndedView]:
    """In the order of their ends."""
    records = past.records(Wanted(job_ids))[::-1] if job_ids else []
    return list(map(ended, records))


def _ids_and_names(
    selectors: Sequence[str], snapshot: Snapshot, past: History
) -> tuple[list[JobId], list[str], list[str]]:
    """(ids, names, and a line for each job that has not ended)."""
    if not selectors:
        return [], [], []
    job_ids = resolve(selectors, snapshot, past)
    ended_ids = [name for name in job_ids if name not in snapshot.jobs]
    notes = [f"job {name} has not ended" for name in job_ids if name in snapshot.jobs]
    words = [word.strip() for selector in selectors for word in selector.split(",")]
    names = [word for word in words if not is_selector(word)]
    if not ended_ids and not (names and past.count(Wanted(names=names))):
        problem = notes[0] if len(notes) == 1 else "none of these jobs has ended"
        raise NotFound(problem, "`gpq status` lists running and waiting jobs")
    return ended_ids, names, notes


def ended(record: Record) -> account_answers.EndedView:
    account, failed = record.account, record.state is JobState.FAILED
    mean_gpus = float(record.last_replicas)
    if record.run_seconds > 0:
        mean_gpus = record.service / record.run_seconds
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
        gpus=mean_gpus,
        gpu_hours=record.service / HOUR,
        goodput_hours=hours(account.worth),
        restarts=record.restarts,
        restart_gpu_hours=hours(account.restart_cost),
        failed_gpu_hours=hours(account.failed) if account.restart_cost is not None else None,
        rho=account.rho,
        command=event_text.command_line(record.spec.argv, MAX_COMMAND),
    )


def check_moments(request: requests.History | requests.Report) -> None:
    for moment in (request.since, request.until):
        if moment is not None and not 0 <= moment <= LATEST:
            raise UsageError("that time is out of range", "use a time between 1970 and 2100")


def hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / HOUR
