"""Waiting in tests: look until it is so, never sleep and hope."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0  # seconds; the machine may be busy with other things


def wait_until(look: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """The first truthy answer of `look`. Fails with the last one that was not."""
    deadline = time.monotonic() + patience
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience:.0f} s: {what}; last seen: {seen!r}")
        time.sleep(0.02)


def pid_in(path: Path) -> int:
    """The process id that a job has written, or is about to write."""
    return int(wait_until(lambda: path.exists() and path.read_text().strip(), f"a pid in {path.name}"))
