"""One workload under one policy: four servers of four slots on this machine, and real jobs.

A folder keeps what was seen: `samples.jsonl` (each job, every second), `details.jsonl` (`gpq show`
of those that run, every 15 seconds), `times/JOB-ATTEMPT.json` (what steps took), `home` (database
and logs of the daemon, logs of jobs) and `result.json`, which is there once the run has ended.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

import msgspec
import psutil

from benchmarks.lab.fork_once import WRAPPER
from benchmarks.lab.workloads import COMMAND, WORKLOADS, Arrival
from benchmarks.workstation import daemon, moment
from gpq.client import connection
from gpq.policies.registry import entry
from gpq.rpc.account_answers import HistoryList, ReportView
from gpq.rpc.job_answers import JobDetail, JobList, JobView, Submitted
from gpq.rpc.requests import History, Report, Show, SpecMessage, Status, Submit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SERVERS, SLOTS = 4, 4
# Time runs six to ten times as fast as in a lab, so gpq's own times are shorter, too.
INTERVAL, RESTART = 10.0, 5.0
SETTINGS = {
    "interval": INTERVAL,
    "restart_seconds": RESTART,
    "settle_seconds": 5.0,
    "grace": 30.0,
}
WARM_UP = 3.0  # seconds for the servers to come up
LOOK_SECONDS, DETAIL_SECONDS = 1.0, 15.0
PATIENCE = 1500.0  # seconds from the last arrival to the last end
KEPT = ("PATH", "HOME", "LANG")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class JobResult(msgspec.Struct, frozen=True):
    """Seconds, from the submission on."""

    name: str
    seconds: float  # to its end
    wait: float
    in_steps: float
    reached: bool  # its target
    starts: int
    resizes: int
    gpu_seconds: float
    restart_gpu_seconds: float  # of these
    rho: float | None
    gains: list[tuple[float, float]]  # of each resize for which both are known: promised, measured


class RunResult(msgspec.Struct, frozen=True):
    workload: str
    policy: str
    commit: str
    day: str
    cpu: float  # mean share of the machine, 0 to 1
    steps: float  # seconds in steps, relative to the model
    promised_hours: float  # that growths saved
    gained_hours: float
    training: float  # GPUs that train, mean until the last arrival
    moving: float  # GPUs that start or stop
    jobs: list[JobResult]


def play(workload: str, policy: str, folder: Path, commit: str) -> RunResult:
    """The result, which is also in the folder. Raises SystemExit if the jobs do not end."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "times").mkdir(parents=True)
    lines = [f'policy = "{policy}"', *(f"{name} = {value}" for name, value in SETTINGS.items())]
    servers = [f"[nodes.s{number + 1}]\nslots = {SLOTS}\n" for number in range(SERVERS)]
    with daemon("\n".join(lines), "".join(servers)) as home:
        try:
            watch = Watch(folder, _python(home), entry(policy).gang)
            watch.run(workload, WORKLOADS[workload])
            jobs = _jobs(watch, times := _times(folder))
            total = connection.call(Report(), ReportView).total
        finally:
            parts = shutil.ignore_patterns("checkpoints", "*sock*", "gpq-lab-python")
            shutil.copytree(home, folder / "home", symlinks=True, ignore=parts)
    every = [part for parts in times.values() for part in parts]
    modelled = sum(part["modelled"] for part in every)
    result = RunResult(
        workload,
        policy,
        commit,
        time.strftime("%Y-%m-%d"),
        watch.cpu,
        sum(part["measured"] for part in every) / modelled if modelled else 1.0,
        total.promised_hours,
        total.gained_hours,
        *watch.occupancy(),
        jobs,
    )
    (folder / "result.json").write_bytes(msgspec.json.encode(result))
    return result


