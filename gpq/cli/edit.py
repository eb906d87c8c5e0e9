"""`gpq edit`: changes what was asked of jobs that have not ended."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpq.cli import control, spec, values, wishes
from gpq.cli.frame import Jobs, Json, frame
from gpq.client.connection import call
from gpq.errors import UsageError
from gpq.rpc import messages

app = frame()
NOTHING = ("none", "off")


def _option(*names: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


@app.command()
def edit(
    jobs: Jobs,
    name: Annotated[str, _option("--name", "-n", metavar="NAME", help="Another name.")] = "",
    priority: Annotated[int | None, _option("--priority", metavar="N", help="Higher goes first.")] = None,
    gpus: Annotated[str, _option("--gpus", "-g", metavar="N|A-B", help="Of a job that waits or can be resized.")] = "",
    time: Annotated[
        str, _option("--time", "-t", metavar="DURATION", help="Limit of the run time; none: no limit.")
    ] = "",
    retries: Annotated[int | None, _option("--retries", metavar="N", help="Tries after a failure, in all.")] = None,
    tag: Annotated[list[str] | None, _option("--tag", metavar="NAME", help="Add a label; may be repeated.")] = None,
    untag: Annotated[list[str] | None, _option("--untag", metavar="NAME", help="Take one away.")] = None,
    after: Annotated[
        list[str] | None,
        _option("--after", metavar="JOB[:ok|any|notok]", help="Instead of what it waits for; or none."),
    ] = None,
    begin: Annotated[str, _option("--begin", metavar="WHEN", help="Start no earlier; now: at once.")] = "",
    gpu_type: Annotated[str, _option("--gpu-type", metavar="TEXT", help="Part of the GPU's name; none: any.")] = "",
    min_gpu_memory: Annotated[
        str, _option("--min-gpu-memory", metavar="SIZE", help="Least memory of each GPU; none: any.")
    ] = "",
    max_batch_size: wishes.MaxBatchSize = None,
    background: Annotated[
        bool | None, _option("--background/--no-background", help="Take only what nobody else wants, or not.")
    ] = None,
    array_limit: Annotated[
        str, _option("--array-limit", metavar="N", help="How many jobs of the array may run at once; none: all.")
    ] = "",
    json: Json = False,
) -> int:
    """Change jobs that wait; of those that run, the name, the priority, the limits, and the GPUs if they can be resized.

    \b
    Example:
      gpq edit 42 --priority 10 --time 12h
      gpq edit 42 --gpus 2-8
      gpq edit 42-49 --after none --begin now
    """
    changes: dict[str, object] = {}
    if name:
        changes["name"] = values.name(name, "--name")
    if priority is not None:
        changes["priority"] = priority
    if retries is not None:
        changes["retries"] = retries
    if gpus:
        low, high = values.gpus(gpus)
        changes |= {"min_gpus": low, "max_gpus": low if high is None else high}
    if time:
        changes["time_limit"] = None if time in NOTHING else values.seconds(time, "--time")
    if after:
        changes["after"] = [] if after == ["none"] else after
    if begin:
        changes["begin"] = spec.begin(begin)
    if gpu_type:
        changes["gpu_type"] = "" if gpu_type in NOTHING else gpu_type
    if min_gpu_memory:
        changes["min_gpu_memory_mib"] = (
            0 if min_gpu_memory in NOTHING else values.memory_mib(min_gpu_memory, "--min-gpu-memory")
        )
    if background is not None:
        changes["background"] = background
    if max_batch_size is not None:
        changes["max_batch_size"] = max_batch_size
    tags, untags = ([values.name(each, "--tag") for each in given or []] for given in (tag, untag))
    request = messages.Edit(jobs, changes, tags, untags, _limit(array_limit))
    return control.tell(call(request, messages.Changed), "changed", as_json=json)


def _limit(text: str) -> int | None:
    if not text:
        return None
    if text in NOTHING:
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise UsageError(f"--array-limit {text[:20]} is no number of jobs", "write for example --array-limit 4")
    return int(text)
