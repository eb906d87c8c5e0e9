"""Metrics of job.log that are not finite numbers: which ones, and since when."""

from __future__ import annotations

import math

from gpq.control import event_text
from gpq.core.model.jobs import Job
from gpq.core.model.units import Seconds
from gpq.rpc.job_answers import DivergedView

FIRST = "loss"


def divergences(job: Job, until: Seconds) -> list[DivergedView]:
    """`until` is the end of an ended job, otherwise now."""
    values = dict(job.profile.metrics)
    views = [
        DivergedView(name, str(values[name]), event_text.stamp(since), max(until - since, 0.0))
        for name, since in job.profile.diverged
        if not math.isfinite(values.get(name, 0.0))
    ]
    return sorted(views, key=lambda view: (view.metric != FIRST, view.metric))


def line(job: Job, now: Seconds) -> str:
    """`loss is nan for 90 s`, or "" while all metrics are finite."""
    views = divergences(job, now)
    if not views:
        return ""
    first = views[0]
    return f"{first.metric} is {first.value} for {first.seconds:.0f} s"