class Watch:
    """Submits each job when it arrives, and looks at the queue until all have ended."""

    def __init__(self, folder: Path, python: str, is_gang: bool) -> None:
        """`python`: of the scripts. `is_gang`: each job has the GPUs that it asks for."""
        self.names: dict[int, str] = {}  # of the jobs, by id
        # Promised and measured, by job and attempt. The daemon keeps only the latest few.
        self.gains: dict[int, dict[int, tuple[float, float]]] = defaultdict(dict)
        self.cpu = 0.0
        self._folder, self._python, self._is_gang = folder, python, is_gang
        self._gpus: list[tuple[int, int]] = []  # (that train, that start or stop) at each look

    def run(self, workload: str, arrivals: Sequence[Arrival]) -> None:
        connection.call(Status([]), JobList)
        time.sleep(WARM_UP)
        psutil.cpu_percent()
        began = time.monotonic()
        queue = sorted(arrivals, key=lambda arrival: arrival.at)
        until = began + queue[-1].at + PATIENCE
        next_detail, jobs = 0.0, []
        with (
            (self._folder / "samples.jsonl").open("wb") as samples,
            (self._folder / "details.jsonl").open("wb") as details,
        ):
            while queue or any(job.ended_at is None for job in jobs):
                now = time.monotonic()
                if now > until:
                    raise SystemExit(f"the jobs did not end in {PATIENCE:g} s: see {self._folder}")
                while queue and now - began >= queue[0].at:
                    self._submit(workload, queue.pop(0))
                jobs = self._look()
                live = [job for job in jobs if job.ended_at is None]
                _write(samples, now - began, live)
                if queue:
                    self._gpus.append(_occupancy(live))
                if now >= next_detail:
                    next_detail = now + DETAIL_SECONDS
                    running = [job for job in live if job.state == "running"]
                    _write(details, now - began, [self.detail(job.id) for job in running])
                time.sleep(max(now + LOOK_SECONDS - time.monotonic(), 0.05))
        self.cpu = psutil.cpu_percent() / 100

    def detail(self, job: int) -> JobDetail:
        detail = connection.call(Show(str(job)), JobDetail)
        for restart in detail.restart_times:
            if restart.promised and restart.measured:
                self.gains[job][restart.attempt] = restart.promised, restart.measured
        return detail

    def occupancy(self) -> tuple[float, float]:
        """Mean GPUs that train, and that start or stop, until the last arrival."""
        looks = self._gpus or [(0, 0)]
        return sum(a for a, _ in looks) / len(looks), sum(b for _, b in looks) / len(looks)

    def _look(self) -> list[JobView]:
        if not self.names:
            return []
        return connection.call(Status([str(number) for number in self.names]), JobList).jobs

    def _submit(self, workload: str, arrival: Arrival) -> None:
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        env |= {**ONE_THREAD, "PYTHONPATH": f"{HERE / 'light'}:{ROOT}"}
        # Data of its own, the same in every run.
        seed = crc32(f"{workload} {arrival.name}".encode())
        least = most = arrival.gpus
        if not (arrival.fixed or self._is_gang):
            least, most = 1, SERVERS * SLOTS
        if arrival.kind == COMMAND:
            argv, level, python = ["sleep", f"{arrival.seconds:g}"], "black-box", ""
        else:
            words = f"--kind {arrival.kind} --seed {seed} --times".split()
            argv = [str(HERE / "train.py"), *words, str(self._folder / "times")]
            level, python = "script", self._python
        spec = SpecMessage(
            argv=argv,
            cwd=str(ROOT),
            level=level,
            name=arrival.name,
            env=env,
            python=python,
            python_asked=bool(python),
            min_gpus=least,
            max_gpus=most,
        )
        self.names[connection.call(Submit(spec), Submitted).id] = arrival.name


def _jobs(watch: Watch, times: Mapping[int, list[dict[str, float]]]) -> list[JobResult]:
    history = {row.id: row for row in connection.call(History(limit=0), HistoryList).jobs}
    results = []
    for number, name in watch.names.items():
        row, detail = history[number], watch.detail(number)
        results.append(
            JobResult(
                name,
                moment(row.ended_at) - moment(row.submitted_at),
                row.wait_seconds or 0.0,
                sum(part["measured"] for part in times[number]),
                row.state == "completed",
                len(detail.attempts),
                detail.job.resizes,
                row.gpu_hours * 3600,
                (row.restart_gpu_hours or 0.0) * 3600,
                row.rho,
                list(watch.gains[number].values()),
            )
        )
    return results


def _times(folder: Path) -> Mapping[int, list[dict[str, float]]]:
    """What attempts measured, by job."""
    times: dict[int, list[dict[str, float]]] = defaultdict(list)
    for file in (folder / "times").glob("*.json"):
        times[int(file.stem.split("-")[0])].append(json.loads(file.read_text()))
    return times


def _occupancy(jobs: Sequence[JobView]) -> tuple[int, int]:
    """GPUs of these jobs that train, and that start or stop."""
    held = sum(job.gpus for job in jobs)
    training = sum(
        job.gpus
        for job in jobs
        if job.state == "running" and (job.total_batch or job.level == "black-box")
    )
    return training, held - training


def _write(file: BinaryIO, at: float, rows: Sequence[msgspec.Struct]) -> None:
    file.write(msgspec.json.encode({"at": round(at, 2), "jobs": rows}) + b"\n")


def _python(home: Path) -> str:
    """An interpreter for the scripts that imports torch once per attempt and server."""
    path = home / "gpq-lab-python"
    text = WRAPPER.format(python=sys.executable, fork_once=str(HERE / "fork_once.py"))
    path.write_text(text)
    path.chmod(0o755)
    return str(path)
