"""`gpq edit`: changes jobs."""

from __future__ import annotations

from inspect import Parameter
from typing import Any

from msgspec.structs import replace

from gpq.cli.jobs import hold_release_requeue, submit
from gpq.cli.typer_app import Jobs, Json, frame
from gpq.client.connection import call
from gpq.options import edit_request
from gpq.rpc import job_answers
from gpq.rpc.submit_table import BY_NAME, Option

app = frame()

# the help of each option. The rest is as in `gpq submit`
HELP = {
    "name": "New name.",
    "priority": "Higher priority starts first.",
    "gpus": "Only for jobs that wait or can be resized.",
    "time": "Limit of the run time, or none.",
    "retries": "Restarts after a failure, in total.",
    "tag": "Add a label. Can be repeated.",
    "untag": "Remove a label. Can be repeated.",
    "after": "Wait for these jobs instead, or none.",
    "begin": "Do not start before this time, or now.",
    "gpu_type": "Part of the GPU's name, or none.",
    "min_gpu_memory": "Minimum memory of each GPU, or none.",
    "max_batch_size": "Largest batch size.",
    "background": "Use only GPUs that nobody else wants, or not.",
    "array_limit": "How many jobs of the array may run at once, or none for no limit.",
    "notify": "Where to send notifications from now on, as in `gpq submit`, or none.",
    "notify_on": "When to notify: start, restart, retry, fail, end.",
    "accept": "Ignore a habit that gpq suspects, or none to ignore none. Can be repeated.",
}
ROWS = {
    **BY_NAME,
    "untag": Option("untag", "tags", "", "NAME"),
    "array_limit": Option("array_limit", "text", "", "N"),
}


def _parameter(name: str) -> Parameter:
    """An option that changes nothing if it is left out."""
    row = replace(ROWS[name], help=HELP[name])
    if row.kind == "flag":
        flags = f"{row.flag}/--no-{row.name}"
        return submit.parameter(row, bool | None, None, flags)
    typed = "int | None" if row.typed == "int" else row.typed
    return submit.parameter(row, *submit.TYPES[typed])


def _with_options(command: submit.F) -> submit.F:
    keyword = submit.KEYWORD
    jobs = Parameter("jobs", keyword, annotation=Jobs)
    json = Parameter("json", keyword, default=False, annotation=Json)
    return submit.declared(command, [jobs, *map(_parameter, HELP), json])


@app.command()
@_with_options
def edit(jobs: list[str], *, json: bool, **texts: Any) -> int:
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
    answer = call(edit_request.request(jobs, **options), job_answers.Changed)
    return hold_release_requeue.tell(answer, "changed", as_json=json)
