"""Waiting in tests: look until it is so. Never sleep and hope."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0  # seconds, because the machine may be busy with other things


def wait_until(look: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """The first truthy answer of `look`. Fails with the last answer otherwise."""
    deadline = time.monotonic() + patience
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience:.0f} s: {what}; last seen: {seen!r}")
        time.sleep(0.02)


def state(stat: Path) -> str:
    """State of a process or thread, from its `stat` in /proc: R runs or is about to, S sleeps, Z has ended."""
    return stat.read_text().rpartition(")")[2].split()[0]


def asks(pid: int) -> bool:
    """Whether the process has an open socket and sleeps, so it waits for the daemon's answer."""
    with contextlib.suppress(OSError):  # one was closed while we looked
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        return any(link.startswith("socket:") for link in links) and state(Path(f"/proc/{pid}/stat")) == "S"
    return False


def pid_in(path: Path) -> int:
    """The process id that a job has written, or is about to write."""
    return int(wait_until(lambda: path.exists() and path.read_text().strip(), f"a pid in {path.name}"))
