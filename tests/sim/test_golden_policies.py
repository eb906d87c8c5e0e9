"""One small workload under every policy: how long jobs take and how often they restart. No policy may get worse
unnoticed.

A figure that gets better by more than the tolerance fails as well. Then write the better one down here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpq.lab.measurements.sources import Published
from gpq.lab.simulator.replay import replay
from gpq.lab.simulator.rules import Rules, parse_cluster
from gpq.policies.registry import POLICIES
from tests.support.measurements import tiny, workload

TOLERANCE = 0.02  # of the mean completion time, because another numpy or scipy rounds differently

# `tiny` gains from GPUs and from larger batch sizes. `bound` synchronises slowly and gains little from either.
ROWS = (
    "a,0,tiny,4,128",
    "b,10,bound,1,32",
    "c,40,tiny,2,64",
    "d,90,bound,2,64",
    "e,150,tiny,1,32",
    "f,200,tiny,8,256",
    "g,210,bound,4,128",
    "h,300,tiny,1,32",
    "i,420,bound,1,32",
    "j,600,tiny,4,256",
    "k,620,bound,2,32",
    "l,900,tiny,2,64",
)
PLAIN, MIXED = "2x4", "1x4:t4,1x4:a100"
GOLDEN: dict[tuple[str, str], tuple[float, int]] = {  # policy, cluster: mean completion time in seconds, restarts
    ("goodput", PLAIN): (699.2, 17),
    ("pollux", PLAIN): (686.2, 20),
    ("sia", PLAIN): (674.6, 20),
    ("optimus", PLAIN): (816.3, 12),
    ("slaq", PLAIN): (884.6, 24),
    ("tiresias", PLAIN): (1068.8, 3),
    ("themis", PLAIN): (929.9, 1),
    ("gavel", PLAIN): (924.9, 1),
    ("gavel-max-min", PLAIN): (949.9, 3),
    ("gavel-ftf", PLAIN): (912.4, 6),
    ("gavel-makespan", PLAIN): (1055.7, 5),
    ("srtf", PLAIN): (1044.9, 5),
    ("backfill", PLAIN): (1049.2, 0),
    ("fifo", PLAIN): (1352.4, 0),
    ("goodput", MIXED): (303.7, 8),
    ("sia", MIXED): (324.0, 21),
    ("gavel", MIXED): (496.9, 1),
}


def measured(folder: Path, policy: str, nodes: str) -> tuple[float, int]:
    traces = folder / "traces"
    for kind, speed in (("", 1.0), ("aws", 1.0), ("dgx-ext", 3.0)):
        tiny(traces, steps=2000, kinds=(kind,), noise=8.0, speed=speed)
        tiny(traces, "bound", steps=3000, kinds=(kind,), noise=0.5, syncs=5.0, speed=speed)
    rows = (
        [row.replace("tiny,8", "tiny,4") for row in ROWS] if nodes == MIXED else ROWS
    )  # no gang has GPUs of two types
    source = Published("w", str(workload(folder / "w.csv", *rows)), str(traces))
    jobs = replay(policy, source.tasks(), Rules(parse_cluster(nodes))).jobs
    return sum(job.completion_seconds for job in jobs) / len(jobs), sum(job.restarts for job in jobs)


def test_every_policy_has_its_figures() -> None:
    assert {policy for policy, nodes in GOLDEN if nodes == PLAIN} == set(POLICIES)


@pytest.mark.parametrize(("policy", "nodes"), GOLDEN)
def test_jobs_take_no_longer_and_restart_no_more_often_than_before(tmp_path: Path, policy: str, nodes: str) -> None:
    mean, restarts = GOLDEN[policy, nodes]
    assert measured(tmp_path, policy, nodes) == (pytest.approx(mean, rel=TOLERANCE), restarts)
