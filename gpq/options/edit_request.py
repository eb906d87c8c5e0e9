"""From the options of `gpq edit` to what the daemon is asked. Checks what can be checked here;
draws nothing."""

from __future__ import annotations

from collections.abc import Sequence

from gpq import outward
from gpq.errors import UsageError
from gpq.options import job_spec
from gpq.options.parsing import values
from gpq.rpc import requests

NOTHING = ("none", "off")


def request(
    jobs: list[str],
    *,
    name: str = "",
    priority: int | None = None,
    gpus: str = "",
    time: str = "",
    retries: int | None = None,
    tag: Sequence[str] = (),
    untag: Sequence[str] = (),
    after: Sequence[str] = (),
    begin: str = "",
    gpu_type: str = "",
    min_gpu_memory: str = "",
    background: bool | None = None,
    max_batch_size: int | None = None,
    array_limit: str = "",
    notify: Sequence[str] = (),
    notify_on: str = "",
    accept: Sequence[str] = (),
) -> requests.Edit:
    """Texts as typed; empty ones, and None, change nothing. Raises UsageError."""
    numbers = {"priority": priority, "retries": retries, "max_batch_size": max_batch_size}
    changes: dict[str, object] = {key: value for key, value in numbers.items() if value is not None}
    if background is not None:
        changes["background"] = background
    if name:
        changes["name"] = values.name(name, "--name")
    if gpus:
        low, high = values.gpus(gpus)
        changes |= {"min_gpus": low, "max_gpus": low if high is None else high}
    if time:
        changes["time_limit"] = None if time in NOTHING else values.limit(time, "--time")
    if after:
        changes["after"] = [] if list(after) == ["none"] else list(after)
    if begin:
        changes["begin"] = job_spec.begin(begin)
    if gpu_type:
        changes["gpu_type"] = "" if gpu_type in NOTHING else gpu_type
    if min_gpu_memory:
        changes["min_gpu_memory_mib"] = (
            0
            if min_gpu_memory in NOTHING
            else values.memory_mib(min_gpu_memory, "--min-gpu-memory")
        )
    if notify:
        changes["notify"] = job_spec.targets(list(notify))
    if notify_on:
        changes["notify_on"] = list(outward.events(notify_on.split(",")))
    if accept:
        changes["accept"] = [] if list(accept) == ["none"] else list(dict.fromkeys(accept))
    tags, untags = ([values.name(each, "--tag") for each in given] for given in (tag, untag))
    return requests.Edit(jobs, changes, tags, untags, _limit(array_limit))


def _limit(text: str) -> int | None:
    if not text:
        return None
    if text in NOTHING:
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise UsageError(
            f"--array-limit {text[:20]} is no number of jobs", "write for example --array-limit 4"
        )
    return int(text)
