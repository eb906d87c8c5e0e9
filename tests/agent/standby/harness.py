"""Scripts on an agent that keeps standbys."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from gpq_agent import wire
from gpq_agent.node.host import procs

from tests.agent.node.harness import NodeAgent, shims, wait_until

IMPORTS = 300.0  # seconds, because a standby leaves busy cores to others
LIBRARY = Path(wire.__file__).resolve().parent.parent
TRAINS = """
import os, struct, sys, time
with open(os.path.join(os.environ["GPQ_RUN_DIR"], "rank.0"), "wb") as stream:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    stream.write(struct.pack("=qqqd", os.getpid(), 1, 1, now))
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""


class Scripts:
    """Scripts on an agent. A job may have a standby unless `standby_after` is None."""

    def __init__(self, node: NodeAgent, folder: Path) -> None:
        self.node = node
        self.folder = folder
        self._jobs = 0
        self._env = {"PYTHONPATH": str(LIBRARY), "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}

    def start(self, text: str, *arguments: str, **fields: Any) -> str:
        order = self.order(text, *arguments, **fields)
        assert self.node.ask("start", order=order)["state"] == "started"
        return f"{order['job']}.1"

    def order(self, text: str, *arguments: str, env: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
        self._jobs += 1
        (self.folder / "script.py").write_text(text)
        more = {"level": "adaptive", "standby_after": 0.0, "cwd": str(self.folder), **fields}
        argv = more.pop("argv", [sys.executable, "script.py", *arguments])
        return self.node.order(self._jobs, argv, env={**self._env, **(env or {})}, **more)

    def is_warm(self, key: str) -> bool:
        return bool((wire.read_json(str(self.node.folder(key) / wire.STARTED)) or {}).get("warm"))

    def prepare(self, **fields: Any) -> None:
        """Wait until a standby is ready."""
        stop = self.folder / f"stop-{self._jobs}"
        key = self.start(TRAINS, str(stop), **fields)
        wait_until(self.ready, "a standby", IMPORTS)
        stop.touch()
        self.node.ended(key)

    def ready(self) -> int:
        self.node.ask("watch", offsets={}, wait=0.1, seen=None)
        return int(self.node.ask("hello")["standbys"])


def waiting(spool: Path) -> list[procs.Process]:
    """Interpreters that wait for an attempt, under the shims of this spool."""
    processes = procs.snapshot()
    below = procs.descendants([shim.pid for shim in shims(spool)], processes)
    return [processes[pid] for pid in sorted(below) if procs.mark_of(pid, wire.ENV_MARK) == wire.STANDBY_MARK]
