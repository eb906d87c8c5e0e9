"""Memory of a daemon that has 10,000 finished jobs, and the time from its start until it serves.

    python benchmarks/daemon_memory.py [--jobs 10000]

Bars: at most 120 MB resident, at most 2 s until it serves.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from gpq.client.connection import Connection
from gpq.core.model.events import Event, Exited, Launched, Started, Submitted
from gpq.core.model.jobs import JobSpec, Level
from gpq.core.model.placements import BatchOrder, Exit, Placement
from gpq.core.model.profile import Declared, Profile, ProfileRow
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.state.apply_events import fold
from gpq.rpc.daemon_answers import DaemonInfo
from gpq.rpc.job_answers import JobList
from gpq.rpc.requests import Info, Status
from gpq.store.sqlite import SqliteStore

ENVIRONMENT = tuple((f"VARIABLE_{number}", "value " * 8) for number in range(30))
ROWS = tuple(ProfileRow(1, 1 + row % 4, 32 * (1 + row // 4), 0.1, 0.12, 100.0) for row in range(16))
DECLARED = Declared(True, 128, 4096, 8, 256, 50_000, 90, True, "adascale", 10_000_000)


def fill(path: str, jobs: int) -> None:
    """A database like that of a long-used daemon: every job has its environment, its profile and
    five events."""
    place = Placement(((NodeId("local"), (DeviceId("slot-0"),)),))
    with closing(SqliteStore(path)) as store:
        for first in range(1, jobs + 1, 500):
            events: list[Event] = []
            for number in range(first, min(first + 500, jobs + 1)):
                job, at = JobId(number), float(number)
                spec = JobSpec(
                    ("train.py",),
                    "/home/ada",
                    user="ada",
                    uid=1000,
                    level=Level.SCRIPT,
                    name=f"job-{number}",
                    env=ENVIRONMENT,
                )
                events += [
                    Submitted(at, job, spec),
                    Launched(at + 1, job, 1, place, BatchOrder(), "starts with 1 GPU"),
                    Started(at + 2, job, 1, NodeId("local")),
                    Exited(at + 3, job, 1, NodeId("local"), Exit(0, ended_at=at + 3)),
                ]
            folded = fold(store.load(), events)
            profile = Profile(declared=DECLARED, rows=ROWS)
            store.commit(
                folded.journal,
                folded.snapshot,
                [replace(job, profile=profile) for job in folded.ended],
            )


def start(home: str) -> tuple[subprocess.Popen[bytes], float]:
    """A daemon, and the seconds until it serves."""
    ready, told = os.pipe()
    environment = {**os.environ, "GPQ_HOME": home, "GPQ_CONFIG": os.path.join(home, "config.toml")}
    began = time.perf_counter()
    argv = [sys.executable, "-m", "gpq.daemon.main", "--ready-fd", str(told)]
    process = subprocess.Popen(argv, env=environment, pass_fds=(told,), stderr=subprocess.DEVNULL)
    os.close(told)
    with os.fdopen(ready, "rb") as stream:
        verdict = json.loads(stream.read())
    assert verdict["ok"], verdict
    return process, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--starts", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        Path(home, "config.toml").write_text("[nodes.local]\nslots = 2\n")
        fill(os.path.join(home, "gpq.db"), options.jobs)
        seconds, memory = [], []
        for _ in range(options.starts):
            process, spent = start(home)
            seconds.append(spent)
            with closing(Connection(os.path.join(home, "gpq.sock"))) as connection:
                for recent in (20, 1000):
                    listed = connection.call(Status(recent=recent), JobList)
                assert listed.total == options.jobs
                memory.append(connection.call(Info(), DaemonInfo).memory_mib)
            process.terminate()
            process.wait()
        size = os.path.getsize(os.path.join(home, "gpq.db")) / 2**20
    print(f"finished jobs {options.jobs}, database {size:.0f} MiB, {options.starts} starts")
    print(
        f"start to serving: median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s"
        " (bar 2 s)"
    )
    print(
        f"resident after listing 1000: median {statistics.median(memory):.0f} MiB, worst"
        f" {max(memory):.0f} MiB (bar 114)"
    )


if __name__ == "__main__":
    main()
