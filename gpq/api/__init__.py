"""What `import gpq` offers: the queue from Python, the command line's equal. Builds what it asks by
the same code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpq.api.handles import Array, Job, LogPiece, ask, cancelled, waited
from gpq.api.option_types import Options
from gpq.api.options import Duration, Gpus, Moment, Selector, Word, past, selector
from gpq.api.servers import add_node, drain, remove_node, reserve, undrain, unreserve, yield_node
from gpq.api.submitting import submit, submit_array
from gpq.api.surroundings import (
    daemon_log,
    daemon_status,
    notify_targets,
    notify_test,
    settings,
    start_daemon,
    stop_daemon,
    top,
)
from gpq.errors import UsageError
from gpq.options.parsing import datetimes
from gpq.options.query import is_query
from gpq.rpc import requests
from gpq.rpc.account_answers import HistoryList, ReportView
from gpq.rpc.daemon_answers import DaemonInfo, TopView
from gpq.rpc.job_answers import CancelResult, DryRun, Explanation, JobDetail, JobList, JobView
from gpq.rpc.node_answers import Drained, NodeList, NodeView, Reserved, Yielded

__all__ = [
    "Array", "CancelResult", "DaemonInfo", "Drained", "DryRun", "Duration", "Explanation", "Gpus",
    "HistoryList", "Job", "JobDetail", "JobList", "JobView", "LogPiece", "Moment", "NodeList",
    "NodeView", "Options", "ReportView", "Reserved", "Selector", "TopView", "Word", "Yielded",
    "add_node", "cancel", "daemon_log", "daemon_status", "drain", "history", "job", "jobs", "nodes",
    "notify_targets", "notify_test", "remove_node", "report", "reserve", "settings", "start_daemon",
    "status", "stop_daemon", "submit", "submit_array", "top", "undrain", "unreserve", "wait",
    "yield_node",
]  # fmt: skip

EVERY = 1 << 40  # more than there can be


def status(
    *jobs: Selector,
    user: str = "",
    state: str | Sequence[str] = (),
    recent: int = 20,
    all: bool = False,
) -> JobList:
    """The queue, as `gpq status --json`: live jobs and the `recent` latest that ended, or those
    that are named.

    Conditions as on the command line: gpq.status("user=ana tag~cifar sort=-goodput"). `user` and
    `state` leave only that user's jobs and those in a state (or several); `all`: whatever there
    ever was.
    """
    if recent < 0:
        raise UsageError(f"--recent {recent} is below 0", "write a whole number, 0 or above")
    states = [state] if isinstance(state, str) and state else list(state)
    selectors = _named(jobs)
    query = [word for word in selectors if is_query(word)]
    selectors = [word for word in selectors if word not in query]
    return ask(requests.Status(selectors, EVERY if all else recent, user, states, query), JobList)


def jobs(
    *jobs: Selector,
    user: str = "",
    state: str | Sequence[str] = (),
    recent: int = 20,
    all: bool = False,
) -> list[Job]:
    """The jobs that `status` lists, as objects."""
    return [
        Job(row.id) for row in status(*jobs, user=user, state=state, recent=recent, all=all).jobs
    ]


def job(selector: Selector = "@") -> Job:
    """The newest job that is meant: "@" is the last of yours. Raises gpq.errors.NotFound."""
    return Job(ask(requests.Show(_named([selector])[0]), JobDetail).job.id)


def nodes(*names: str) -> NodeList:
    """The servers and their GPUs, as `gpq nodes --json`: the daemon's last knowledge and its
    age."""
    return ask(requests.Nodes(list(names)), NodeList)


def history(
    *jobs: Selector,
    user: str = "",
    state: str | Sequence[str] = (),
    since: Moment = "",
    until: Moment = "",
    number: int = 0,
) -> HistoryList:
    """The jobs that ended, the latest last, as `gpq history --json`: waits, GPU hours, what they
    were worth (hours, seconds).

    `since`, `until`: when they ended, as "7d", "yesterday", a datetime, or a timedelta ago.
    `number`: the latest so many; 0 is all. Raises gpq.errors.UsageError for a moment that is none.
    """
    if number < 0:
        raise UsageError(f"--number {number} is below 0", "write a whole number, 0 for all")
    states = [state] if isinstance(state, str) and state else list(state)
    begin, end = datetimes.window(past(since, "--since"), past(until, "--until"))
    return ask(requests.History(_named(jobs), user, states, begin, end, number), HistoryList)


def report(
    *, since: Moment = "", until: Moment = "", by: Literal["user", "job", "server", "day"] = "user"
) -> ReportView:
    """GPU hours, what they were worth, waits, restarts and fairness of a window, as `gpq report
    --json`. Raises as `history`."""
    begin, end = datetimes.window(past(since, "--since"), past(until, "--until"))
    return ask(requests.Report(begin, end, by), ReportView)


def wait(*jobs: Selector, timeout: Duration | None = None) -> int:
    """Block until all have ended; the first exit status that is not 0, by number. Raises as
    `Job.wait`."""
    if not jobs:
        raise UsageError(
            "no job to wait for is named", 'gpq.wait(42), or gpq.wait("all") for every live one'
        )
    return waited(_named(jobs), timeout)


def cancel(*jobs: Selector, timeout: Duration = "3m") -> CancelResult:
    """Stop jobs for good, as `Job.cancel`, several at once."""
    if not jobs:
        raise UsageError(
            "no job to cancel is named", 'gpq.cancel(42), or gpq.cancel("all") for every one'
        )
    return cancelled(_named(jobs), timeout)


def _named(jobs: Sequence[Selector]) -> list[str]:
    return [selector(job) for job in jobs]
