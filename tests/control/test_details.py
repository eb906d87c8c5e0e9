"""The longer answers hold what the snapshot knows."""

from __future__ import annotations

from dataclasses import replace

from gpq.control.answers import Reader
from gpq.control.details import detail, explanation
from gpq.core.fairness import fairness_by_job
from gpq.core.models import Exit, JobState
from gpq.core.nodes import NOT_YET, NodeState
from gpq.core.profile import LossPoint, Profile, ProfileRow
from gpq.core.units import JobId
from gpq.rpc.messages import Explanation, LossView
from gpq.views.detail import lines
from tests.builders import DECLARED, job, node, on, running, snapshot


def test_the_loss_curve_of_a_job_is_in_its_detail() -> None:
    one = running(1, on("a", 0))
    one = replace(one, profile=replace(one.profile, losses=(LossPoint(10.0, 2.5), LossPoint(25.0, 1.5, weight=3.0))))
    told = detail(Reader(snapshot(node("a"), one), None, 0.0), one, [])
    assert told.losses == [LossView(10.0, 2.5), LossView(25.0, 1.5)]


def test_a_share_of_less_than_one_gpu_is_told_since_one_gpu_then_counts_as_a_speedup() -> None:
    rows = tuple(ProfileRow(1, k, 64, 0.08, 0.08 + 0.01 * k, 100.0) for k in (1, 2))
    profile = Profile(declared=DECLARED, rows=rows, atomic_batch=64)
    here = snapshot(node("a", 1), running(1, on("a", 0), profile=profile), *(job(number) for number in (2, 3, 4)))
    told = detail(Reader(here, None, 0.0, fairness_by_job(here)), here.jobs[JobId(1)], [])
    assert told.fair_share == 0.25
    assert told.job.speedup is not None
    assert abs(told.job.speedup - 4.0) < 0.5
    assert [point.speedup for point in told.curve] == [1.0]
    page = "\n".join(lines(told, 80))
    assert "x that of a fair share (0.250 GPUs now)" in page
    assert "goodput by number of GPUs, 1x = fewest" in page


def test_a_server_that_only_starts_is_no_warning_and_one_that_cannot_be_reached_is() -> None:
    def told(reason: str, seconds: float) -> list[str]:
        starting = replace(node("a", state=NodeState.UNREACHABLE), reason=reason, silent_since=100.0)
        return Reader(snapshot(starting), None, 100.0 + seconds).warnings()

    assert told(NOT_YET, 2.0) == []
    assert told(NOT_YET, 20.0) == ["server a does not answer: not heard of yet"]
    assert told("a refuses connections", 2.0) == ["server a does not answer: a refuses connections"]


def test_why_of_an_ended_job_says_it_once_and_what_to_do_only_where_something_went_wrong() -> None:
    def told(state: JobState, **more: object) -> Explanation:
        return explanation(Reader(snapshot(node("a")), None, 0.0), job(7, state=state, **more))

    done = told(JobState.COMPLETED, first_started_at=1.0)
    assert (done.headline, done.reasons, done.remedies) == ("completed", [], [])
    failed = told(JobState.FAILED, first_started_at=1.0, exit=Exit(1))
    assert (failed.headline, failed.reasons) == ("failed: exit 1", [])
    assert failed.remedies[0] == "`gpq logs 7` shows what it said last"
    assert not any("gpq logs" in line for line in told(JobState.FAILED, exit=Exit(127)).remedies)
