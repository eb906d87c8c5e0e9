"""No command waits for a server, whether it never answered or fell silent under a job.

There are two exceptions: `gpq logs` of a job whose log is on that server, until gpq knows that the server is silent,
and commands whose purpose is to reach servers: `gpq doctor`, `gpq nodes add`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.harness import Daemon
from tests.support import commands
from tests.support.figures import Figures
from tests.support.waiting import wait_until

BAR = 8.0  # seconds for a whole process on a busy machine. gpq gives up a server after 11, and an ssh later.
# {far} runs on the server that fell silent, {here} on one that answers. {waits} and {more} are pending.
COMMANDS = (
    "status",
    "status --all --json",
    "status state=running",
    "show {far}",
    "why {far}",
    "why {waits}",
    "nodes",
    "nodes list --json",
    "nodes drain far",
    "nodes undrain far",
    "submit --gpus 1 -- true",
    "submit --dry-run --gpus 1 -- true",
    "submit --array 0-9 -- true",
    "hold {waits}",
    "edit {waits} --priority {number}",
    "release {waits}",
    "cancel {more}",
    "logs {here}",
    "logs {far}",
    "cancel {far}",
    "daemon status",
    "config show",
    "__complete bash cancel ''",
)

LATER = ("cancel {more}", "cancel {far}", "logs {far}")


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    hang = {"connector": "ssh", "host": "never.invalid", "ssh": ["sh", "-c", "exec sleep 1000"], "slots": 1}
    with Daemon(nodes={"far": 1, "here": 1, "never": hang}) as running:
        yield running


def test_no_command_waits_for_a_server_that_does_not_answer(daemon: Daemon, figures: Figures) -> None:
    first, second = (daemon.shell("echo here; while :; do sleep 1; done", grace=0.5) for _ in range(2))
    for job in (first, second):
        daemon.until(job, "running")
    place = {daemon.detail(job).job.placement[0].node: job for job in (first, second)}
    words = {**place, "waits": daemon.shell("true"), "more": daemon.shell("true")}
    with silenced(daemon, "far"):
        # First in the seconds before gpq knows about it, then when it knows.
        _measure(daemon, figures, "at once", [line.format(number=1, **words) for line in COMMANDS if line not in LATER])
        wait_until(lambda: "far" in " ".join(daemon.rows().warnings), "gpq knows that the server is silent")
        _measure(daemon, figures, "later", [line.format(number=2, **words) for line in COMMANDS])


@contextlib.contextmanager
def silenced(daemon: Daemon, node: str) -> Iterator[None]:
    """Stops the agent of `node`, and every agent that the daemon starts to replace it."""
    assert daemon.process is not None
    threads, over = Path(f"/proc/{daemon.process.pid}/task"), threading.Event()

    def agents() -> list[psutil.Process]:
        # Not psutil's children(), which reads all of /proc each time.
        pids = " ".join(path.read_text() for path in threads.glob("*/children")).split()
        return [
            one
            for one in map(psutil.Process, map(int, pids))
            if any(f"/nodes/{node}" in word for word in one.cmdline())
        ]

    def stop() -> None:
        while not over.wait(0.03):
            with contextlib.suppress(psutil.Error, OSError):
                for one in agents():
                    one.suspend()

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(psutil.Error):
            for one in agents():
                one.resume()


def _measure(daemon: Daemon, figures: Figures, when: str, lines: list[str]) -> None:
    took = {}
    for line in lines:
        began = time.monotonic()
        argv = ["" if word == "''" else word for word in line.split()]
        done = commands.run(argv, daemon.environment(), timeout=60.0)
        took[line] = time.monotonic() - began
        assert done.returncode in (0, 1), f"{line}: {done.returncode}: {done.stderr}"
    for line, seconds in took.items():
        figures.at_most(f"{when}: gpq {line}", seconds, BAR)
