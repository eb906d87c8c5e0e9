"""Control groups (version 1) that a test creates as root and removes again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_until

ROOT = Path("/sys/fs/cgroup")


def lacking(controller: str) -> str:
    """Why this machine allows none, or "" if it does."""
    if os.geteuid() != 0:
        return "control groups need root"
    return "" if (ROOT / controller).is_dir() else f"needs the {controller} controller of control groups, version 1"


@contextmanager
def group(controller: str, name: str = "", **settings: object) -> Iterator[Path]:
    """`settings`: files with `__` for the dot, such as ``pids__max=60``.

    At the end the group must soon be empty. Frozen processes are thawed.
    """
    path = ROOT / controller / f"gpq-test-{os.getpid()}{name}"
    path.mkdir()
    for file, value in settings.items():
        (path / file.replace("__", ".")).write_text(str(value))
    try:
        yield path
    finally:
        if controller == "freezer":
            (path / "freezer.state").write_text("THAWED")

        def emptied() -> bool:
            try:
                path.rmdir()
            except OSError:
                return False
            return True

        wait_until(emptied, f"nothing is left in {path}")


def freeze(place: Path, pid: int) -> None:
    """Put a process into a freezer group. Nothing ends it there, not even KILL."""
    (place / "cgroup.procs").write_text(str(pid))
    (place / "freezer.state").write_text("FROZEN")
    wait_until(lambda: (place / "freezer.state").read_text() == "FROZEN\n", f"{pid} is frozen")
