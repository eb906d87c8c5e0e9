"""What resizes bring: the speed of a job's progress before and after, next to what was promised.

A job's speed is measured between two marks, WINDOW to twice WINDOW apart. Progress counts steps at
the base batch size, so its speed is goodput.
"""

from __future__ import annotations

from dataclasses import replace

from gpq.core.model.accounts import Gain, Mark
from gpq.core.model.events import Launched, Profiled
from gpq.core.model.jobs import Job
from gpq.core.model.units import Seconds

WINDOW: Seconds = 30.0
SETTLING: Seconds = 120.0
LEAST_WINDOW: Seconds = 3.0  # a shorter one says nothing
MOST_GAINS = 12  # kept


def mark(marks: tuple[Mark, ...], event: Profiled, *, working: bool) -> tuple[Mark, ...]:
    """The marks with the progress of a report. `working`: the attempt has done its first step. All
    but the newest are at least WINDOW apart."""
    if event.progress is None or not working:
        return marks
    mark = Mark(event.at, event.progress.base_steps)
    if len(marks) > 1 and marks[-1].at - marks[-2].at < WINDOW:
        marks = marks[:-1]
    return (*marks, mark)[-3:]


def speed(marks: tuple[Mark, ...]) -> float | None:
    """Steps at the base batch size per second. None: not measured for long enough."""
    if len(marks) < 2:
        return None
    seconds = marks[-1].at - marks[0].at
    if seconds < LEAST_WINDOW:
        return None
    return max(marks[-1].base_steps - marks[0].base_steps, 0.0) / seconds


def begin_gain(job: Job, event: Launched) -> tuple[Gain, ...]:
    """The gains of `job` with the resize that this launch begins, if it is one whose goodput was
    promised. `job` is as it was before the launch."""
    if event.promise is None:
        return job.gains
    gain = Gain(
        event.at,
        event.attempt,
        job.last_replicas,
        event.placement.replicas,
        event.promise,
        speed(job.marks),
    )
    return (*job.gains, gain)[-MOST_GAINS:]


def measure(job: Job, now: Seconds) -> tuple[Gain, ...]:
    """The gains with the speed of this attempt, up to SETTLING after its launch: the batch size
    follows a resize in steps."""
    latest = job.gains[-1] if job.gains else None
    if latest is None or latest.attempt != job.attempt or now - latest.at > SETTLING:
        return job.gains
    return (*job.gains[:-1], replace(job.gains[-1], speed_after=speed(job.marks)))
