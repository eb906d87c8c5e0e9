"""What `import gpq` offers: the queue from Python, the command line's equal. Builds what it asks by the same code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, overload

from gpq.api.handles import LOG, Job, LogPiece, Onlooker, ask, limit
from gpq.api.options import Duration, Gpus, Options, Word, asked
from gpq.cli import spec
from gpq.client import following
from gpq.client.connection import Lasting, call
from gpq.errors import UsageError
from gpq.rpc import messages
from gpq.rpc.messages import (
    CancelResult,
    DryRun,
    Explanation,
    JobDetail,
    JobList,
    JobView,
    NodeList,
    NodeView,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing has it from Python 3.11 on

__all__ = [
    "CancelResult", "DryRun", "Duration", "Explanation", "Gpus", "Job", "JobDetail", "JobList", "JobView", "LogPiece",
    "NodeList", "NodeView", "Options", "Selector", "Word", "cancel", "job", "jobs", "nodes", "status", "submit", "wait",
]  # fmt: skip

Selector = Job | int | str  # a job, its number, or as on the command line: "3-7,9", a name, "@", "all"
EVERY = 1 << 40  # more than there can be


@overload
def submit(
    *script: Word, command: Sequence[Word] | None = None, hold: bool = False, dry_run: Literal[False] = False,
    **options: Unpack[Options],
) -> Job: ...  # fmt: skip


@overload
def submit(
    *script: Word, command: Sequence[Word] | None = None, hold: bool = False, dry_run: Literal[True],
    **options: Unpack[Options],
) -> DryRun: ...  # fmt: skip


def submit(
    *script: Word,
    command: Sequence[Word] | None = None,
    gpus: Gpus = "",
    gpu_type: str = "",
    min_gpu_memory: str = "",
    name: str = "",
    tag: str | Sequence[str] = (),
    priority: int = 0,
    time: Duration = "",
    retries: int = 0,
    requeue_on_lost: Duration = "",
    rigid: bool = False,
    preemptible: bool = False,
    signal: str | int = "",
    grace: Duration = "",
    resume_args: str | Sequence[Word] = "",
    batch_size: int | None = None,
    max_batch_size: int | None = None,
    atomic_batch_size: str | int | tuple[int, int] = "",
    env: Mapping[str, object] | Sequence[str] = (),
    cwd: str | os.PathLike[str] = "",
    python: str | os.PathLike[str] = "",
    setup: str = "",
    snapshot: bool = False,
    hold: bool = False,
    dry_run: bool = False,
) -> Job | DryRun:
    """Queue a training script with its arguments, or with `command` a command as it is; durable when this returns.

    gpq.submit("train.py", "--epochs", 10, gpus=(1, 8), time="2h")
    gpq.submit(command=["./run.sh", "big"], gpus=2, env={"SEED": 1})

    Options as `gpq submit --help` explains them. Durations: "90m", a timedelta, or a number of seconds. `gpus`: 4, (1, 8),
    (2, None) for 2 to whatever pays, or "1-8". `min_gpu_memory`: "40G". `env`: {"A": "1", "B": None}; B goes along as it
    is here. `dry_run=True` queues nothing and answers what would happen. Working directory, environment and interpreter
    are this process's, chosen as for the command line. Raises gpq.errors.UsageError for what cannot be, Refused for what the
    daemon will not do, DaemonUnreachable where none can be started.
    """
    given = Options(
        gpus=gpus, gpu_type=gpu_type, min_gpu_memory=min_gpu_memory, name=name, tag=tag, priority=priority, time=time,
        retries=retries, requeue_on_lost=requeue_on_lost, rigid=rigid, preemptible=preemptible, signal=signal,
        grace=grace, resume_args=resume_args, batch_size=batch_size, max_batch_size=max_batch_size,
        atomic_batch_size=atomic_batch_size, env=env, cwd=cwd, python=python, setup=setup, snapshot=snapshot,
    )  # fmt: skip
    request = messages.Submit(spec.build(asked(script, command, given)), held=hold, dry_run=dry_run)
    if dry_run:
        return call(request, DryRun)
    answer = call(request, messages.Submitted)
    for warning in answer.warnings:
        LOG.warning("%s", warning)
    return Job(answer.id, tuple(answer.warnings))


def status(
    *jobs: Selector, user: str = "", state: str | Sequence[str] = (), recent: int = 20, all: bool = False
) -> JobList:
    """The queue, as `gpq status --json`: live jobs and the `recent` latest that ended, or those that are named.

    `user` and `state` leave only that user's jobs and those in a state (or several); `all`: whatever there ever was.
    """
    if recent < 0:
        raise UsageError(f"--recent {recent} is below 0", "write a whole number, 0 or above")
    states = [state] if isinstance(state, str) and state else list(state)
    return ask(messages.Status(_named(jobs), EVERY if all else recent, user, states), JobList)


def jobs(
    *jobs: Selector, user: str = "", state: str | Sequence[str] = (), recent: int = 20, all: bool = False
) -> list[Job]:
    """The jobs that `status` lists, as objects."""
    return [Job(row.id) for row in status(*jobs, user=user, state=state, recent=recent, all=all).jobs]


def job(selector: Selector = "@") -> Job:
    """The newest job that is meant: "@" is the last of yours. Raises gpq.errors.NotFound."""
    return Job(ask(messages.Show(_named([selector])[0]), JobDetail).job.id)


def nodes(*names: str) -> NodeList:
    """The servers and their GPUs, as `gpq nodes --json`: the daemon's last knowledge and its age."""
    return ask(messages.Nodes(list(names)), NodeList)


def wait(*jobs: Selector, timeout: Duration | None = None) -> int:
    """Block until all have ended; the first exit status that is not 0, by number. Raises as `Job.wait`."""
    seconds = None if timeout is None else limit(timeout)
    rows = following.until_ended(_named(jobs), seconds, Onlooker()).jobs
    return next((code for row in rows if (code := following.exit_status(row))), 0)


def cancel(*jobs: Selector, timeout: Duration = "3m") -> CancelResult:
    """Stop jobs for good, as `Job.cancel`, several at once."""
    if not jobs:
        raise UsageError("no job to cancel is named", 'gpq.cancel(42), or gpq.cancel("all") for every one')
    with Lasting(Onlooker().note) as daemon:
        return following.cancelled(daemon, _named(jobs), limit(timeout))


def _named(jobs: Sequence[Selector]) -> list[str]:
    return [str(int(each)) if isinstance(each, Job) else str(each) for each in jobs]
