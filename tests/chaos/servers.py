"""Partitions beyond the end of a lease, reboots, foreign processes with the pids of dead ones, killed agents: in a
laboratory."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from gpq.connectors.from_config import daemon_id
from gpq.rpc.job_answers import CancelResult
from gpq.rpc.requests import Cancel
from tests.chaos.runs import Measured, run
from tests.lab.daemons import LabDaemon
from tests.lab.kinds import PLAIN
from tests.lab.lab import Lab
from tests.lab.server import USER, Server
from tests.support.waiting import wait_until

LEASE = 10.0
TOGETHER = 3  # jobs on each server
STARTS = "echo run >>ran-$GPQ_JOB_ID; while ! test -e go; do sleep 0.1; done; exit 7"
# Notes the boot clock while it lives. Servers of a laboratory share that clock. TERM does not stop it from writing.
LIVING = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(f"alive-{os.environ['GPQ_JOB_ID']}.{os.environ['GPQ_ATTEMPT']}", "a", buffering=1) as told:
    while not os.path.exists("go"):
        told.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}\\n")
        time.sleep(0.02)
"""
# Notes every signal that it can catch.
STRANGER = """
import signal, sys, time
def note(number, _):
    with open(sys.argv[1], "a") as told:
        told.write(f"{number}\\n")
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, note)
open(sys.argv[1], "a").close()
time.sleep(86400)
"""


@contextmanager
def laboratory(lab: Lab | None) -> Iterator[Lab]:
    """The only server, or one of two."""
    with Lab({"srv-a": PLAIN, "srv-b": PLAIN}) if lab is None else nullcontext(lab) as given:
        yield given


# -- leases ------------------------------------------------------------------------------------------------------------


@run("partitions", row="26", times=50, unit="partition past the end of a lease")
def partitions(times: int, seed: int, lab: Lab | None = None) -> Sequence[Measured]:
    """Cuts both directions or one. Each job ends itself before it lives elsewhere, by its own stamps."""
    return _partitions(times, seed, lab)


@run(
    "partitions-killed",
    row="26",
    times=50,
    unit="partition past the end of a lease of jobs with killed supervisors",
)
def partitions_killed(times: int, seed: int, lab: Lab | None = None) -> Sequence[Measured]:
    """The same, but each supervisor is killed at a random instant around that time.

    The kernel does this when memory runs out.
    """
    return _partitions(times, seed, lab, "KILL")


@run(
    "partitions-stopped",
    row="26",
    times=50,
    unit="partition past the end of a lease of jobs with stopped supervisors",
)
def partitions_stopped(times: int, seed: int, lab: Lab | None = None) -> Sequence[Measured]:
    """The same, but each supervisor is stopped at a random instant around that."""
    return _partitions(times, seed, lab, "STOP")


