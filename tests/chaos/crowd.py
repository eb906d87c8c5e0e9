"""Many clients at once: how long each submission takes, how long a look at their full queue takes, what survives a kill
-9, and what the daemon needs for it. The same for one array with as many jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpq.options.environment import job_variables
from gpq.rpc.daemon_answers import DaemonInfo as DaemonView
from gpq.rpc.job_answers import JobList, Submitted
from gpq.rpc.requests import ArrayMessage, Info, SpecMessage, Status, Submit
from tests.e2e.harness import Daemon
from tests.support.waiting import wait_until

PAUSE = 0.5  # seconds between two looks at the queue
BETWEEN = 3  # looks at a full queue


@dataclass
class Crowd:
    submit_seconds: list[float] = field(default_factory=list)
    seconds: float = 0.0  # until all submissions were acknowledged
    busy_seconds: float = 0.0  # of processor time that the daemon used
    # for each `gpq status`, a whole process, while they submit
    meanwhile_seconds: list[float] = field(default_factory=list)
    status_seconds: list[float] = field(default_factory=list)  # and afterwards
    list_seconds: float = 0.0  # for all rows, over the socket
    jobs: int = 0  # in the queue afterwards
    ids: set[int] = field(default_factory=set)  # acknowledged
    durable: set[int] = field(default_factory=set)  # of them, still there after a kill -9
    restart_seconds: float = 0.0
    memory: float = 0.0  # MB, at most, of the first daemon
    restarted_memory: float = 0.0  # MB, at most, of the one after it


def crowd(jobs: int, clients: int, policy: str = "goodput") -> Crowd:
    """`clients` submit at once until there are `jobs`, each over its own connection, like commands. All jobs wait,
    because the daemon's one slot is taken."""
    found, lock, left = Crowd(), threading.Lock(), list(range(jobs))
    with Daemon(slots=1, policy=policy) as daemon:
        daemon.until(daemon.shell("while :; do sleep 1; done", grace=0.5), "running")
        spec = _spec(daemon)
        errors: list[BaseException] = []

        def submit() -> None:
            try:
                while True:
                    with lock:
                        if not left:
                            return
                        left.pop()
                    began = time.monotonic()
                    job = daemon.call(Submit(spec), Submitted).id
                    with lock:
                        found.submit_seconds.append(time.monotonic() - began)
                        found.ids.add(job)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=submit) for _ in range(clients)]
        began, used = time.monotonic(), _processor_seconds(daemon)
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            found.meanwhile_seconds.append(_status(daemon))
            threads[-1].join(PAUSE)
        found.seconds, found.busy_seconds = time.monotonic() - began, _processor_seconds(daemon) - used
        if errors:
            raise errors[0]
        _look_and_kill(daemon, found)
    return found


def array(jobs: int, policy: str = "goodput") -> Crowd:
    """One submission of an array of `jobs`."""
    found = Crowd()
    with Daemon(slots=1, policy=policy) as daemon:
        daemon.until(daemon.shell("while :; do sleep 1; done", grace=0.5), "running")
        request = Submit(_spec(daemon), array=ArrayMessage(list(range(jobs))))
        began, used = time.monotonic(), _processor_seconds(daemon)
        found.ids = set(daemon.call(request, Submitted).jobs)
        found.seconds = time.monotonic() - began
        found.submit_seconds.append(found.seconds)
        found.busy_seconds = _processor_seconds(daemon) - used
        _look_and_kill(daemon, found)
    return found


def _spec(daemon: Daemon) -> SpecMessage:
    """Like `gpq submit`, including this process's environment."""
    return SpecMessage(["true"], str(daemon.work), "black-box", max_gpus=1, env=job_variables(dict(os.environ), {}))


def _look_and_kill(daemon: Daemon, found: Crowd) -> None:
    wait_until(lambda: daemon.call(Info(), DaemonView).rounds > 1, "a round has seen them")
    found.status_seconds = [_status(daemon) for _ in range(BETWEEN)]
    began = time.monotonic()
    found.jobs = len(daemon.call(Status(), JobList).jobs)
    found.list_seconds = time.monotonic() - began
    found.memory = _memory(daemon)
    daemon.kill()
    began = time.monotonic()
    daemon.start()
    found.restart_seconds = time.monotonic() - began
    found.durable = {row.id for row in daemon.call(Status(), JobList).jobs} & found.ids
    found.restarted_memory = _memory(daemon)


def _status(daemon: Daemon) -> float:
    """Seconds of one `gpq status`, a whole process."""
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "gpq", "status"], env=daemon.environment(), stdout=subprocess.DEVNULL, check=True
    )
    return time.monotonic() - began


def _memory(daemon: Daemon) -> float:
    """The most MB that the daemon had."""
    assert daemon.process is not None
    text = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def _processor_seconds(daemon: Daemon) -> float:
    assert daemon.process is not None
    fields = Path(f"/proc/{daemon.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
