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
LEAST_PROMISE = 1.1  # a smaller promise is within the error of the speeds
LEAST_TRUST = 0.25  # in the promises for a job, whatever came of the last ones
DISAPPOINTING = 0.5  # of a promised gain. Less, and gpq takes it for a wrong promise
LEAST_MEMORY: Seconds = 600.0  # of what came of a promise


def marked(marks: tuple[Mark, ...], event: Profiled, *, working: bool) -> tuple[Mark, ...]:
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


def launched(job: Job, event: Launched) -> tuple[Gain, ...]:
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


def measured(job: Job, now: Seconds) -> tuple[Gain, ...]:
    """The gains with the speed of this attempt, up to SETTLING after its launch: the batch size
    follows a resize in steps."""
    latest = job.gains[-1] if job.gains else None
    if latest is None or latest.attempt != job.attempt or now - latest.at > SETTLING:
        return job.gains
    return (*job.gains[:-1], replace(job.gains[-1], speed_after=speed(job.marks)))


def trust(job: Job, now: Seconds) -> float:
    """Which part of a promised gain is to be believed: 1, or the part that came of those before if
    that was less than DISAPPOINTING, at least LEAST_TRUST."""
    growths = _growths(job, now)
    if not growths:
        return 1.0
    promises, gains = (sum(column) for column in zip(*growths.values(), strict=True))
    if gains >= DISAPPOINTING * promises:
        return 1.0
    return max(float(gains / promises), LEAST_TRUST)


def avoided(job: Job, now: Seconds) -> frozenset[int]:
    """GPU counts at which the job gained less than DISAPPOINTING of what was promised."""
    return frozenset(
        gain.after
        for gain, (promised, gained) in _growths(job, now).items()
        if gained < DISAPPOINTING * promised
    )


def _growths(job: Job, now: Seconds) -> dict[Gain, tuple[float, float]]:
    """Growths whose gain was measured: what was promised and what came, in parts of the goodput
    before. Each counts for as long as the job had lasted then, and for LEAST_MEMORY at least,
    because the model learns from it, too."""
    return {
        gain: (gain.promise.ratio - 1.0, gain.measured - 1.0)
        for gain in job.gains
        if gain.measured is not None
        and gain.promise.ratio >= LEAST_PROMISE
        and now - gain.at < max(gain.at - job.submitted_at, LEAST_MEMORY)
    }
