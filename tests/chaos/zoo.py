"""What jobs do with processes, and what remains after a cancel: one animal per kind, each in its own lair."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from gpq_agent.node.host import procs

from gpq.rpc.job_answers import CancelResult
from gpq.rpc.requests import Cancel
from tests.agent.node.harness import survivors
from tests.chaos.runs import Measured, run
from tests.e2e.harness import Daemon
from tests.support.waiting import wait_until

# Run as `animal.py KIND PIDS`: every process notes its pid and start, and prints "ready" when all have.
SCRIPT = r"""
import os, signal, subprocess, sys, time
kind, path = sys.argv[1], os.path.abspath(sys.argv[2])

def note(word="pid"):
    with open(f"/proc/{os.getpid()}/stat") as stream:
        start = stream.read().rpartition(")")[2].split()[19]
    with open(path, "a") as stream:
        stream.write(f"{word} {os.getpid()} {start}\n")

def deaf():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

def child(body):
    if os.fork() == 0:
        body()
        note()
        while True:
            time.sleep(600)

def daemonize():
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")

def bare(*more):  # another program without a mark, that nobody waits for
    code = "import signal,sys,time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; " \
        "start = open('/proc/self/stat').read().rpartition(')')[2].split()[19]; import os; " \
        "open(sys.argv[1], 'a').write('pid %d %s\\n' % (os.getpid(), start)); time.sleep(600)"
    subprocess.Popen([*more, sys.executable, "-c", code, path], env={}, start_new_session=True)

if kind == "setsid":
    child(os.setsid)
    child(lambda: (os.setsid(), deaf()))
elif kind == "double-fork":
    child(daemonize)
    child(lambda: (daemonize(), deaf()))
elif kind == "no-mark":
    bare()
elif kind == "nohup":
    subprocess.run(["sh", "-c", "nohup sleep 600 >/dev/null 2>&1 & nohup setsid sleep 600 >/dev/null 2>&1 &"])
elif kind == "torchrun":  # workers in sessions of their own, started again when they die; waits for them when it ends
    def worker():
        child(lambda: (os.setsid(), deaf()))
    signal.signal(signal.SIGTERM, lambda *_: time.sleep(30))
    worker(); worker()
elif kind == "dataloader":  # workers that hear no signal, of a main process that is gone at the first one
    child(deaf); child(deaf)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
elif kind == "stopped":
    child(lambda: (note(), os.kill(os.getpid(), signal.SIGSTOP)))
elif kind == "forker":  # never there when it is looked at
    if os.fork() == 0:
        deaf()
        note("ready")
        while True:
            if os.fork():
                os._exit(0)
            time.sleep(0.002)
time.sleep(0.1)
note()
note("ready")
while True:
    time.sleep(600)
"""
PROCESSES = {
    "setsid": 3, "double-fork": 3, "no-mark": 2, "nohup": 1, "torchrun": 3, "dataloader": 3, "stopped": 2, "forker": 1,
}  # fmt: skip  # that note themselves


@run("zoo", row="27", times=200, unit="cancel of a job with hidden processes")
def zoo(times: int, seed: int) -> Sequence[Measured]:
    """Sessions, double forks, nohup, lost marks, small torchruns and DataLoaders, stopped and restless processes."""
    kinds = list(PROCESSES)
    cancelled = left = 0
    longest, why = 0.0, ""
    bystander = subprocess.Popen(["sleep", "86400"])
    try:
        with Daemon(slots=len(kinds)) as daemon:
            (daemon.work / "animal.py").write_text(SCRIPT)
            for first in range(0, times, len(kinds)):
                batch = [kinds[(seed + number) % len(kinds)] for number in range(first, min(first + len(kinds), times))]
                jobs = {
                    daemon.submit(sys.executable, "animal.py", kind, f"pids-{first}-{kind}"): kind for kind in batch
                }
                noted = {kind: _noted(daemon, f"pids-{first}-{kind}", kind) for kind in batch}
                began = time.monotonic()
                answer = daemon.call(Cancel([str(job) for job in jobs], wait=60.0), CancelResult)
                took = time.monotonic() - began
                cancelled += len(answer.cancelled)
                alive = [f"{kind} {pid}" for kind, pids in noted.items() for pid, start in pids if _lives(pid, start)]
                spool = daemon.home / "nodes" / "local"
                alive += [f"{jobs[job]} {one.pid}" for job in jobs for one in survivors(spool, f"{job}.1")]
                left += len(alive)
                longest, why = max(longest, took), why + " ".join(alive)
            free = [device.job for node in daemon.nodes().nodes for device in node.devices]
        stranger = bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    return [
        Measured("jobs cancelled", cancelled, at_least=times),
        Measured("from the cancel to the end of every tree", longest, at_most=15.0, unit="s"),
        Measured("processes left", left, at_most=0, why=why),
        Measured("GPUs still held", sum(job is not None for job in free), at_most=0),
        Measured("foreign processes signalled", int(not stranger), at_most=0),
    ]


def _noted(daemon: Daemon, name: str, kind: str) -> list[tuple[int, int]]:
    def look() -> list[tuple[int, int]]:
        path = daemon.work / name
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        pids = {(int(pid), int(start)) for word, pid, start in lines if word == "pid"}
        ready = sum(word == "ready" for word, _, _ in lines) >= 1 + (kind == "forker")
        return sorted(pids) if ready and len(pids) >= PROCESSES[kind] else []

    return wait_until(look, f"{kind} is ready")


def _lives(pid: int, start: int) -> bool:
    process = procs.read(pid)
    return process is not None and process.alive and process.start_time == start and pid != os.getpid()
