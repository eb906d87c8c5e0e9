"""One workload under one policy, on a daemon of its own with two slots."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from benchmarks.real.records import JobRecord, Sample, gains
from benchmarks.real.workloads import Arrival
from benchmarks.workstation import daemon, moment
from gpq.client import connection
from gpq.rpc.account_answers import HistoryList
from gpq.rpc.job_answers import JobDetail, JobList, JobView, Submitted
from gpq.rpc.requests import History, Show, SpecMessage, Status, Submit

LOOK_SECONDS = 1.0
PATIENCE = 3600.0  # seconds from the last arrival to the last end
KEPT = ("PATH", "HOME", "LANG")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def play(policy: str, arrivals: Sequence[Arrival]) -> list[JobRecord]:
    """Submit each job when it arrives and watch them to the end. Raises SystemExit if they do not
    end in time."""
    with daemon(f'policy = "{policy}"'):
        ids, samples = _watch(arrivals)
        history = connection.call(History(limit=0), HistoryList).jobs
        rows = {row.id: row for row in history}
        views = {job.id: job for job in _status(ids)}
    return [
        JobRecord(
            name,
            moment(rows[number].ended_at) - moment(rows[number].submitted_at),
            rows[number].state == "completed",
            rows[number].gpu_hours,
            views[number].restarts,
            rows[number].restart_gpu_hours or 0.0,
            gains(samples[number]),
        )
        for number, name in ids.items()
    ]


def _watch(arrivals: Sequence[Arrival]) -> tuple[dict[int, str], Mapping[int, list[Sample]]]:
    """(name by id, looks by id)"""
    began = time.monotonic()
    queue = sorted(arrivals, key=lambda arrival: arrival.at)
    until = began + queue[-1].at + PATIENCE
    ids: dict[int, str] = {}
    samples: dict[int, list[Sample]] = defaultdict(list)
    while True:
        while queue and time.monotonic() - began >= queue[0].at:
            arrival = queue.pop(0)
            ids[_submit(arrival)] = arrival.name
        jobs = _status(ids)
        for job in jobs:
            if job.gpus and job.state == "running":
                samples[job.id].append(_look(job, time.monotonic() - began))
        if not queue and all(job.ended_at is not None for job in jobs):
            return ids, samples
        if time.monotonic() > until:
            raise SystemExit(f"the jobs did not end within {PATIENCE:.0f} s of the last arrival")
        time.sleep(LOOK_SECONDS)


def _status(ids: Mapping[int, str]) -> list[JobView]:
    return connection.call(Status([str(number) for number in ids]), JobList).jobs if ids else []


def _look(job: JobView, at: float) -> Sample:
    detail = connection.call(Show(str(job.id)), JobDetail)
    curve = {point.gpus: point.goodput for point in detail.curve}
    return Sample(at, job.attempt, job.gpus, job.progress, curve)


def _submit(arrival: Arrival) -> int:
    spec = SpecMessage(
        argv=[str(arrival.script), *arrival.arguments],
        cwd=str(arrival.script.parent),
        level="script",
        name=arrival.name,
        python=sys.executable,
        env={**{name: os.environ[name] for name in KEPT if name in os.environ}, **ONE_THREAD},
    )
    if arrival.gpus:
        spec = SpecMessage(
            argv=[sys.executable, *spec.argv],
            cwd=spec.cwd,
            level="black-box",
            name=spec.name,
            env=spec.env,
            min_gpus=arrival.gpus,
            max_gpus=arrival.gpus,
        )
    return connection.call(Submit(spec), Submitted).id
