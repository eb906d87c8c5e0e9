"""Records of ended jobs -> the answer of `gpq history`. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

from gpq.control import event_text
from gpq.control.selectors import is_selector, resolve
from gpq.core.accounting.usage import Record
from gpq.core.model.jobs import TERMINAL, JobState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.errors import NotFound, UsageError
from gpq.ports import History, Wanted
from gpq.rpc import account_answers, requests

HOUR: Seconds = 3600.0
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
                f"no job ends as `{state}`",
                f"use one of {terminal_states}. `gpq status` lists jobs in other states",
            )
    if request.limit < 0:
        raise UsageError("the limit is negative", "use 0 for no limit, or a larger number")
    check_moments(request)
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
    """(ids, names, and a line for each job that has not ended)."""
    if not selectors:
        return [], [], []
    job_ids = resolve(selectors, snapshot, past)
    live_ids = [name for name in job_ids if name in snapshot.jobs]
    ended_ids = [name for name in job_ids if name not in snapshot.jobs]
    names, notes = _names(selectors), [f"job {name} has not ended" for name in live_ids]
    if not ended_ids and not _has_bearers(names, past):
        problem = notes[0] if len(notes) == 1 else "none of these jobs has ended"
        raise NotFound(problem, "`gpq status` lists running and waiting jobs")
    return ended_ids, names, notes


def _has_bearers(names: Sequence[str], past: History) -> bool:
    """Has a job with one of these names ended?"""
    return bool(names) and past.count(Wanted(names=names)) > 0


def _names(selectors: Sequence[str]) -> list[str]:
    words = [word.strip() for selector in selectors for word in selector.split(",")]
    return [word for word in words if not is_selector(word)]


def ended(record: Record) -> account_answers.EndedView:
    account, failed = record.account, record.state is JobState.FAILED
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
        gpus=_mean_gpus(record),
        gpu_hours=record.service / HOUR,
        goodput_hours=hours(account.worth),
        restarts=record.restarts,
        restart_gpu_hours=hours(account.restart_cost),
        failed_gpu_hours=hours(account.failed) if account.restart_cost is not None else None,
        rho=account.rho,
        command=event_text.command_line(record.spec.argv, MAX_COMMAND),
    )


def _mean_gpus(record: Record) -> float:
    if record.run_seconds <= 0:
        return float(record.last_replicas)
    return record.service / record.run_seconds


def check_moments(request: requests.History | requests.Report) -> None:
    for moment in (request.since, request.until):
        if moment is not None and not 0 <= moment <= LATEST:
            raise UsageError("that time is out of range", "use a time between 1970 and 2100")


def hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / HOUR
