"""The options of `gpq.submit` and `Job.edit`, and their types. Made from gpq/rpc/submit_table.py by
`make completions`, so edit that instead."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypedDict

from gpq.api.options import Duration, Gpus, Moment, Selector, Word


class Options(TypedDict, total=False):
    """The options of `gpq.submit`, with the names of the command line. `gpq submit --help` explains
    them."""

    gpus: Gpus
    gpu_type: str
    min_gpu_memory: str
    name: str
    tag: str | Sequence[str]
    notify: str | Sequence[str]
    notify_on: str | Sequence[str]
    priority: int
    time: Duration
    after: Selector | Sequence[Selector]
    begin: Moment
    background: bool
    retries: int
    requeue_on_lost: Duration
    rigid: bool
    preemptible: bool
    signal: str | int
    grace: Duration
    resume_args: str | Sequence[Word]
    done_file: str | os.PathLike[str]
    batch_size: int | None
    max_batch_size: int | None
    atomic_batch_size: str | int | tuple[int, int]
    launcher: str
    accept: str | Sequence[str]
    env: Mapping[str, object] | Sequence[str]
    cwd: str | os.PathLike[str]
    stdin: str | os.PathLike[str]
    python: str | os.PathLike[str]
    setup: str
    snapshot: bool


class Edits(TypedDict, total=False):
    """The options of `Job.edit`, with the names of the command line."""

    name: str
    priority: int | None
    gpus: Gpus
    time: Duration
    retries: int | None
    tag: str | Sequence[str]
    untag: str | Sequence[str]
    after: Selector | Sequence[Selector]
    begin: Moment
    gpu_type: str
    min_gpu_memory: str
    max_batch_size: int | None
    background: bool | None
    array_limit: str | int
    notify: str | Sequence[str]
    notify_on: str | Sequence[str]
    accept: str | Sequence[str]
