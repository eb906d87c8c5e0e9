"""What came of a resize is measured next to its promise."""

from __future__ import annotations

import pytest

from gpq.core.model import events as facts
from gpq.core.model.accounts import Mark, Promise
from gpq.core.model.placements import BatchOrder, Exit
from gpq.core.model.profile import Progress
from gpq.core.model.units import JobId
from gpq.core.state.job_events import apply
from gpq.core.state.learn_profile import SETTLING, WINDOW, add_mark, progress_speed
from tests.support.builders import on, running


def report(at: float, steps: float, attempt: int = 1, offset: int = 0, *, ready: bool = False) -> facts.Profiled:
    progress = Progress(0, 0, 0, int(steps), steps, 0.0)
    return facts.Profiled(at, JobId(1), attempt, offset or int(at), progress=progress, ready=ready)


def test_a_speed_is_measured_over_one_window_or_two_at_any_rate_of_reports() -> None:
    for period in (1.0, 7.0, 45.0):
        marks: tuple[Mark, ...] = ()
        for number in range(60):
            at = period * number
            rate = 2.0 if at < 900.0 else 5.0
            steps = 2.0 * min(at, 900.0) + rate * max(at - 900.0, 0.0)
            marks = add_mark(marks, report(at, steps, offset=1), working=True)
            assert len(marks) <= 3
            span = marks[-1].at - marks[0].at
            assert span <= 2 * max(WINDOW + period, period)
            assert at < WINDOW + period or span >= WINDOW
            if at >= 10.0:
                assert 2.0 - 1e-9 <= (progress_speed(marks) or 0.0) <= 5.0 + 1e-9
    assert add_mark((), report(1.0, 1.0), working=False) == ()
    assert progress_speed((Mark(0.0, 0.0), Mark(1.0, 9.0))) is None


def test_a_resize_keeps_what_it_promised_and_what_came() -> None:
    job = running(1, on("a", 0), since=0.0, last_replicas=1)
    for second in range(1, 100):
        job = apply(job, report(float(second), 3.0 * second, ready=second == 1))
    assert job.gains == ()
    job = apply(job, facts.StopSent(100.0, job.id, 1, facts.StopReason.RESIZE))
    job = apply(job, facts.Exited(101.0, job.id, 1, on("a", 0).parts[0][0], Exit(0, stopped=True)))
    job = apply(job, facts.Stopped(101.0, job.id, Exit(0, stopped=True, ended_at=101.0)))
    launch = facts.Launched(102.0, job.id, 2, on("a", 0, 1), BatchOrder(), promise=Promise(1.8, 4.0))
    job = apply(job, launch)
    assert (job.marks, job.gains[0].before, job.gains[0].after) == ((), 1, 2)
    assert job.gains[0].speed_before == pytest.approx(3.0)
    for second in range(105, 300):  # slow at first, while the batch still grows, and long after
        steps = 300.0 + 3.0 * min(second - 105, 20) + 5.1 * max(min(second, 230) - 125, 0)
        job = apply(job, report(float(second), steps, 2, second, ready=second == 105))
    assert job.gains[0].measured == pytest.approx(1.7)
    assert SETTLING < 300 - 102
