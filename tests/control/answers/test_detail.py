"""The longer answers hold what the snapshot knows."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from gpq.control.detail import detail, explanation
from gpq.control.reader import Reader
from gpq.core.accounting.fairness import known_fairness
from gpq.core.model.jobs import JobState
from gpq.core.model.nodes import NOT_YET, NodeState
from gpq.core.model.placements import Exit, FilesAt
from gpq.core.model.profile import LossPoint, Profile, ProfileRow
from gpq.core.model.units import JobId, NodeId
from gpq.rpc.job_answers import Explanation, LossView
from gpq.views.detail import lines
from gpq.views.top_tables import state_of
from tests.support.builders import DECLARED, job, node, on, running, snapshot


def test_the_loss_curve_of_a_job_is_in_its_detail() -> None:
    one = running(1, on("a", 0))
    one = replace(one, profile=replace(one.profile, losses=(LossPoint(10.0, 2.5), LossPoint(25.0, 1.5, weight=3.0))))
    told = detail(Reader(snapshot(node("a"), one), None, 0.0), one, [])
    assert told.losses == [LossView(10.0, 2.5), LossView(25.0, 1.5)]


def test_a_loss_that_is_not_finite_is_shown_with_its_time() -> None:
    one = running(1, on("a", 0))
    metrics, since = (("accuracy", 0.5), ("loss", math.nan)), (("loss", 30.0),)
    one = replace(one, profile=replace(one.profile, metrics=metrics, diverged=since))
    told = detail(Reader(snapshot(node("a"), one), None, 150.0), one, [])
    assert (told.metrics, told.job.reason) == ({"accuracy": 0.5, "loss": None}, "loss is nan for 120 s")
    (broken,) = told.job.diverged
    assert (broken.metric, broken.value, broken.seconds) == ("loss", "nan", 120.0)
    assert "loss=nan (for 2m00s) accuracy=0.5" in "\n".join(lines(told, 100))
    assert state_of(told.job).plain == "running nan"


def test_a_job_whose_times_no_model_fits_says_so() -> None:
    rows = tuple(ProfileRow(1, k, 64, 0.08, 0.09, math.inf) for k in (1, 2))
    one = running(1, on("a", 0), profile=Profile(declared=DECLARED, rows=rows, atomic_batch=64))
    reader = Reader(snapshot(node("a", 1), one), None, 0.0)
    sentence = "gpq has no model of it, because no model fits the times that it reported. Its goodput is not known"
    assert detail(reader, one, []).notices == [sentence]
    assert sentence in explanation(reader, one).reasons
    plain = running(1, on("a", 0))
    assert detail(Reader(snapshot(node("a", 1), plain), None, 0.0), plain, []).notices == []


def test_a_share_below_one_gpu_is_shown_but_gives_no_speedup() -> None:
    rows = tuple(ProfileRow(1, k, 64, 0.08, 0.08 + 0.01 * k, 100.0) for k in (1, 2))
    profile = Profile(declared=DECLARED, rows=rows, atomic_batch=64)
    here = snapshot(node("a", 1), running(1, on("a", 0), profile=profile), *(job(number) for number in (2, 3, 4)))
    told = detail(Reader(here, None, 0.0, known_fairness(here)), here.jobs[JobId(1)], [])
    assert told.fair_share == 0.25
    assert told.job.speedup is not None
    assert abs(told.job.speedup - 1.0) < 0.02
    assert [point.speedup for point in told.curve] == [1.0]
    page = "\n".join(lines(told, 80))
    assert "x the goodput on its minimum of 1 GPU (the fair share is 0.250 now)" in " ".join(page.split())
    assert "goodput by number of GPUs, 1x = fewest" in page


def test_an_unreachable_server_is_a_warning_but_a_connecting_one_is_not() -> None:
    def told(reason: str, seconds: float) -> list[str]:
        starting = replace(node("a", state=NodeState.UNREACHABLE), reason=reason, silent_since=100.0)
        return Reader(snapshot(starting), None, 100.0 + seconds).warnings()

    assert told(NOT_YET, 2.0) == []
    assert told(NOT_YET, 20.0) == ["server a does not answer: not heard of yet"]
    assert told("a refuses connections", 2.0) == ["server a does not answer: a refuses connections"]


def test_why_of_an_ended_job_suggests_a_fix_only_after_a_failure() -> None:
    def told(state: JobState, **more: object) -> Explanation:
        return explanation(Reader(snapshot(node("a")), None, 0.0), job(7, state=state, **more))

    done = told(JobState.COMPLETED, first_started_at=1.0)
    assert (done.headline, done.reasons, done.remedies) == ("completed", [], [])
    failed = told(JobState.FAILED, first_started_at=1.0, exit=Exit(1))
    assert (failed.headline, failed.reasons) == ("failed: exit 1", [])
    assert failed.remedies[0] == "`gpq logs 7` shows its last output"
    assert not any("gpq logs" in line for line in told(JobState.FAILED, exit=Exit(127)).remedies)


def test_during_first_contact_no_sentence_calls_the_server_silent() -> None:
    """For a waiting job, a running one, one with its checkpoint there, and in the lists. And it ends."""
    starting = replace(node("a", state=NodeState.UNREACHABLE), reason=NOT_YET, silent_since=100.0, devices=())
    lone = job(3, attempt=1, files=FilesAt(NodeId("a"), proved=True))
    here = snapshot(starting, job(1), running(2, on("a", 0)), lone)

    def told(seconds: float, reason: str = NOT_YET) -> str:
        known = replace(here, now=100.0 + seconds, nodes={NodeId("a"): replace(starting, reason=reason)})
        reader = Reader(known, None, 100.0 + seconds)
        said = [explanation(reader, one) for one in known.jobs.values()]
        [row] = reader.nodes()
        rows = [f"{view.reason} {view.unknown}" for view in reader.jobs(known.jobs.values())]
        whys = [" ".join([one.headline, *one.reasons, *one.remedies]) for one in said]
        return " | ".join([*whys, *rows, f"{row.state} {row.reason}", *reader.warnings()])

    fresh = told(2.0)
    assert fresh.count("connect") >= 7
    assert not re.search("does not answer|unreachable|no server answers|not heard of|gone for good|unknown", fresh), (
        fresh
    )
    for late in (told(20.0), told(2.0, "a refuses connections")):
        assert "connect" not in late.replace("refuses connections", "")
        assert "unreachable" in late
        assert "does not answer" in late
