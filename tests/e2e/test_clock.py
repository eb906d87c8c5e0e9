"""Clocks are set while jobs run, and machines sleep. No time limit expires because of it, and no order changes.

The test shifts the wall clock of the daemon, node agents and shims where Python reads it (`sitecustomize`, first on the
path). Nothing else on the machine notices.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from gpq.rpc.job_answers import Changed
from gpq.rpc.requests import Hold
from tests.e2e.harness import Daemon
from tests.e2e.test_leases import LEASE, Servers, attempt_of, living, place
from tests.support.figures import Figures
from tests.support.waiting import pid_in, wait_until

HOUR, DAY = 3600.0, 86400.0
STEPPED = """
import os, time
_real = time.time
def _stepped():
    try:
        with open(os.path.join(os.path.dirname(__file__), "by")) as stream:
            return _real() + float(stream.read() or 0)
    except (OSError, ValueError):
        return _real()
time.time = _stepped
"""


class Stepped(Daemon):
    """`step` shifts its wall clock and its node's this far from the true time."""

    def __init__(self) -> None:
        super().__init__(slots=3)
        self.fresh = True
        self.clock = self.home / "clock"
        self.clock.mkdir()
        (self.clock / "sitecustomize.py").write_text(STEPPED)
        script = self.home / "python"
        script.write_text(f'#!/bin/sh\nPYTHONPATH={self.clock}:"$PYTHONPATH" exec {sys.executable} "$@"\n')
        script.chmod(0o700)
        self.config.write_text(f'policy = "fifo"\n[nodes.local]\nslots = 3\npython = "{script}"\n')
        self.step(0.0)

    def environment(self) -> dict[str, str]:
        env = super().environment()
        return {**env, "PYTHONPATH": f"{self.clock}:{env['PYTHONPATH']}"}

    def step(self, seconds: float) -> None:
        new = self.clock / "new"
        new.write_text(str(seconds))
        os.replace(new, self.clock / "by")

    def states(self) -> dict[int, tuple[str, int]]:
        return {row.id: (row.state, row.attempt) for row in self.rows().jobs}


@pytest.fixture
def stepped() -> Iterator[Stepped]:
    with Stepped() as running:
        yield running


def gated(daemon: Daemon, name: str, code: int, **more: object) -> int:
    command = f"echo $GPQ_ATTEMPT >> ran-{name}; echo {name} >> order; while [ ! -e go-{name} ]; do sleep 0.05; done"
    return daemon.shell(f"{command}; exit {code}", name=name, **more)


@pytest.mark.row("32")
def test_setting_the_clock_by_an_hour_or_a_day_changes_no_job(stepped: Stepped, figures: Figures) -> None:
    limited = gated(stepped, "limited", 3, time_limit=600.0)
    leased = gated(stepped, "leased", 4, requeue_on_lost=600.0)
    plain = gated(stepped, "plain", 5, grace=1.0)
    held = gated(stepped, "held", 6)
    stepped.call(Hold([str(held)]), Changed)
    for job in (limited, leased, plain):
        stepped.until(job, "running")
    first, second, third = gated(stepped, "first", 7), gated(stepped, "second", 8), gated(stepped, "third", 9)
    before, changes = stepped.states(), 0
    for number, by in enumerate((HOUR, -HOUR, DAY, -DAY)):
        stepped.step(by)
        if number % 2:
            stepped.kill()
            stepped.start()
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            now = stepped.states()
            changes += now != before
            time.sleep(0.1)
    figures.exactly("changes of a job caused by clock steps of an hour and a day", changes, 0)
    yesterday = time.strftime("%Y-%m-%d", time.localtime(time.time() - DAY))
    assert yesterday in (stepped.home / "daemon.log").read_text(), "the clock was really stepped"
    for name in ("plain", "first", "second", "third"):
        (stepped.work / f"go-{name}").touch()
    told = stepped.ended(plain, first, second, third)  # one after the other on the device of `plain`
    for name in ("leased", "limited"):
        (stepped.work / f"go-{name}").touch()
    told |= stepped.ended(limited, leased)
    codes = {plain: 5, first: 7, second: 8, third: 9, limited: 3, leased: 4}
    assert {job: code for job, (_, code) in told.items()} == codes
    order = (stepped.work / "order").read_text().split()
    assert order[3:] == ["first", "second", "third"]
    assert sorted(order) == sorted(set(order))
    assert stepped.state(held) == "held"


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as running:
        yield running


@pytest.mark.row("33")
def test_after_a_sleep_a_machine_finds_its_jobs_and_runs_none_twice(servers: Servers, figures: Figures) -> None:
    """Stop the daemon, agents, shims and jobs together. The boot clock continues, as in a suspend. Shims wake first,
    because an agent that is faster renews the lease, and then the job runs on."""
    leased = living(servers, requeue_on_lost=LEASE)
    first = place(servers, leased)
    free = servers.shell("echo $$ > free; echo x >> ran; while [ ! -e go ]; do sleep 0.05; done; exit 4")
    servers.until(free, "running")
    pid = pid_in(servers.work / "free")
    assert servers.process is not None
    daemon = psutil.Process(servers.process.pid)
    job = attempt_of(servers, first)[-1]
    with _asleep([daemon, *daemon.children()]):
        with _asleep([*attempt_of(servers, "a"), *attempt_of(servers, "b")]):
            asleep = servers.alive(1)[-1]
            until = asleep + LEASE + 5.0
            wait_until(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) > until, "it has slept long enough")
        wait_until(lambda: not job.is_running(), "its lease ends it")
    wait_until(lambda: servers.alive(2), "the job with a lease runs again")
    overlap = max(0.0, servers.alive(1)[-1] - servers.alive(2)[0])
    figures.at_most("overlap of two attempts after a sleep", overlap, 0.0)
    assert psutil.pid_exists(pid)
    (servers.work / "go").touch()
    assert servers.ended(leased, free) == {leased: ("completed", 0), free: ("failed", 4)}
    figures.exactly("runs of the job without a lease", len((servers.work / "ran").read_text().split()), 1)


@contextlib.contextmanager
def _asleep(processes: list[psutil.Process]) -> Iterator[None]:
    try:
        for one in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # a job's `sleep 0.05` that ended in the meantime
                one.suspend()
        yield
    finally:
        for one in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.resume()
