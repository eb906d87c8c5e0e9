"""A real daemon in its own folder: start it, call it, kill it, start it again."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from gpq.client.connection import Connection
from gpq.rpc.job_answers import CancelResult, JobDetail, JobList, LogChunk, Submitted
from gpq.rpc.node_answers import NodeList
from gpq.rpc.requests import Cancel, Logs, Nodes, Request, Show, SpecMessage, Status, Submit, Wait
from tests.daemon.daemons import end_all
from tests.support import commands
from tests.support.waiting import PATIENCE, wait_until

R = TypeVar("R", bound=msgspec.Struct)

ROOT = Path(__file__).resolve().parents[2]
ENDED = ("completed", "failed", "cancelled", "timeout")


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


class Daemon:
    """Use it as `with Daemon(slots=2) as daemon`. It starts on entry. On exit it cancels its jobs, stops, and removes
    its folder."""

    def __init__(
        self,
        *,
        slots: int = 2,
        nodes: Mapping[str, int | Mapping[str, object]] | None = None,
        pace: float = 1.0,
        **settings: object,
    ) -> None:
        """`nodes`: the slots of each server, or everything that config.toml says about it. `pace`: the daemon's
        patience with them."""
        # Not below pytest's folder, because the path of a socket is limited to 107 bytes.
        self.home = Path(tempfile.mkdtemp(prefix="gpq-"))
        self.work = self.home / "work"
        self.work.mkdir()
        lines = [f"{key} = {_toml(value)}" for key, value in {"policy": "fifo", **settings}.items()]
        for name, node in (nodes or {"local": slots}).items():
            fields = {"slots": node} if isinstance(node, int) else node
            lines += [f"[nodes.{name}]", *(f"{key} = {value!r}" for key, value in fields.items())]
        self.config = self.home / "config.toml"
        self.config.write_text("\n".join(lines) + "\n")
        self.source = ROOT  # of the gpq that is started
        self.fresh = False  # True: in an interpreter of its own, because its environment changes Python itself
        self.pace = pace
        self.process: commands.Process | subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Daemon:
        try:
            self.start()
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.process is None or self.process.poll() is not None:
                self.start()
            self.call(Cancel(["all"], wait=PATIENCE), CancelResult)
            self.stop()
        finally:
            self.discard()

    def discard(self) -> None:
        """Removes the process if it still runs, the jobs that could not be cancelled, and the folder."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        end_all(self.home)
        shutil.rmtree(self.home, ignore_errors=True)

    @contextlib.contextmanager
    def emptied(self, work: Path) -> Iterator[None]:
        """For one test of many. Its jobs run in `work`. Whatever it does, it leaves a daemon without live jobs."""
        self.work = work
        try:
            yield
        finally:
            if self.process is None or self.process.poll() is not None:
                self.start()
            self.call(Cancel(["all"], wait=PATIENCE), CancelResult)

    # -- the process

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPQ_")}
        own = {"PYTHONPATH": f"{self.source}:{self.source / 'agent'}", "GPQ_HOME": str(self.home)}
        return {**kept, **own, "GPQ_CONFIG": str(self.config), "GPQ_TEST_PACE": str(self.pace)}

    def spawn(self) -> int:
        """Start it without waiting. Returns the descriptor on which it reports that it serves."""
        heard, told = os.pipe()
        with open(self.home / "output", "ab") as output:
            if self.source == ROOT and not self.fresh:
                self.process = commands.start_daemon(self.environment(), output.fileno(), told, cwd="/", session=True)
            else:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "gpq.daemon.main", "--ready-fd", str(told)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self.environment(),
                    cwd="/",
                    pass_fds=(told,),
                    start_new_session=True,
                )
        os.close(told)
        return heard

    def start(self) -> None:
        with open(self.spawn(), "rb") as heard:
            said = heard.read()
        if not said or not msgspec.json.decode(said)["ok"]:
            assert self.process is not None
            self.process.wait(PATIENCE)
            raise AssertionError(f"the daemon did not start: {said!r}\n{self.output()}")

    def kill(self) -> None:
        """kill -9, nothing less."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def output(self) -> str:
        return (self.home / "output").read_text(errors="replace")[-4000:]

    # -- the conversation

    def call(self, request: Request, kind: type[R]) -> R:
        """One answer. Raises the daemon's error, or OSError if nobody listens."""
        with Connection(str(self.home / "gpq.sock")) as connection:
            return connection.call(request, kind)

    def submit(self, *argv: str, level: str = "black-box", **more: object) -> int:
        # Black boxes and jobs that listen to signals get a fixed number of GPUs. So does a test's script.
        fields: dict[str, object] = {"cwd": str(self.work), "max_gpus": 1, "python": sys.executable, **more}
        spec = SpecMessage(list(argv), level=level, **fields)  # type: ignore[arg-type]
        return self.call(Submit(spec), Submitted).id

    def shell(self, command: str, **more: object) -> int:
        return self.submit("sh", "-c", command, **more)

    def detail(self, job: int) -> JobDetail:
        return self.call(Show(str(job)), JobDetail)

    def state(self, job: int) -> str:
        return self.detail(job).job.state

    def until(self, job: int, *states: str, patience: float = PATIENCE) -> JobDetail:
        def look() -> JobDetail | None:
            found = self.detail(job)
            return found if found.job.state in states else None

        try:
            return wait_until(look, f"job {job} is {' or '.join(states)}", patience)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.detail(job)}\n{self.output()}") from None

    def ended(self, *jobs: int) -> dict[int, tuple[str, int | None]]:
        """State and exit code of each job, once all have ended."""
        wanted = [str(job) for job in jobs]
        rows = self.call(Wait(wanted, wait=PATIENCE), JobList).jobs
        assert all(row.state in ENDED for row in rows), rows
        return {row.id: (row.state, row.exit_status) for row in rows}

    def log(self, job: int, attempt: int = 0) -> str:
        chunk = self.call(Logs(str(job), attempt, wait=5.0), LogChunk)
        return base64.b64decode(chunk.data).decode()

    def rows(self, jobs: Sequence[int] = ()) -> JobList:
        return self.call(Status([str(job) for job in jobs], recent=100_000), JobList)

    def nodes(self) -> NodeList:
        return self.call(Nodes(), NodeList)
