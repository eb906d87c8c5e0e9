"""What `import gpq` offers: the queue from Python, on a par with the command line.

Both build their requests with the same code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpq.api.handles import Array, Job, LogPiece, ask, cancel_jobs, wait_for_jobs
from gpq.api.option_types import Options
from gpq.api.options import Duration, Gpus, Moment, Selector, Word, past, selector
from gpq.api.servers import (
    add_node,
    daemon_log,
    daemon_status,
    drain,
    notify_targets,
    notify_test,
    remove_node,
    reserve,
    settings,
    start_daemon,
    stop_daemon,
    top,
    undrain,
    unreserve,
    yield_node,
)
from gpq.api.submitting import submit, submit_array
from gpq.errors import UsageError
from gpq.options import datetimes
from gpq.rpc import requests
from gpq.rpc.account_answers import HistoryList, ReportView
from gpq.rpc.daemon_answers import DaemonInfo, TopView
from gpq.rpc.job_answers import CancelResult, DryRun, Explanation, JobDetail, JobList, JobView
from gpq.rpc.node_answers import Drained, NodeList, NodeView, Reserved, Yielded
from gpq.views.queue import is_query

__all__ = [
    "Array", "CancelResult", "DaemonInfo", "Drained", "DryRun", "Duration", "Explanation", "Gpus",
    "HistoryList", "Job", "JobDetail", "JobList", "JobView", "LogPiece", "Moment", "NodeList",
    "NodeView", "Options", "ReportView", "Reserved", "Selector", "TopView", "Word", "Yielded",
    "add_node", "cancel", "daemon_log", "daemon_status", "drain", "history", "job", "jobs", "nodes",
    "notify_targets", "notify_test", "remove_node", "report", "reserve", "settings", "start_daemon",
    "status", "stop_daemon", "submit", "submit_array", "top", "undrain", "unreserve", "wait",
    "yield_node",
]  # fmt: skip

EVERY = 1 << 40  # more jobs than a queue can hold


def status(
    *jobs: Selector,
    user: str = "",
    state: str | Sequence[str] = (),
    recent: int = 20,
    all: bool = False,
) -> JobList:
    """The queue, as `gpq status --json` prints it.

    Without `jobs`, the answer holds all live jobs and the `recent` latest that ended. Queries work
    as on the command line: ``gpq.status("user=ana tag~cifar sort=-goodput")``. `user` and `state`
    keep only the jobs of that user and in that state, or in one of several. `all` includes every
    job that ever ended.
    """
    if recent < 0:
        raise UsageError(f"invalid --recent {recent}: below 0", "give a whole number of 0 or more")
    states = [state] if isinstance(state, str) and state else list(state)
    selectors = _selectors(jobs)
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
    """The jobs that `status` lists, as `Job` objects."""
    return [
        Job(row.id) for row in status(*jobs, user=user, state=state, recent=recent, all=all).jobs
    ]


def job(selector: Selector = "@") -> Job:
    """The newest job that the selector names. "@" is the job submitted last.

    Raises gpq.errors.NotFound if there is none.
    """
    return Job(ask(requests.Show(_selectors([selector])[0]), JobDetail).job.id)


def nodes(*names: str) -> NodeList:
    """The servers and their GPUs, as `gpq nodes --json` prints them.

    The answer is what the daemon last heard from each server, and how old that is.
    """
    return ask(requests.Nodes(list(names)), NodeList)


def history(
    *jobs: Selector,
    user: str = "",
    state: str | Sequence[str] = (),
    since: Moment = "",
    until: Moment = "",
    number: int = 0,
) -> HistoryList:
    """The jobs that ended, the latest last, as `gpq history --json` prints them.

    Each row has the job's waits, its GPU hours and what they were worth. `since` and `until` limit
    when the jobs ended: "7d", "yesterday", a datetime, or a timedelta for so long ago. `number`
    keeps the latest N, and 0 keeps all. Raises gpq.errors.UsageError for an invalid moment.
    """
    if number < 0:
        raise UsageError(f"invalid --number {number}: below 0", "give a whole number, or 0 for all")
    states = [state] if isinstance(state, str) and state else list(state)
    begin, end = datetimes.window(past(since, "--since"), past(until, "--until"))
    return ask(requests.History(_selectors(jobs), user, states, begin, end, number), HistoryList)


def report(
    *, since: Moment = "", until: Moment = "", by: Literal["user", "job", "server", "day"] = "user"
) -> ReportView:
    """GPU hours and what they were worth, waits, restarts and fairness, as `gpq report --json`
    prints them.

    `since` and `until` limit the time. Without `since`, it covers the 10,000 jobs that ended last,
    and `earlier` counts the others. Raises the same errors as `history`.
    """
    begin, end = datetimes.window(past(since, "--since"), past(until, "--until"))
    return ask(requests.Report(begin, end, by), ReportView)


def wait(*jobs: Selector, timeout: Duration | None = None) -> int:
    """Block until all jobs have ended. Returns the first exit code that is not 0, in the order of
    the ids, else 0.

    Raises the same errors as `Job.wait`.
    """
    if not jobs:
        raise UsageError(
            "no job to wait for", 'gpq.wait(42), or gpq.wait("all") for every live job'
        )
    return wait_for_jobs(_selectors(jobs), timeout)


def cancel(*jobs: Selector, timeout: Duration = "3m") -> CancelResult:
    """Stop several jobs permanently, as `Job.cancel` does."""
    if not jobs:
        raise UsageError(
            "no job to cancel", 'gpq.cancel(42), or gpq.cancel("all") for every live job'
        )
    return cancel_jobs(_selectors(jobs), timeout)


def _selectors(jobs: Sequence[Selector]) -> list[str]:
    return [selector(job) for job in jobs]
