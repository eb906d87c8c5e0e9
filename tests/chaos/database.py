"""The database under a daemon: locked by another process, damaged, or opened by two daemons at once."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gpq.errors import GpqError
from gpq.rpc.job_answers import CancelResult, JobList, JobView
from gpq.rpc.requests import Cancel, Status, Wait
from gpq.store.sqlite import SqliteStore
from tests.daemon import daemons
from tests.e2e.harness import Daemon
from tests.support.waiting import wait_until

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """By another process."""
    argv = [sys.executable, "-c", HOLDER, str(database)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        yield
        holder.communicate("go on\n", timeout=60)


@dataclass
class Locked:
    seconds: float = 0.0
    changed: list[str] = field(default_factory=list)  # job states during the lock
    wrong: list[str] = field(default_factory=list)  # afterwards
    acknowledged: int = 0  # submissions that waited for the end of the lock
    slowest_look: float = 0.0  # seconds of a `status` during the lock


def lock_for(seconds: float) -> Locked:
    """Meanwhile one job ends, one continues, one waits, and one is submitted."""
    found = Locked()
    with Daemon(slots=2) as daemon:
        ends = daemon.shell("echo x >> ran-ends; while [ ! -e one ]; do sleep 0.05; done; exit 7")
        stays = daemon.shell("echo x >> ran-stays; while [ ! -e two ]; do sleep 0.05; done; exit 8")
        for job in (ends, stays):
            daemon.until(job, "running")
        waits = daemon.shell("echo x >> ran-waits; exit 9")
        before = _states(daemon)
        with ThreadPoolExecutor(1) as pool:
            with locked(daemon.home / "gpq.db"):
                began = time.monotonic()
                submitted = pool.submit(daemon.shell, "echo x >> ran-late; exit 6")
                (daemon.work / "one").touch()
                while time.monotonic() < began + seconds:
                    looked = time.monotonic()
                    now = _states(daemon)
                    found.slowest_look = max(found.slowest_look, time.monotonic() - looked)
                    found.changed += [f"{job}: {state}" for job, state in now.items() if before.get(job) != state]
                    time.sleep(0.2)
                found.seconds = time.monotonic() - began
            late = submitted.result(timeout=120)
        found.acknowledged = 1
        (daemon.work / "two").touch()
        wanted = {ends: ("failed", 7), stays: ("failed", 8), waits: ("failed", 9), late: ("failed", 6)}
        told = daemon.ended(*wanted)
        found.wrong = [f"{job}: {told[job]}" for job, end in wanted.items() if told[job] != end]
        ran = [(daemon.work / f"ran-{name}").read_text() for name in ("ends", "stays", "waits", "late")]
        found.wrong += [f"ran {len(one) // 2} times" for one in ran if one != "x\n"]
    return found


def _states(daemon: Daemon) -> dict[int, str]:
    return {row.id: row.state for row in daemon.rows().jobs}


@dataclass
class Damaged:
    refused: int = 0
    harmless: int = 0  # nothing uses the damaged part
    told: int = 0  # it serves, and says what it cannot read
    resets: list[str] = field(default_factory=list)  # it serves, but something is missing or different
    touched: list[str] = field(default_factory=list)  # a refused file that changed
    restored: int = 0  # jobs back after restoring the backup as the hint says


def damage(times: int, seed: int, jobs: int = 40) -> Damaged:
    """Damage a database in one place, start a daemon on it, and check what it says. Then again from the intact one."""
    found, dice = Damaged(), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="gpq-", ignore_cleanup_errors=True) as folder:
        made = daemons.Daemon(Path(folder) / "home")
        database = made.home / "gpq.db"
        try:
            made.start()
            for number in range(jobs):
                made.submit("sh", "-c", f"exit {number % 5}", name=f"job-{number}")
            made.call(Wait(["all"], wait=120.0), JobList)  # all remaining ones
            wanted = made.call(Status(recent=1000), JobList).jobs
            assert [(job.id, job.exit_status) for job in wanted] == [(one + 1, one % 5) for one in range(jobs)]
            made.stop()
            with contextlib.closing(SqliteStore(str(database))) as store:
                store.backup()
            sound = database.read_bytes()
            for number in range(times):
                hurt = _hurt(sound, dice)
                database.write_bytes(hurt)
                _look(made, database, hurt, {job.id: job for job in wanted}, found, f"damage {number}")
            database.write_bytes(sound[:100] + bytes(len(sound) - 100))
            process, verdict = made.spawn()
            process.wait(60)
            subprocess.run(["sh", "-c", verdict["hint"].split("`")[1]], check=True)
            made.start()
            found.restored = len(made.call(Status(recent=10 * jobs), JobList).jobs)
        finally:
            daemons.clear(made)
    return found


def _hurt(sound: bytes, dice: random.Random) -> bytes:
    where = dice.randrange(len(sound))
    kind = dice.choice(("bit", "zeros", "noise", "page", "short"))
    if kind == "bit":
        return sound[:where] + bytes([sound[where] ^ 1 << dice.randrange(8)]) + sound[where + 1 :]
    if kind == "short":
        return sound[:where]
    length = 4096 if kind == "page" else 100
    where -= where % length
    put = bytes(length) if kind == "zeros" else dice.randbytes(length)
    return (sound[:where] + put + sound[where + length :])[: len(sound)]


def _look(
    made: daemons.Daemon, database: Path, hurt: bytes, wanted: dict[int, JobView], found: Damaged, name: str
) -> None:
    process, verdict = made.spawn()
    made.process = process
    if not verdict.get("ok"):
        process.wait(60)
        found.refused += 1
        if database.read_bytes() != hurt or "damaged" not in verdict.get("error", ""):
            found.touched.append(f"{name}: {verdict}")
    else:
        try:
            rows = {job.id: job for job in made.call(Status(recent=1000), JobList).jobs}
            if rows == wanted:
                found.harmless += 1
            else:
                found.resets.append(f"{name}: {_differences(wanted, rows)}")
        except GpqError as error:
            found.told += 1
            if "damaged" not in error.message:
                found.resets.append(f"{name}: {error.message}")
        made.stop()
    for left in ("-wal", "-shm"):
        Path(f"{database}{left}").unlink(missing_ok=True)


def _differences(wanted: dict[int, JobView], rows: dict[int, JobView]) -> str:
    """What is missing, unexpected, or different from before."""
    fields = [
        f"{job}.{name}: {getattr(wanted[job], name)!r} became {getattr(rows[job], name)!r}"
        for job in sorted(set(wanted) & set(rows))
        for name in JobView.__struct_fields__
        if getattr(wanted[job], name) != getattr(rows[job], name)
    ]
    return f"{sorted(set(wanted) - set(rows))} are gone, {sorted(set(rows) - set(wanted))} are new, {fields}"


@dataclass
class Two:
    starts: int = 0
    serving: list[int] = field(default_factory=list)  # daemons that served after each race
    harmed: list[str] = field(default_factory=list)


def two_daemons(times: int) -> Two:
    """Start two at once, `times` times: one serves, and the other says that one is running. Jobs of the first one
    continue."""
    found = Two()
    with tempfile.TemporaryDirectory(prefix="gpq-", ignore_cleanup_errors=True) as folder:
        made = daemons.Daemon(Path(folder) / "home")
        try:
            made.start()
            made.wait_for_nodes()
            job = made.submit("sleep", "600")
            wait_until(lambda: made.call(Status(), JobList).jobs[0].state == "running", "the job runs")
            for _ in range(times):
                made.kill()
                with ThreadPoolExecutor(2) as pool:
                    both = list(pool.map(lambda _: made.spawn(), range(2)))
                found.starts += 1
                served = [process for process, verdict in both if verdict.get("ok")]
                found.serving.append(len(served))
                for process, verdict in both:
                    if process in served:
                        continue
                    if process.wait(60) != 5 or "a daemon already runs" not in verdict["error"]:
                        found.harmed.append(f"{process.returncode}: {verdict}")
                made.process = served[0]
                rows = made.call(Status(), JobList).jobs
                if [row.id for row in rows] != [job] or rows[0].state not in ("starting", "running"):
                    found.harmed.append(f"jobs: {rows}")
            made.call(Cancel(["all"], wait=60.0), CancelResult)  # running jobs would outlive their daemon
        finally:
            daemons.clear(made)
    return found
