"""`gpq edit`: changes jobs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpq.cli.jobs import hold_release_requeue
from gpq.cli.shared import submit_options
from gpq.cli.shared.typer_app import Jobs, Json, frame
from gpq.client.connection import call
from gpq.options import edit_request
from gpq.rpc import job_answers

app = frame()


def _option(*names: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


@app.command()
def edit(
    jobs: Jobs,
    name: Annotated[str, _option("--name", "-n", metavar="NAME", help="New name.")] = "",
    priority: Annotated[
        int | None, _option("--priority", metavar="N", help="Higher priority starts first.")
    ] = None,
    gpus: Annotated[
        str,
        _option("--gpus", "-g", metavar="N|A-B", help="Only for jobs that wait or can be resized."),
    ] = "",
    time: Annotated[
        str,
        _option("--time", "-t", metavar="DURATION", help="Limit of the run time, or none."),
    ] = "",
    retries: Annotated[
        int | None, _option("--retries", metavar="N", help="Restarts after a failure, in total.")
    ] = None,
    tag: Annotated[
        list[str] | None, _option("--tag", metavar="NAME", help="Add a label. Can be repeated.")
    ] = None,
    untag: Annotated[
        list[str] | None,
        _option("--untag", metavar="NAME", help="Remove a label. Can be repeated."),
    ] = None,
    after: Annotated[
        list[str] | None,
        _option(
            "--after", metavar="JOB[:ok|any|notok]", help="Wait for these jobs instead, or none."
        ),
    ] = None,
    begin: Annotated[
        str, _option("--begin", metavar="WHEN", help="Do not start before this time, or now.")
    ] = "",
    gpu_type: Annotated[
        str, _option("--gpu-type", metavar="TEXT", help="Part of the GPU's name, or none.")
    ] = "",
    min_gpu_memory: Annotated[
        str,
        _option("--min-gpu-memory", metavar="SIZE", help="Minimum memory of each GPU, or none."),
    ] = "",
    max_batch_size: submit_options.MaxBatchSize = None,
    background: Annotated[
        bool | None,
        _option(
            "--background/--no-background", help="Use only GPUs that nobody else wants, or not."
        ),
    ] = None,
    array_limit: Annotated[
        str,
        _option(
            "--array-limit",
            metavar="N",
            help="How many jobs of the array may run at once, or none for no limit.",
        ),
    ] = "",
    notify: Annotated[
        list[str] | None,
        _option(
            "--notify",
            metavar="NAME",
            help="Where to send notifications from now on, as in `gpq submit`, or none.",
        ),
    ] = None,
    notify_on: Annotated[
        str,
        _option(
            "--notify-on",
            metavar="WORD,...",
            help="When to notify: start, restart, retry, fail, end.",
        ),
    ] = "",
    accept: Annotated[
        list[str] | None,
        _option(
            "--accept",
            metavar="CODE",
            help="Ignore a habit that gpq suspects, or none to ignore none. Can be repeated.",
        ),
    ] = None,
    json: Json = False,
) -> int:
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
    request = edit_request.request(
        jobs, name=name, priority=priority, gpus=gpus, time=time, retries=retries, tag=tag or (),
        untag=untag or (), after=after or (), begin=begin, gpu_type=gpu_type,
        min_gpu_memory=min_gpu_memory, max_batch_size=max_batch_size, array_limit=array_limit,
        background=background, notify=notify or (), notify_on=notify_on, accept=accept or (),
    )  # fmt: skip
    return hold_release_requeue.tell(call(request, job_answers.Changed), "changed", as_json=json)
