"""What a long past costs: a daemon with many finished jobs, and the commands that look at them.

    python benchmarks/past.py [--jobs 100000] [--home DIR]

Bars for 100,000 jobs: 2 KiB of database a job, 1 s until the daemon serves, 200 MiB resident. Each
command at most 1.5 s and 150 MiB. `status` at most 0.1 s more than with an empty past.
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
from hashlib import blake2b
from pathlib import Path

from gpq.core.model.events import Event, Exited, Launched, Started, Submitted
from gpq.core.model.jobs import JobSpec, Level
from gpq.core.model.placements import BatchOrder, Exit, Placement
from gpq.core.model.profile import Declared, Profile, ProfileRow
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.state.apply_events import fold
from gpq.store.sqlite import SqliteStore

EVERY = 600.0  # seconds between two jobs, so 100,000 are two years
SHELL = 20  # jobs submitted from the same shell
USERS = ("ada", "ben", "cho", "dee")
ROWS = tuple(ProfileRow(1, 1 + row % 4, 32 * (1 + row // 4), 0.1, 0.12, 100.0) for row in range(16))
DECLARED = Declared(True, 128, 4096, 8, 256, 50_000, 90, True, "adascale", 10_000_000)
# what to run, and whether it is a stream, which has no bar in seconds
COMMANDS = (
    (("status",), False),
    (("status", "--all"), False),
    (("status", "--all", "--json"), True),
    (("history",), False),
    (("history", "--user", "ben"), False),
    (("history", "--json"), True),
    (("history", "--csv"), True),
    (("report",), False),
    (("report", "--by", "job"), False),
    (("cancel", "1-{jobs}"), False),
)
SECONDS, CLIENT_MIB, DAEMON_MIB, JOB_BYTES, START_SECONDS = 1.5, 150, 200, 2048, 1.0


def environment(user: str, shell: int) -> tuple[tuple[str, str], ...]:
    """30 variables of 60 bytes, of which a third differs from shell to shell."""

    def value(number: int) -> str:
        key = f"{user} {number} {shell if number % 3 == 0 else 0}"
        return f"/home/{user}/" + blake2b(key.encode(), digest_size=24).hexdigest()

    return tuple((f"VARIABLE_{number}", value(number)) for number in range(30))


def fill(path: str, jobs: int) -> None:
    """A database like that of a long-used daemon: every job has its environment, its profile and
    five events."""
    place = Placement(((NodeId("local"), (DeviceId("slot-0"),)),))
    began = time.time() - EVERY * (jobs + 1)
    with closing(SqliteStore(path)) as store:
        for first in range(1, jobs + 1, 500):
            events: list[Event] = []
            for number in range(first, min(first + 500, jobs + 1)):
                job, at, user = JobId(number), began + EVERY * number, USERS[number // SHELL % 4]
                spec = JobSpec(
                    ("train.py", "--seed", str(number)),
                    f"/home/{user}",
                    user=user,
                    uid=1000,
                    level=Level.SCRIPT,
                    name=f"job-{number}",
                    env=environment(user, number // SHELL),
                )
                events += [
                    Submitted(at, job, spec),
                    Launched(at + 1, job, 1, place, BatchOrder(), "starts with 1 GPU"),
                    Started(at + 2, job, 1, NodeId("local")),
                    Exited(at + 500, job, 1, NodeId("local"), Exit(0, ended_at=at + 500)),
                ]
            folded = fold(store.load(), events)
            profile = Profile(declared=DECLARED, rows=ROWS)
            store.commit(
                folded.journal,
                folded.snapshot,
                [replace(job, profile=profile) for job in folded.ended],
            )


def start(variables: dict[str, str]) -> tuple[subprocess.Popen[bytes], float]:
    """A daemon, and the seconds until it serves."""
    reader, writer = os.pipe()
    began = time.perf_counter()
    argv = [sys.executable, "-m", "gpq.daemon.main", "--ready-fd", str(writer)]
    process = subprocess.Popen(argv, env=variables, pass_fds=(writer,), stderr=subprocess.DEVNULL)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        verdict = json.loads(stream.read())
    assert verdict["ok"], verdict
    return process, time.perf_counter() - began


def resident(pid: int, field: str = "VmRSS") -> float:
    """MiB. VmHWM is the most that it ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / 1024
    raise LookupError(field)


def run(words: list[str], variables: dict[str, str]) -> tuple[float, float, int]:
    """Seconds, the command's peak in MiB, and the bytes that it printed."""
    began = time.perf_counter()
    argv = [sys.executable, "-m", "gpq", *words]
    process = subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE)
    assert process.stdout is not None
    size = 0
    while piece := process.stdout.read(1 << 20):
        size += len(piece)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return time.perf_counter() - began, usage.ru_maxrss / 1024, size


def measure(home: str, jobs: int, starts: int) -> bool:
    """Prints the figures. False if one is beyond its bar."""
    path = os.path.join(home, "gpq.db")
    variables = {**os.environ, "GPQ_HOME": home, "GPQ_CONFIG": os.path.join(home, "config.toml")}
    size, seconds, holds = os.path.getsize(path) / max(jobs, 1), list[float](), True

    def line(what: str, value: float, bar: float | None, unit: str) -> None:
        nonlocal holds
        holds &= bar is None or not jobs or value <= bar
        print(f"{what}: {value:.2f} {unit}" + (f" (bar {bar:g})" if bar is not None else ""))

    line("database", size, JOB_BYTES, "bytes a job")
    for turn in range(starts):
        process, spent = start(variables)
        seconds.append(spent)
        if turn < starts - 1:
            process.terminate()
            process.wait()
    line("start, median", statistics.median(seconds), START_SECONDS, "s")
    for template, streams in COMMANDS:
        words = [word.format(jobs=max(jobs, 1)) for word in template]
        if not jobs and words[0] == "cancel":
            continue
        spent, peak, printed = run(words, variables)
        name = " ".join(words)
        line(f"gpq {name}", spent, None if streams else SECONDS, f"s, {printed} bytes")
        line("  its peak", peak, CLIENT_MIB, "MiB")
        line("  daemon", resident(process.pid), DAEMON_MIB, "MiB")
    line("daemon's peak", resident(process.pid, "VmHWM"), DAEMON_MIB, "MiB")
    process.terminate()
    process.wait()
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--home", default="", help="keep the state here, and use it again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = options.home or temporary
        if not os.path.exists(os.path.join(home, "gpq.db")):
            os.makedirs(home, exist_ok=True)
            Path(home, "config.toml").write_text("[nodes.local]\nslots = 2\n")
            began = time.perf_counter()
            fill(os.path.join(home, "gpq.db"), options.jobs)
            print(f"{options.jobs} jobs written in {time.perf_counter() - began:.0f} s")
        return 0 if measure(home, options.jobs, options.starts) else 1


if __name__ == "__main__":
    sys.exit(main())
