"""How long one allocation round takes, including fit and placement. Exits with 1 if the median is
over the bar.

    python benchmarks/round.py [--jobs 30] [--nodes 16] [--gpus 4] [--users 4] [--rounds 40]
        [--out FILE]

A synthetic lab: adaptive training jobs of several users in every stage (new, profiled, running,
waiting), and a few black boxes. Between two rounds every job reports new step times and noise, so
no answer can come from memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from gpq.core.goodput import goodput as gp
from gpq.core.model.jobs import Job, JobSpec, JobState, Level
from gpq.core.model.nodes import Device, Node, NodeState
from gpq.core.model.placements import Placement
from gpq.core.model.profile import Declared, Noise, Profile, ProfileRow, Progress
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.rounds.rounds import decide
from gpq.policies.registry import policy

MAX_SECONDS = 0.050
Rng = np.random.Generator


def cluster(nodes: int, gpus: int) -> dict[NodeId, Node]:
    return {
        NodeId(f"n{i:02d}"): Node(
            NodeId(f"n{i:02d}"),
            NodeState.UP,
            devices=tuple(
                Device(DeviceId(f"GPU-{i}-{k}"), k, "cuda", "T4", 16_000) for k in range(gpus)
            ),
        )
        for i in range(nodes)
    }


def truth(rng: Rng) -> gp.ThroughputParams:
    compute = float(rng.uniform(0.02, 0.4))
    return gp.ThroughputParams(
        compute / 3,
        compute / 100,
        compute * 0.8,
        compute * 0.1,
        compute * 0.1,
        compute * 0.03,
        1.8,
        compute * 0.1,
    )


def measured(
    params: gp.ThroughputParams, shapes: Sequence[tuple[int, int]], rng: Rng
) -> tuple[ProfileRow, ...]:
    """Rows with an error of a few percent, at several micro-batch sizes."""
    rows = []
    for nodes, replicas in shapes:
        for atomic in (16, 32, 64):
            off = np.exp(0.03 * rng.standard_normal(2))
            grad = float(gp.grad_time(params, atomic) * off[0])
            step = float(gp.step_time(params, nodes, replicas, atomic) * off[1])
            rows.append(
                ProfileRow(
                    nodes, replicas, atomic, grad, max(step, grad), float(rng.integers(5, 500))
                )
            )
    return tuple(rows)


def profile(params: gp.ThroughputParams, most: int, rng: Rng) -> Profile:
    """The profile of a job that has been on 1, 2, 4, ... up to `most` GPUs."""
    shapes = [(max(1, k // 4), k) for k in (1, 2, 4, 8, 16) if k <= most]
    return Profile(
        declared=Declared(
            True, 64, 4096, 8, 256, dataset_size=50_000, epochs=int(rng.integers(2, 90))
        ),
        rows=measured(params, shapes, rng),
        noise=Noise(1.0, float(rng.uniform(100, 5000)), 10_000),
        progress=Progress(1, 10, 0, 100, 100.0, float(rng.uniform(0.01, 0.95))),
    )


def lab(
    jobs: int, nodes: int, gpus: int, users: int, rng: Rng
) -> tuple[Snapshot, dict[JobId, gp.ThroughputParams]]:
    """A snapshot in which all jobs wait, but gpq knows how far each had come."""
    live, params = {}, {}
    for number in range(1, jobs + 1):
        name = JobId(number)
        params[name] = truth(rng)
        black_box = number % 10 == 0
        level = Level.BLACK_BOX if black_box else Level.SCRIPT
        spec = JobSpec(
            ("train.py",),
            "/",
            user=f"user{number % users}",
            uid=1000,
            level=level,
            max_gpus=1 if black_box else 0,
        )
        known = not black_box and number % 5 != 1
        seen = profile(params[name], int(rng.choice([1, 4, 8, 16])), rng) if known else Profile()
        live[name] = Job(
            name, spec, submitted_at=-3600.0, profile=seen, service=float(rng.uniform(0, 1e5))
        )
    return Snapshot(now=0.0, nodes=cluster(nodes, gpus), jobs=live), params


def later(
    snapshot: Snapshot,
    placements: dict[JobId, Placement],
    params: dict[JobId, gp.ThroughputParams],
    rng: Rng,
) -> Snapshot:
    """The snapshot one minute later: placed jobs run, and every profile has changed."""
    jobs = {}
    for name, job in snapshot.jobs.items():
        placement = placements.get(name)
        seen = job.profile
        if seen.rows:
            most = max(seen.max_replicas, placement.replicas if placement else 0)
            seen = replace(profile(params[name], most, rng), progress=seen.progress)
        began = snapshot.now - 600.0
        running = {
            "state": JobState.RUNNING,
            "launched_at": began,
            "started_at": began,
            "attempt": 1,
        }
        waiting = {"state": JobState.PENDING, "launched_at": None, "started_at": None}
        fields = running if placement else waiting
        jobs[name] = replace(job, placement=placement, profile=seen, **fields)
    return replace(snapshot, now=snapshot.now + 60.0, jobs=jobs)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--gpus", type=int, default=4, help="GPUs of each server")
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", default="goodput")
    parser.add_argument("--out", type=Path, help="write the figures to this file as JSON")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    chooser = policy(options.policy)
    snapshot, params = lab(options.jobs, options.nodes, options.gpus, options.users, rng)
    seconds, busy, used, moved = [], [], [], 0
    for _ in range(options.rounds):
        begin, working = time.perf_counter(), time.process_time()
        decision = decide(snapshot, (), chooser, allocate=True)
        seconds.append(time.perf_counter() - begin)
        busy.append(time.process_time() - working)
        assert decision.round is not None
        placements = dict(decision.round.placements)
        used.append(sum(placement.replicas for placement in placements.values()))
        moved += sum(
            placements.get(name) != job.placement
            for name, job in snapshot.jobs.items()
            if job.placement
        )
        snapshot = later(snapshot, placements, params, rng)
    took = median(seconds)
    devices = options.nodes * options.gpus
    print(
        f"{options.policy}: {options.jobs} jobs, {options.nodes} x {options.gpus} GPUs,"
        f" {options.rounds} rounds"
    )
    print(
        f"one round: median {took * 1e3:.1f} ms, slowest {max(seconds) * 1e3:.1f} ms (bar:"
        f" {MAX_SECONDS * 1e3:.0f} ms)"
    )
    print(
        f"devices in use: {np.mean(used):.1f} of {devices}; running jobs changed:"
        f" {moved / options.rounds:.1f} a round"
    )
    print(f"processor time of one round: median {median(busy) * 1e3:.1f} ms")
    passed = took <= MAX_SECONDS
    if options.out:
        figures = {
            "median_seconds": took,
            "median_cpu_seconds": median(busy),
            "max_seconds": max(seconds),
            "rounds": options.rounds,
            "passed": passed,
        }
        options.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
