"""An agent over real pipes, and helpers that find what it left behind."""

from __future__ import annotations

import base64
import contextlib
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gpq_agent import wire
from gpq_agent.node.host import procs
from gpq_agent.node.shim.process_tree import Tree

from tests.support.pythons import pythons

Found = TypeVar("Found")
AGENT_HOME = Path(wire.__file__).resolve().parent.parent
PATIENCE = 60.0


def wait_until(look: Callable[[], Found], what: str, patience: float = PATIENCE) -> Found:
    """The first truthy answer of `look`. Fails with the last answer."""
    deadline = time.monotonic() + patience
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"waited {patience:.0f} s for {what}; last seen: {seen!r}"
        threading.Event().wait(0.01)


def interpreters() -> list[str]:
    """Every Python from 3.8 on this machine, one for each minor version, without the one that runs the tests."""
    return [python.executable for version, python in pythons().items() if version != sys.version_info[:2]]


class NodeAgent:
    """One running agent. Replies are matched by their id, so several requests may be pending."""

    def __init__(
        self,
        spool: Path,
        *options: str,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
        path: Sequence[Path] = (),
    ) -> None:
        self.spool = spool
        self.environment = {**os.environ, **(env or {})}
        self.environment["PYTHONPATH"] = os.pathsep.join(map(str, [*path, AGENT_HOME]))
        self.argv = [python, "-m", "gpq_agent.node", "--spool", str(spool), *options]
        self.process = subprocess.Popen(
            self.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            cwd="/",
            start_new_session=True,
        )
        self._replies: dict[Any, dict[str, Any]] = {}
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._number = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.greeting = self.reply(0)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def send_bytes(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, op: str, **fields: Any) -> int:
        self._number += 1
        self.send_bytes(wire.encode({"v": wire.VERSION, "id": self._number, "op": op, **fields}))
        return self._number

    def reply(self, number: int | None, patience: float = PATIENCE) -> dict[str, Any]:
        deadline = time.monotonic() + patience
        while number not in self._replies:
            line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            assert line, f"the agent ended: {self.complaints()}"
            message = wire.decode(line)
            self._replies[message["id"]] = message
        return self._replies.pop(number)

    def complaints(self) -> str:
        self.process.kill()
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def try_ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return self.reply(self.send(op, **fields))

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        reply = self.try_ask(op, **fields)
        assert reply["ok"], reply
        return reply

    def order(self, job: int, argv: Sequence[str], attempt: int = 1, **fields: Any) -> dict[str, Any]:
        order = {
            "job": job,
            "attempt": attempt,
            "argv": list(argv),
            "cwd": str(self.spool.parent),
            "env": {},
            "devices": ["slot-0"],
            "level": "black-box",
        }
        return {**order, **fields}

    def start(self, job: int, argv: Sequence[str], attempt: int = 1, **fields: Any) -> str:
        reply = self.ask("start", order=self.order(job, argv, attempt, **fields))
        assert reply["state"] == "started"
        return f"{job}.{attempt}"

    def attempts(self) -> dict[str, dict[str, Any]]:
        return {f"{one['job']}.{one['attempt']}": one for one in self.ask("hello")["attempts"]}

    def wait_for(self, key: str, *states: str, patience: float = PATIENCE) -> dict[str, Any]:
        """Watch until the attempt is in one of the states."""
        seen, last = "", None
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            news = self.ask("watch", offsets={}, wait=1.0, seen=seen)
            seen = news["digest"]
            for one in news["attempts"]:
                if f"{one['job']}.{one['attempt']}" == key:
                    last = one
                    if one["state"] in states:
                        return last
        raise AssertionError(f"{key} did not become {states}; last seen: {last}")

    def ended(self, key: str, patience: float = PATIENCE) -> dict[str, Any]:
        """The exit record."""
        record = self.wait_for(key, "exited", patience=patience)["exit"]
        assert record is not None
        assert set(record) == set(wire.ExitRecord._fields)
        return dict(record)

    def folder(self, key: str) -> Path:
        folder = self.spool / "attempts" / key
        ended_folders = self.spool.glob(f"ended/*/{key}")
        return folder if folder.exists() else next(ended_folders, folder)

    def log(self, key: str) -> bytes:
        data, offset = b"", 0
        while True:
            reply = self.ask("tail", attempt=key, offset=offset, limit=1 << 20)
            chunk = base64.b64decode(reply["data"])
            if not chunk:
                return data
            data, offset = data + chunk, reply["offset"]

    def close(self) -> int:
        """The daemon ends: the agent sees the end of its input."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            code = self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join(PATIENCE)
            self.process.stdout.close()
            self.process.stderr.close()
        return code


def shims(spool: Path) -> list[procs.Process]:
    """Living shims of a spool, found by the command line that they inherited from their agent (the agent included)."""
    needle = re.compile(rb"--spool\0" + re.escape(str(spool).encode()) + rb"\0")
    found = []
    for process in procs.snapshot().values():
        with contextlib.suppress(OSError):
            if process.alive and needle.search(Path(f"/proc/{process.pid}/cmdline").read_bytes()):
                found.append(process)
    return found


def survivors(spool: Path, key: str) -> list[procs.Process]:
    """Living processes with the mark of an attempt."""
    record = wire.read_json(str(spool / "spool.json"))
    assert record is not None
    return Tree(f"{record['id']}:{key}", None).members()


def sweep(spool: Path) -> None:
    """Kill, by identity, everything that a test left running under this spool."""
    for shim in shims(spool):
        procs.send(shim, 9)
    for folder in sorted((spool / "attempts").glob("*")):
        for process in survivors(spool, folder.name):
            procs.send(process, 9)
