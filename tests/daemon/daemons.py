"""Real daemons in their own folders, for tests: started as a user's are, killed as in real life."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpq.client.connection import Connection
from gpq.rpc.daemon_answers import DaemonInfo
from gpq.rpc.job_answers import Submitted
from gpq.rpc.requests import Info, Request, SpecMessage, Submit
from tests.support import commands
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
R = TypeVar("R", bound=msgspec.Struct)

# For a daemon whose silence (2.2 s) or back-off (6 s at most) a test waits for. Under load, a living agent may be
# silent for this long. A test that asserts that it was not keeps the pace of users, 1.0.
QUICK = 0.2

CONFIG = """\
policy = "fifo"
interval = 5.0
[nodes.here]
slots = 2
"""


class Daemon:
    """One state directory, and the daemon that serves it now."""

    def __init__(self, home: Path, config: str = CONFIG, pace: float = 1.0) -> None:
        self.home = home
        self.pace = pace
        self.home.mkdir(parents=True, exist_ok=True)
        self.config = home.parent / f"{home.name}.toml"
        self.config.write_text(config)
        self.process: commands.Process | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "GPQ_HOME": str(self.home),
            "GPQ_CONFIG": str(self.config),
            "GPQ_TEST_PACE": str(self.pace),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}",
        }

    @property
    def socket(self) -> str:
        return str(self.home / "gpq.sock")

    def spawn(self) -> tuple[commands.Process, dict[str, Any]]:
        """A daemon process and its verdict: it serves, or why it does not."""
        ready, told = os.pipe()
        with open(os.devnull, "wb") as output:
            process = commands.start_daemon(self.environment, output.fileno(), told)
        os.close(told)
        with os.fdopen(ready, "rb") as stream:
            verdict: dict[str, Any] = json.loads(stream.read() or b"{}")
        return process, verdict

    def start(self) -> Daemon:
        process, verdict = self.spawn()
        assert verdict.get("ok"), verdict
        self.process = process
        return self

    def refusal(self) -> tuple[int, str]:
        """(exit code, the line that the user reads) of a daemon that must not start."""
        process, verdict = self.spawn()
        assert not verdict.get("ok"), "it serves"
        assert verdict["code"] == process.wait(60)
        assert "\n" not in verdict["error"]
        assert verdict["hint"]
        return process.returncode, verdict["error"]

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Stop it with a signal. Its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def call(self, request: Request, kind: type[R]) -> R:
        with Connection(self.socket) as connection:
            return connection.call(request, kind)

    def submit(self, *argv: str, **more: Any) -> int:
        spec = SpecMessage(list(argv), "/tmp", more.pop("level", "black-box"), **more)
        return self.call(Submit(spec), Submitted).id

    def info(self) -> DaemonInfo:
        return self.call(Info(), DaemonInfo)

    def raw(self) -> socket.socket:
        """A bare connection."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(60)
        connection.connect(self.socket)
        return connection

    def wait_for_nodes(self) -> None:
        wait_until(lambda: set(self.info().nodes.values()) == {"up"}, "its node is up")


@contextmanager
def daemon(home: Path, config: str = CONFIG, pace: float = 1.0) -> Iterator[Daemon]:
    """A daemon that serves. It and its jobs are gone afterwards."""
    made = Daemon(home, config, pace)
    try:
        yield made.start()
    finally:
        clear(made)


def clear(made: Daemon) -> None:
    """End the daemon of `made`, its agents, shims and jobs: every process with its home in its environment or
    arguments. (An agent and its shims have it only in `--spool`, and a job in GPQ_RUN_DIR.)"""
    if made.process is not None and made.process.poll() is None:
        made.process.send_signal(signal.SIGCONT)
        made.kill()
    end_all(made.home)


def end_all(home: Path) -> None:
    """Every process that has `home` in its environment or arguments."""
    wait_until(lambda: not _end(os.fsencode(home)), "its processes are gone")


def _end(home: bytes) -> list[int]:
    found = []
    lies_there = re.compile(re.escape(home) + rb"(/|$)").search
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            words = b"\0".join(Path(f"/proc/{name}/{of}").read_bytes() for of in ("environ", "cmdline")).split(b"\0")
            state = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[0]
            if state != b"Z" and any(map(lies_there, words)):
                os.kill(int(name), signal.SIGKILL)
                found.append(int(name))
        except OSError:
            continue
    return found
