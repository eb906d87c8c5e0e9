"""A gpq daemon that uses servers of a laboratory, and what its jobs leave for a judge that is not gpq."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from gpq.rpc.node_answers import NodeView
from tests.e2e.harness import ROOT, Daemon
from tests.lab.lab import Lab
from tests.lab.server import USER
from tests.support.waiting import wait_until

T = TypeVar("T")
HOME = f"/home/{USER}"


class LabDaemon(Daemon):
    """`slots`: of each server in gpq."""

    def __init__(self, lab: Lab, slots: dict[str, int], *, pace: float = 1.0, **settings: object) -> None:
        ssh = ["ssh", "-F", str(lab.ssh_config)]
        self.lab = lab
        super().__init__(
            nodes={
                name: {"connector": "ssh", "host": name, "ssh": ssh, "slots": count} for name, count in slots.items()
            },
            pace=pace,
            **settings,
        )

    def __enter__(self) -> LabDaemon:
        super().__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        """First repairs the network, because the jobs have to end."""
        self.lab.repair()
        super().__exit__(*details)

    def run(self, command: str, **more: object) -> int:
        """Submit a shell command, in the user's home there."""
        return self.shell(command, cwd=HOME, python="", **more)

    def node(self, name: str) -> NodeView:
        return next(node for node in self.nodes().nodes if node.name == name)

    def up(self, *names: str, patience: float = 60.0) -> None:
        """Wait until the jobs have these states."""

        def look() -> bool:
            return all(node.state == "up" for node in self.nodes().nodes if node.name in (names or (node.name,)))

        try:
            wait_until(look, f"{names or 'all'} up", patience)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.nodes()}\n{self.output()}") from None

    def place(self, job: int) -> str:
        """The server that a running job is on."""
        [part] = self.until(job, "running").job.placement
        return part.node

    def follow(self, job: int, *options: str) -> subprocess.Popen[bytes]:
        """`gpq logs -f`, as a user runs it."""
        env = {**os.environ, "GPQ_HOME": str(self.home), "GPQ_CONFIG": str(self.home / "config.toml")}
        env["PYTHONPATH"] = f"{ROOT}:{ROOT / 'agent'}"
        argv = [sys.executable, "-m", "gpq", "logs", "-f", *options, str(job)]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


def watch(seconds: float, look: Callable[[], T]) -> list[T]:
    """All different answers of `look` within this many seconds, in order."""
    seen: list[T] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = look()
        if found not in seen:
            seen.append(found)
        time.sleep(0.05)
    return seen


def took(look: Callable[[], object], what: str, patience: float = 60.0) -> float:
    """Seconds until `look` is true."""
    began = time.monotonic()
    wait_until(look, what, patience)
    return time.monotonic() - began
