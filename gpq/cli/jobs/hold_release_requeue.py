"""`gpq hold`, `release` and `requeue`. They change what the queue does with a job, and return at
once."""

from __future__ import annotations

from gpq.cli.shared import output
from gpq.cli.shared.typer_app import Jobs, Json, frame
from gpq.client.connection import call
from gpq.rpc import job_answers, requests

hold = frame()
release = frame()
requeue = frame()


@hold.command("hold")
def _hold(jobs: Jobs, json: Json = False) -> int:
    """Keep jobs from starting until you release them.

    A running job that can save a checkpoint is stopped first. gpq refuses to stop any other job.

    \b
    Example:
      gpq hold 42
    """
    return tell(call(requests.Hold(jobs), job_answers.Changed), "held", as_json=json)


@release.command("release")
def _release(jobs: Jobs, json: Json = False) -> int:
    """Let held jobs start.

    \b
    Example:
      gpq release 42
    """
    return tell(call(requests.Release(jobs), job_answers.Changed), "released", as_json=json)


@requeue.command("requeue")
def _requeue(jobs: Jobs, json: Json = False) -> int:
    """Stop running jobs and queue them again.

    They resume from their checkpoints. gpq refuses to stop a job that cannot save one. A job that
    has ended is submitted again under a new id, and starts from the beginning.

    \b
    Example:
      gpq requeue 42
    """
    return tell(call(requests.Requeue(jobs), job_answers.Changed), "requeued", as_json=json)


def tell(answer: job_answers.Changed, outcome: str, *, as_json: bool) -> int:
    """Print the answer. Returns 0, or 5 if nothing changed."""
    lines = answer.messages or [f"job {job} {outcome}" for job in answer.jobs]
    output.confirm(*lines, result=answer if as_json else None)
    if not as_json:
        output.note(*answer.unchanged, *answer.warnings)
    return 0 if answer.jobs or not answer.unchanged else 5
