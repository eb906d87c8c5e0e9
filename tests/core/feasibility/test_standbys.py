"""Other servers keep an interpreter ready for each job that may go there next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.model.jobs import DesiredState, Job, JobState
from gpq.core.model.nodes import Fitness, NodeState
from gpq.core.model.units import JobId, NodeId
from gpq.core.rounds import planning
from tests.support.builders import black_box, node, on, running, snapshot, spec

A, B = NodeId("a"), NodeId("b")
JOB = running(1, on("a", 0))


def test_each_other_server_is_told_of_the_job_and_of_a_gpu_that_it_could_have() -> None:
    here = snapshot(node("a"), node("b"), JOB)
    assert planning.standbys_due(here, A) == []
    [order] = planning.standbys_due(here, B)
    assert (order.job, order.attempt, order.launch.placement) == (JobId(1), 2, on("b", 0))


@pytest.mark.parametrize(
    "job",
    [
        running(1, on("a", 0), spec_=spec(rigid=True)),
        running(1, on("a", 0), spec_=spec(launcher="torchrun")),
        running(1, on("a", 0), spec_=black_box()),
        running(1, on("a", 0), declared=False),
        running(1, on("a", 0), since=-1.0),
        replace(JOB, wish=DesiredState.CANCEL),
        replace(JOB, state=JobState.COMPLETED, placement=None),
        running(1, on("a", 0), spec_=spec(gpu_type="V100")),
    ],
    ids=["rigid", "torchrun", "black box", "not declared", "just started", "cancelled", "completed", "other GPUs"],
)
def test_no_interpreter_waits_for_a_job_that_cannot_come(job: Job) -> None:
    assert planning.standbys_due(snapshot(node("a"), node("b"), job), B) == []


def test_a_server_that_is_down_drained_or_unfit_is_not_told() -> None:
    assert planning.standbys_due(snapshot(node("a"), node("b", state=NodeState.UNREACHABLE), JOB), B) == []
    assert planning.standbys_due(replace(snapshot(node("a"), node("b"), JOB), drained={B: "reboot"}), B) == []
    needs = running(1, on("a", 0), spec_=spec(environment="e1"))
    here = snapshot(node("a"), node("b"), needs)
    assert planning.standbys_due(here, B) == []
    assert planning.standbys_due(replace(here, checks={(B, "e1"): Fitness(True, 0.0)}), B)
