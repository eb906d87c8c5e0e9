"""`gpq hold`, `release`, `requeue` and `edit`. They change what the queue does with a job, and
return at once."""

from __future__ import annotations

from inspect import Parameter
from typing import Annotated, Any

import typer

from gpq.cli import output
from gpq.cli.jobs import status, status_fast, submit
from gpq.cli.typer_app import Jobs, Json, frame
from gpq.client.connection import call
from gpq.core.model.jobs import JobState
from gpq.errors import NotFound, UsageError
from gpq.options import job_spec
from gpq.rpc import job_answers, requests
from gpq.rpc.submit_table import Option, edit_options
from gpq.views.queue import is_query

hold = frame()
release = frame()
requeue = frame()
edit = frame()


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
def _requeue(
    jobs: Annotated[list[str] | None, status.JOBS] = None,
    state: Annotated[list[str] | None, status.STATE] = None,
    fresh: Annotated[
        bool | None,
        typer.Option(
            "--fresh/--no-fresh",
            help="Start jobs that have ended from the beginning, or from their checkpoints.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Queue jobs again. They resume from their newest checkpoints.

    A job that has ended keeps its id, its settings, its place in an array, and the jobs that wait
    for it. Its time limit counts again from zero. Of an array or a range, gpq leaves the jobs that
    completed. If you name such a job alone, it starts from the beginning. The old checkpoint folder
    then stays under another name, as with --fresh. A job that runs is stopped first, if it can save
    a checkpoint.

    \b
    Example:
      gpq requeue 42
      gpq requeue 42 --fresh
      gpq requeue "array=7 state=failed,timeout"
    """
    names = _select(list(jobs or []), list(state or []))
    answer = call(requests.Requeue(names, fresh), job_answers.Changed)
    return tell(answer, "requeued", as_json=json)


def _select(words: list[str], states: list[str]) -> list[str]:
    """The selectors, or the ids of the jobs that match a query."""
    query = [word for word in words if is_query(word)]
    if states:
        query.append(f"state={','.join(states)}")
    if not query:
        if not words:
            raise UsageError("requeue needs a job", "e.g. gpq requeue 42")
        return words
    selectors = [word for word in words if not is_query(word)]
    request = requests.Status(selectors, recent=status_fast.EVERY, query=query)
    rows = call(request, job_answers.JobList).jobs
    if not any("state" in word for word in query):
        rows = [row for row in rows if row.state != JobState.COMPLETED]
    if not rows:
        raise NotFound("no job matches", "`gpq status` takes the same words and shows what matches")
    return [str(row.id) for row in rows]


def _parameter(row: Option) -> Parameter:
    """An option that changes nothing if it is left out."""
    if row.kind == "flag":
        flags = f"{row.flag}/--no-{row.name}"
        return submit.parameter(row, bool | None, None, flags)
    typed = "int | None" if row.typed == "int" else row.typed
    return submit.parameter(row, *submit.TYPES[typed])


def _with_options(command: submit.F) -> submit.F:
    """Add the options that `gpq edit` has in the table of `gpq submit`."""
    keyword = submit.KEYWORD
    jobs = Parameter("jobs", keyword, annotation=Jobs)
    json = Parameter("json", keyword, default=False, annotation=Json)
    return submit.declare(command, [jobs, *map(_parameter, edit_options()), json])


@edit.command("edit")
@_with_options
def _edit(jobs: list[str], *, json: bool, **texts: Any) -> int:
    """Change jobs.

    While a job waits, all of these can change, and for a job that has ended, for its next start.
    While it runs, you can change its name, priority, limits and notifications, and its GPUs if gpq
    can resize it.

    \b
    Example:
      gpq edit 42 --priority 10 --time 12h
      gpq edit 42 --gpus 2-8
      gpq edit 42-49 --after none --begin now
      gpq edit 42 --notify desktop --notify-on fail,end
      gpq edit 42 --accept own-next
    """
    options = {name: text for name, text in texts.items() if text is not None}
    answer = call(job_spec.edit_request(jobs, **options), job_answers.Changed)
    return tell(answer, "changed", as_json=json)


def tell(answer: job_answers.Changed, outcome: str, *, as_json: bool) -> int:
    """Print the answer. Returns 0, or 5 if nothing changed."""
    lines = answer.messages or [f"job {job} {outcome}" for job in answer.jobs]
    output.confirm(*lines, result=answer if as_json else None)
    if not as_json:
        output.note(*answer.unchanged, *answer.warnings)
    return 0 if answer.jobs or not answer.unchanged else 5
