"""What is asked of a job: the fields that travel to the daemon and that it keeps, declared once.

A msgspec struct, because `gpq submit` imports this module, and dataclasses would cost it more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

R = TypeVar("R", bound="JobRequest[Any]")
Words = TypeVar("Words", bound=Sequence[str])
NO_WORDS: Any = ()


class JobRequest(msgspec.Struct, Generic[Words], frozen=True):
    """The base of `SpecMessage`, which travels with lists, and of `JobSpec`, which is kept with
    tuples. A default means that an older client did not say."""

    argv: Words  # the command. For a script: its path, then its arguments
    cwd: str
    level: str  # "black-box" | "signal" | "script"
    name: str = ""
    paths: Words = NO_WORDS  # variables with a path that exists where the job was submitted
    python: str = ""  # interpreter of a script
    python_asked: bool = False  # if not, the Python of the server or of `setup` comes first
    setup: str = ""  # shell command that runs once on each server before the first launch there
    modules: Words = NO_WORDS  # modules that this Python must have
    min_gpus: int = 1
    max_gpus: int = 0  # 0: as many as help
    rigid: bool = False  # a script that gpq never resizes
    gpu_type: str = ""  # substring of the device type, case-insensitive
    min_gpu_memory_mib: int = 0
    priority: int = 0
    time_limit: float | None = None  # seconds of run time, over all attempts
    retries: int = 0
    # seconds: after this silence the job ends itself and gpq starts it elsewhere. 0: off, None: as
    # in config.toml
    requeue_on_lost: float | None = None
    signal: str = "TERM"
    # seconds from the stop order to KILL. None: as in config.toml
    grace: float | None = None
    resume_argv: Words = NO_WORDS  # appended from the second attempt on
    launcher: str = ""  # "torchrun": starts the replicas. "": gpq does
    # the job writes it at its end, so that exit 0 after a stop order counts as success. Relative to
    # `cwd`
    done_file: str = ""
    batch_size: int = 0  # M0, overrides the script's declaration. 0: the script's
    max_batch_size: int = 0
    min_atomic_batch: int = 0
    max_atomic_batch: int = 0
    tags: Words = NO_WORDS
    # names of targets, "desktop", "mailto:ADDRESS", never a URL. []: nobody, None: as in
    # config.toml
    notify: Words | None = None
    # "start", "restart", "retry", "fail", "end". None: as in config.toml
    notify_on: Words | None = None
    # SHA-256 of the snapshot in the state directory's `snapshots` that it runs in. "": none
    code: str = ""
    code_cwd: str = ""  # working directory in the snapshot, relative
    code_from: str = ""  # description of the snapshot
    stdin: str = ""  # SHA-256 of the archive with its stdin, in the same folder. "": /dev/null
    begin: float = 0.0  # does not start before, in seconds since the epoch
    background: bool = False  # uses only GPUs that nobody else wants
    accept: Words = NO_WORDS  # codes of suspected habits that gpq ignores
    # "pipes" | "terminal": what `gpq run` or `gpq shell` holds. "": nobody talks to it
    console: str = ""

    def having(self: R, **values: Any) -> R:
        """The same with other values."""
        return msgspec.structs.replace(self, **values)
