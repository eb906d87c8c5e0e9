"""The options of `gpq submit` as typed. Made from gpq/rpc/submit_table.py by `make completions`, so
edit that instead."""

from __future__ import annotations

import msgspec


class SubmitTexts(msgspec.Struct, frozen=True):
    """The options as typed. Not a dataclass, because importing those takes half as long as
    msgspec."""

    words: list[str]
    black_box: bool  # the words came after `--`
    gpus: str = ""
    gpu_type: str = ""
    min_gpu_memory: str = ""
    name: str = ""
    tag: list[str] = []
    notify: list[str] = []
    notify_on: str = ""
    priority: int = 0
    time: str = ""
    after: list[str] = []
    begin: str = ""
    background: bool = False
    array: str = ""
    sweep: list[str] = []
    sweep_file: str = ""
    retries: int = 0
    requeue_on_lost: str = ""
    rigid: bool = False
    preemptible: bool = False
    signal: str = ""
    grace: str = ""
    resume_args: str = ""
    done_file: str = ""
    batch_size: int | None = None
    max_batch_size: int | None = None
    atomic_batch_size: str = ""
    launcher: str = ""
    accept: list[str] = []
    env: list[str] = []
    cwd: str = ""
    stdin: str = ""
    python: str = ""
    setup: str = ""
    snapshot: bool = False
