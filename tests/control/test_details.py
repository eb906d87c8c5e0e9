"""The longer answers hold what the snapshot knows."""

from __future__ import annotations

from dataclasses import replace

from gpq.control.answers import Reader
from gpq.control.details import detail
from gpq.core.models import LossPoint
from gpq.rpc.messages import LossView
from tests.builders import node, on, running, snapshot


def test_the_loss_curve_of_a_job_is_in_its_detail() -> None:
    job = running(1, on("a", 0))
    job = replace(job, profile=replace(job.profile, losses=(LossPoint(10.0, 2.5), LossPoint(25.0, 1.5, weight=3.0))))
    told = detail(Reader(snapshot(node("a"), job), None, 0.0), job, [])
    assert told.losses == [LossView(10.0, 2.5), LossView(25.0, 1.5)]
