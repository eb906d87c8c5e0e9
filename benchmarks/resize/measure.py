"""Resizes a real job from one slot to two and back, and measures how long it stands still."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import psutil
from gpq_agent import wire

from benchmarks.workstation import daemon
from gpq.client import connection
from gpq.rpc.job_answers import Changed, JobList, Submitted
from gpq.rpc.requests import Edit, SpecMessage, Status, Submit

JOB = Path(__file__).resolve().parent / "job.py"
STEPS = 8  # of each attempt before the next resize
WARM_UP = 3  # steps of an attempt that are not steady yet
PATIENCE = 300.0  # seconds until an attempt has made its steps
SETTINGS = 'policy = "fifo"\nsettle_seconds = 1.0\n'
REST_SECONDS = 2.0  # without CPU time: a standby that is ready
KEPT = ("PATH", "HOME", "LANG")


class Step(NamedTuple):
    """One optimizer step. `ended`: seconds."""

    attempt: int
    replicas: int
    ended: float


class Pause(NamedTuple):
    """One resize. `seconds`: from the last step to the first, less a steady step."""

    before: int  # replicas
    after: int
    seconds: float


class Way(NamedTuple):
    """How replicas start. `launcher`: as for `gpq submit`. `standby`: as in config.toml."""

    launcher: str = ""
    standby: bool = False


def resize(millions: int, way: Way) -> list[Pause]:
    """The pauses of one job."""
    standby = f"standby = {str(way.standby).lower()}\n"
    with tempfile.TemporaryDirectory() as folder, daemon(SETTINGS + standby):
        moments = Path(folder, "moments")
        moments.touch()
        job = _submit(moments, millions, way.launcher)
        for attempt, replicas in ((1, 1), (2, 2), (3, 1)):
            if attempt > 1:
                size: dict[str, object] = {"min_gpus": replicas, "max_gpus": replicas}
                connection.call(Edit([str(job)], size), Changed)
            _await(moments, job, attempt)
            if way.standby:
                _await_standby()
        return pauses(_steps(moments))


def pauses(steps: Sequence[Step]) -> list[Pause]:
    """The pauses between the attempts of one job, in order."""
    attempts = [list(group) for _, group in groupby(steps, lambda step: step.attempt)]
    return [
        Pause(
            before[-1].replicas,
            after[0].replicas,
            after[0].ended - before[-1].ended - _steady(after),
        )
        for before, after in pairwise(attempts)
    ]


def _steady(steps: Sequence[Step]) -> float:
    ends = [step.ended for step in steps[WARM_UP:]]
    return statistics.median(later - earlier for earlier, later in pairwise(ends))


def _submit(moments: Path, millions: int, launcher: str) -> int:
    spec = SpecMessage(
        argv=[str(JOB), str(moments), "--millions", str(millions)],
        cwd=str(JOB.parent),
        level="script",
        name=f"{millions}M",
        python=sys.executable,
        launcher=launcher,
        min_gpus=1,
        max_gpus=1,
        env={
            **{name: os.environ[name] for name in KEPT if name in os.environ},
            "OMP_NUM_THREADS": "1",
        },
    )
    return connection.call(Submit(spec), Submitted).id


def _await(moments: Path, job: int, attempt: int) -> None:
    """Wait until the attempt has made its steps. Raises SystemExit if it does not."""
    until = time.monotonic() + PATIENCE
    while sum(step.attempt == attempt for step in _steps(moments)) < STEPS + WARM_UP:
        [row] = connection.call(Status([str(job)]), JobList).jobs
        if row.ended_at is not None or time.monotonic() > until:
            raise SystemExit(f"attempt {attempt} made no {STEPS} steps: {row.state}, {row.reason}")
        time.sleep(0.1)


def _await_standby() -> None:
    """Wait until a standby has imported, so until it rests."""
    until = time.monotonic() + PATIENCE
    used, rests_since = 0.0, time.monotonic()
    while not used or time.monotonic() - rests_since < REST_SECONDS:
        if time.monotonic() > until:
            raise SystemExit("no standby became ready")
        time.sleep(0.1)
        seconds = sum(_cpu_seconds(process) for process in psutil.process_iter())
        if seconds != used:
            used, rests_since = seconds, time.monotonic()


def _cpu_seconds(process: psutil.Process) -> float:
    """Of an interpreter of a standby, and 0 of others."""
    with contextlib.suppress(psutil.Error):
        if process.environ().get(wire.ENV_MARK) == wire.STANDBY_MARK:
            times = process.cpu_times()
            return float(times.user + times.system)
    return 0.0


def _steps(moments: Path) -> list[Step]:
    lines = [
        line.split() for line in moments.read_text().splitlines(keepends=True) if line[-1] == "\n"
    ]
    return [Step(int(attempt), int(replicas), float(ended)) for attempt, replicas, ended in lines]