def _partitions(times: int, seed: int, lab: Lab | None, harm: str = "") -> Sequence[Measured]:
    """`harm`: the signal that supervisors get."""
    faults, dice = ("cut", "drop_in", "drop_out"), random.Random(seed)
    overlap = never = 0.0
    moved = wrong = 0
    gaps: list[float] = []
    with laboratory(lab) as here, LabDaemon(here, {"srv-a": 2 * TOGETHER, "srv-b": 2 * TOGETHER}) as daemon:
        for server in here:
            (server.home / "living.py").write_text(LIVING)
        for number in range(times):
            daemon.up("srv-a", "srv-b")
            jobs = [daemon.run("exec python3 living.py", requeue_on_lost=LEASE) for _ in range(TOGETHER)]
            places = {job: daemon.place(job) for job in jobs}
            first = places[jobs[0]]
            hit = [job for job, place in places.items() if place == first]
            other = here["srv-b" if first == "srv-a" else "srv-a"]
            for job in jobs:
                _until_alive(here[places[job]], job, 1)
            shims = [_pids(here[first], daemon, job)[0] for job in hit] if harm else []
            early = [pid for pid in shims if dice.random() < 0.5]
            _signal(here[first], harm, early)
            getattr(here[first].link, faults[(seed + number) % 3])()
            if harm:
                time.sleep(dice.uniform(0.0, LEASE / 2))
            _signal(here[first], harm, [pid for pid in shims if pid not in early])
            for job in hit:
                _until_alive(other, job, 2)
            time.sleep(0.3)  # an overlap would show here
            for job in hit:
                gap = _alive(other, job, 2)[0] - _alive(here[first], job, 1)[-1]
                overlap, moved = max(overlap, -gap), moved + 1
                gaps.append(gap)
            for server in here:
                (server.home / "go").touch()
            ends = daemon.ended(*jobs)
            wrong += sum(end != ("completed", 0) for end in ends.values())
            here[first].link.heal()
            daemon.up(first)
            never += sum(bool(_alive(server, job, 3)) for server in here for job in jobs)
            for server in here:
                (server.home / "go").unlink()
    return [
        Measured("partitions", times),
        Measured("jobs that moved", moved, at_least=times),
        Measured("longest overlap of two attempts", overlap, at_most=0.0, unit="s"),
        Measured("shortest time between two attempts", min(gaps), unit="s"),
        Measured("longest time between two attempts", max(gaps), unit="s"),
        Measured("third attempts", int(never), at_most=0),
        Measured("wrong ends", wrong, at_most=0),
    ]


def _signal(server: Server, name: str, pids: Sequence[int]) -> None:
    if pids:
        server.inside("kill", f"-{name}", *map(str, pids))


def _until_alive(server: Server, job: int, attempt: int) -> None:
    wait_until(lambda: _alive(server, job, attempt), f"attempt {attempt} runs on {server.name}", 90.0)


def _alive(server: Server, job: int, attempt: int) -> list[float]:
    path = server.home / f"alive-{job}.{attempt}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [float(line) for line in lines if line.endswith(tuple("0123456789"))]


# -- reboots -----------------------------------------------------------------------------------------------------------


@run("reboots", row="21, 22", times=100, unit="reboot with foreign processes at the pids of a job and its supervisor")
def reboots(times: int, seed: int, lab: Lab | None = None) -> Sequence[Measured]:
    """The power fails under a job. When the server is back, foreign processes have the pids of its processes.

    They also have the start times in the job's records.
    """
    signalled = dead = rerun = untold = 0
    longest = 0.0
    with laboratory(lab) as here, LabDaemon(here, {"srv-a": 1}) as daemon:
        server = here["srv-a"]
        (server.home / "stranger.py").write_text(STRANGER)
        (server.home / "stranger.py").chmod(0o644)
        daemon.up("srv-a")
        for number in range(times):
            server.inside("sh", "-c", f"echo {20_000 + 50 * (seed + number) % 10_000} >/proc/sys/kernel/ns_last_pid")
            job = daemon.run(STARTS)
            wait_until((server.home / f"ran-{job}").exists, "it runs")
            daemon.until(job, "running")
            server.link.cut()
            server.reboot()
            logs = _strangers(server, daemon, job)
            if number % 2:
                daemon.call(Cancel([str(job)], wait=0.0), CancelResult)
            began = time.monotonic()
            server.link.heal()
            after = daemon.run(f"echo {number}")  # needs the slot
            assert daemon.ended(after) == {after: ("completed", 0)}
            longest = max(longest, time.monotonic() - began)
            detail = daemon.detail(job)
            told = " ".join([detail.job.reason, *(one.why for one in detail.attempts), *detail.notices])
            untold += "reboot" not in told and detail.job.state != "cancelled"
            rerun += (server.home / f"ran-{job}").read_text().count("run") != 1
            signalled += sum(len(log.read_text().split()) for log in logs)
            dead += sum(
                not server.inside("cat", f"/proc/{pid}/comm", check=False) for pid in _pids(server, daemon, job)
            )
    return [
        Measured("reboots", times),
        Measured("signals to foreign processes", signalled, at_most=0),
        Measured("foreign processes that are gone", dead, at_most=0),
        Measured("jobs that ran again without a request", rerun, at_most=0),
        Measured("ends that do not say why", untold, at_most=0),
        Measured("from the pulled cable to the end of the next job", longest, at_most=15.0, unit="s"),
    ]


