"""Silent servers and leases with real processes. Nothing runs twice at once, and gpq shows what it cannot know as
unknown."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpq.rpc.job_answers import CancelResult
from gpq.rpc.requests import Cancel
from tests.daemon.daemons import QUICK
from tests.e2e.harness import Daemon
from tests.support import commands
from tests.support.figures import Figures
from tests.support.processes import kill, running_children
from tests.support.waiting import PATIENCE, wait_until

LEASE = 10.0
# Each attempt notes the boot clock while it lives. It ignores TERM, so it writes until KILL.
LIVING = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(f"alive.{os.environ['GPQ_ATTEMPT']}", "a", buffering=1) as told:
    while not os.path.exists("go"):
        told.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}\\n")
        time.sleep(0.02)
"""


class Servers(Daemon):
    """Two local nodes of one slot each. `cut` makes one unreachable while its shims and jobs continue."""

    def __init__(self) -> None:
        super().__init__(nodes={"a": 1, "b": 1}, pace=QUICK)
        lines = ['policy = "fifo"']
        for name in ("a", "b"):
            script = self.home / f"python-{name}"
            script.write_text(f'#!/bin/sh\n[ -e {self.home}/cut-{name} ] && exit 1\nexec {sys.executable} "$@"\n')
            script.chmod(0o700)
            lines += [f"[nodes.{name}]", "slots = 1", f'python = "{script}"']
        (self.home / "config.toml").write_text("\n".join(lines) + "\n")

    def cut(self, name: str) -> None:
        (self.home / f"cut-{name}").touch()
        assert self.process is not None
        for agent in running_children(self.process.pid, str(self.home / "nodes" / name)):
            kill(agent)

    def heal(self, name: str) -> None:
        (self.home / f"cut-{name}").unlink()

    def alive(self, attempt: int) -> list[float]:
        path = self.work / f"alive.{attempt}"
        return [float(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as running:
        yield running
        for name in ("a", "b"):
            (running.home / f"cut-{name}").unlink(missing_ok=True)


def place(servers: Servers, job: int) -> str:
    servers.until(job, "running")
    wait_until(lambda: servers.alive(1), "it lives")
    return servers.detail(job).job.placement[0].node


def living(servers: Servers, **more: object) -> int:
    (servers.work / "job.py").write_text(LIVING)
    return servers.submit(sys.executable, "job.py", **more)


def test_a_job_on_an_unreachable_server_ends_itself_before_it_starts_elsewhere(servers: Servers) -> None:
    job = living(servers, requeue_on_lost=LEASE)
    first = place(servers, job)
    wait_until(lambda: servers.alive(1)[-1] > servers.alive(1)[0] + LEASE + 2.0, "its lease is renewed")
    servers.cut(first)
    wait_until(lambda: servers.alive(2), "it runs elsewhere")
    assert servers.alive(2)[0] > servers.alive(1)[-1]
    found = servers.detail(job)
    assert {part.node for part in found.job.placement} == {"a", "b"} - {first}
    assert [one.outcome for one in found.attempts][:1] == ["stopped"]
    assert any(f"ended by its lease: no contact with {first} for {LEASE:g} s" in line for line in found.notices)
    servers.heal(first)
    wait_until(
        lambda: any(
            one.kind == "Exited" and one.attempt == 1 and f"no contact for {LEASE:g} s" in one.text
            for one in servers.detail(job).history
        ),
        "its end on the first server is recorded",
    )
    assert servers.detail(job).job.attempt == 2
    (servers.work / "go").touch()
    assert servers.ended(job) == {job: ("completed", 0)}
    assert not (servers.work / "alive.3").exists()


def test_a_job_without_a_lease_becomes_unknown_keeps_its_gpu_and_is_cancelled_later(servers: Servers) -> None:
    job = living(servers)
    first = place(servers, job)
    servers.cut(first)
    row = wait_until(
        lambda: (found := servers.detail(job).job).unknown_seconds and found.unknown_seconds > 10.0 * QUICK and found,
        "unknown",
    )
    assert row.state == "running"
    assert row.reason == row.unknown
    assert row.unknown.startswith("unknown for ")
    assert row.unknown.endswith(f"server {first} does not answer")
    assert row.gpus == 1
    before = len(servers.alive(1))
    wait_until(lambda: len(servers.alive(1)) > before, "it continues")
    answer = servers.call(Cancel([str(job)], wait=PATIENCE), CancelResult)
    assert answer.remaining == [job]
    assert "does not answer" in answer.waiting[job]
    environment = {**os.environ, "GPQ_HOME": str(servers.home), "GPQ_CONFIG": str(servers.home / "config.toml")}
    said = commands.run(["cancel", str(job)], environment, timeout=PATIENCE)
    assert said.returncode == 1
    assert "will be cancelled when its server answers (unknown for" in said.stderr
    assert len(servers.alive(1)) > before
    servers.heal(first)
    assert servers.ended(job) == {job: ("cancelled", 137)}


def test_a_daemon_frozen_for_longer_than_the_lease_restarts_its_job(
    servers: Servers,
) -> None:
    job = living(servers, requeue_on_lost=LEASE)
    free = servers.shell("echo $$ > free; while [ ! -e go ]; do sleep 0.05; done; exit 4")
    place(servers, job)
    servers.until(free, "running")
    assert servers.process is not None
    servers.process.send_signal(signal.SIGSTOP)
    try:
        exit_record = next(iter(Path(servers.home / "nodes").glob(f"*/attempts/{job}.1"))) / "exit.json"
        wait_until(exit_record.exists, "it ends itself")
        assert psutil.pid_exists(int((servers.work / "free").read_text()))
    finally:
        servers.process.send_signal(signal.SIGCONT)
    wait_until(lambda: servers.alive(2), "it runs again")
    assert servers.alive(2)[0] > servers.alive(1)[-1]
    assert any("ended by its lease" in line for line in servers.detail(job).notices)
    (servers.work / "go").touch()
    assert servers.ended(job, free) == {job: ("completed", 0), free: ("failed", 4)}


def test_a_server_that_slept_past_the_lease_ends_its_job_when_it_wakes(servers: Servers, figures: Figures) -> None:
    job = living(servers, requeue_on_lost=LEASE)
    first = place(servers, job)
    wait_until(lambda: len(attempt_of(servers, first)) >= 3, "guard, shim and job")
    everything = attempt_of(servers, first)
    for one in everything:
        one.suspend()
    servers.cut(first)
    wait_until(lambda: servers.alive(2), "it runs elsewhere")
    begun, last = servers.alive(2)[0], servers.alive(1)[-1]
    assert begun > last + LEASE
    for one in everything:
        one.resume()
    wait_until(lambda: not attempt_of(servers, first), "it has ended")
    late = [at for at in servers.alive(1) if at > last] or [last]
    figures.at_most("a job continues after a sleep, until the next check of the clock", late[-1] - late[0], 5.0)
    (servers.work / "go").touch()
    assert servers.ended(job) == {job: ("completed", 0)}


def attempt_of(servers: Servers, name: str) -> list[psutil.Process]:
    """The processes of the attempts on a node, with their supervisors first. The agents are children of this test."""
    found, ours = [], psutil.Process().children(recursive=True)
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            shim = str(servers.home / "nodes" / name) in one.cmdline() and one not in ours
            mark = one.environ().get("GPQ_RUN_DIR", "").startswith(str(servers.home / "nodes" / name))
            if (shim or mark) and one.status() != psutil.STATUS_ZOMBIE:
                found.append((not shim, one))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def reboot(servers: Servers, *jobs: int) -> None:
    """As after a power cut: every process of the attempts is gone, and their records are from another boot."""
    servers.kill()
    for job in jobs:
        [folder] = Path(servers.home / "nodes").glob(f"*/attempts/{job}.1")
        for name in ("shim.json", "started.json"):
            record = json.loads((folder / name).read_text())
            psutil.Process(record["pid"]).kill()
            (folder / name).write_text(json.dumps({**record, "boot_id": "another", "pid": os.getpid()}))
        (folder / "exit.json").unlink(missing_ok=True)  # the shim may have seen the job end
    wait_until(
        lambda: not [one for one in psutil.process_iter() if str(servers.work) in _cwd(one)], "all processes are gone"
    )


def _cwd(process: psutil.Process) -> str:
    try:
        return process.cwd()
    except psutil.Error:
        return ""


def test_after_a_reboot_jobs_with_checkpoints_resume_and_a_black_box_fails_with_the_reason(servers: Servers) -> None:
    command = '[ -n "$GPQ_RESUME" ] && exit 0; while :; do sleep 0.05; done'
    plain = servers.shell("exec sleep 600")
    keeping = servers.shell(command, level="signal")
    for job in (plain, keeping):
        servers.until(job, "running")
    reboot(servers, plain, keeping)
    servers.start()
    assert servers.ended(plain, keeping) == {plain: ("failed", 1), keeping: ("completed", 0)}
    assert "rebooted" in servers.detail(plain).job.reason
    assert servers.detail(keeping).job.attempt == 2
    assert servers.detail(plain).job.attempt == 1


def test_a_killed_daemon_that_is_back_in_time_keeps_the_lease(servers: Servers) -> None:
    job = living(servers, requeue_on_lost=60.0)
    place(servers, job)
    servers.kill()
    servers.start()
    begun = servers.alive(1)[-1]
    wait_until(lambda: servers.alive(1)[-1] > begun + 2.0, "it continues")
    assert (servers.detail(job).job.attempt, servers.state(job)) == (1, "running")
    (servers.work / "go").touch()
    assert servers.ended(job) == {job: ("completed", 0)}