def _records(server: Server, daemon: LabDaemon, job: int) -> list[Path]:
    """In the folder of the attempt, which moves once it is forgotten. Earlier daemons also had jobs with this number."""
    [spool] = server.home.glob(f".gpq/nodes/{daemon_id(str(daemon.home))}/*/attempts")
    [folder] = [*spool.glob(f"{job}.1"), *spool.parent.glob(f"ended/*/{job}.1")]
    return [folder / name for name in ("shim.json", "started.json")]


def _pids(server: Server, daemon: LabDaemon, job: int) -> list[int]:
    return [int(json.loads(path.read_text())["pid"]) for path in _records(server, daemon, job)]


def _strangers(server: Server, daemon: LabDaemon, job: int) -> list[Path]:
    """Start processes at the pids of the records, and put their start times into the records. This is like a reboot of
    the same length: only the boot id differs."""
    logs = []
    for path in _records(server, daemon, job):
        record = json.loads(path.read_text())
        log = server.home / f"stranger-{record['pid']}-{job}"
        server.as_pid(record["pid"], "python3", f"/home/{USER}/stranger.py", f"/home/{USER}/{log.name}")
        wait_until(log.exists, "a foreign process has started")
        stat = server.inside("cat", f"/proc/{record['pid']}/stat")
        record["start_time"] = int(stat.rpartition(")")[2].split()[19])
        path.write_text(json.dumps(record))
        logs.append(log)
    return logs


# -- agents ------------------------------------------------------------------------------------------------------------


@run("agent-kills", row="23", times=500, unit="kill -9 of a node agent")
def agent_kills(times: int, seed: int, lab: Lab | None = None) -> Sequence[Measured]:
    """Another agent starts soon. The job under it notices nothing, and neither do its users."""
    seen = set()
    longest = 0.0
    with laboratory(lab) as here, LabDaemon(here, {"srv-a": 1}) as daemon:
        server = here["srv-a"]
        daemon.up("srv-a")
        job = daemon.run(STARTS)
        wait_until((server.home / f"ran-{job}").exists, "it runs")
        daemon.until(job, "running")
        for _ in range(times):
            killed = wait_until(lambda: agents(server), "an agent runs")
            began = time.monotonic()
            for pid in killed:
                with suppress(ProcessLookupError):  # it was just being replaced
                    os.kill(pid, signal.SIGKILL)
            wait_until(lambda killed=killed: set(agents(server)) - set(killed), "another agent")  # type: ignore[misc]
            longest = max(longest, time.monotonic() - began)
            wait_until(lambda began=began: daemon.node("srv-a").seen_seconds < time.monotonic() - began, "it answered")  # type: ignore[misc]
            seen.add((daemon.state(job), daemon.node("srv-a").state))
        (server.home / "go").touch()
        end = daemon.ended(job)[job]
        ran = (server.home / f"ran-{job}").read_text()
        (server.home / "go").unlink()
    return [
        Measured("agents killed", times),
        Measured("longest time until the next agent", longest, at_most=5.0, unit="s"),
        Measured("other states of job and node", len(seen - {("running", "up")}), at_most=0, why=str(seen)),
        Measured("runs of the job", ran.count("run"), at_most=1, at_least=1),
        Measured("wrong ends", int(end != ("failed", 7)), at_most=0, why=str(end)),
    ]


def agents(server: Server) -> list[int]:
    """Pids of the agents there, which the connections run. (Shims have the same command line, but sshd is not their
    parent.)"""
    sessions = server.inside("pgrep", "-d,", "-x", "sshd").strip()
    found = server.inside("pgrep", "-P", sessions, "-f", "gpq_agent.node --spool", check=False).split()
    inner = {int(pid) for pid in found}
    return [pid for pid in server.processes() if server.pid_inside(pid) in inner]
