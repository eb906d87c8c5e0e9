"""Turns reasons into sentences: each code with its facts. The sentences are in `sentences.py`."""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpq.control.answers.sentences import SENTENCES
from gpq.core.explain.obstacles import JobReasons, Reason
from gpq.core.explain.pending import NEVER, SOON, Window
from gpq.core.explain.running_job import Change
from gpq.core.feasibility.device_status import gpus
from gpq.core.feasibility.leases import span
from gpq.core.model.jobs import Job

MOST_JOBS = 6  # jobs that a sentence names
MOST_AHEAD = 3


@dataclass(frozen=True, slots=True)
class Texts:
    """`JobReasons` in words."""

    headline: str
    reasons: tuple[str, ...]
    remedies: tuple[str, ...]


def texts(answer: JobReasons) -> Texts:
    return Texts(
        text(answer.headline),
        tuple(map(text, answer.reasons)),
        tuple(map(text, answer.remedies)),
    )


def text(reason: Reason) -> str:
    return _FORMATTER.vformat(SENTENCES[reason.code], (), reason.facts)


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Reason):
            return text(value)
        if "|" in format_spec:
            return _by_number(value, *format_spec.split("|"))
        if format_spec in FORMATS:
            return FORMATS[format_spec](value)
        return format(value, format_spec)


def _by_number(value: int | Collection[object], singular: str, plural: str) -> str:
    number = value if isinstance(value, int) else len(value)
    return singular if number == 1 else plural


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f}%"


def _jobs(names: Sequence[int]) -> str:
    return _by_number(names, "job ", "jobs ") + ", ".join(map(str, names[:MOST_JOBS]))


def _jobs_ahead(names: Sequence[int]) -> str:
    """`job 3`, or `jobs 3, 4 and 5`, or `jobs 3, 4, 5 and 9 others`."""
    if len(names) == 1:
        return f"job {names[0]}"
    if len(names) <= MOST_AHEAD + 1:
        return f"jobs {', '.join(map(str, names[:-1]))} and {names[-1]}"
    overflow = len(names) - MOST_AHEAD
    return f"jobs {', '.join(map(str, names[:MOST_AHEAD]))} and {overflow} others"


def _holder(job: Job) -> str:
    return f"job {job.id} ({job.spec.user}, {gpus(job.replicas)})"


def _holders(jobs: Sequence[Job]) -> str:
    more = " and others" if len(jobs) > MOST_JOBS else ""
    return ", ".join(map(_holder, jobs[:MOST_JOBS])) + more


def _giver(change: Change) -> str:
    loss = max(100 * (1 - change.ratio), 0)
    return f"job {change.job} would lose {loss:.0f}% with {gpus(change.gpus)}"


def _givers(changes: Sequence[Change]) -> str:
    return ", ".join(map(_giver, changes))


def _window(window: Window) -> str:
    if window.latest < SOON:
        return "it may start at once"
    because = ", and ".join(map(text, window.because))
    if window.latest == NEVER and window.open:
        return f"gpq cannot tell when it may start: {because}"
    begin = "as soon as jobs release GPUs"
    if window.earliest >= SOON:
        begin = f"in {span(window.earliest)} at the earliest"
    if window.latest == NEVER:
        return f"it may start {begin}, but gpq cannot tell the latest time: {because}"
    latest = span(window.latest)
    return f"it may start {begin}, and within {latest} if no other job comes first: {because}"


def _list(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))


def _cause(cause: str) -> str:
    return f": {cause}" if cause else ""


FORMATS: dict[str, Callable[[Any], str]] = {
    "gpus": gpus,  # 2 GPUs
    "span": span,  # 40 s
    "percent": _percent,  # +12%, of a ratio
    "list": _list,  # a, b
    "jobs": _jobs,  # jobs 3, 4
    "ahead": _jobs_ahead,  # jobs 3, 4 and 5
    "holders": _holders,
    "givers": _givers,
    "window": _window,
    "cause": _cause,  # ": no route", or nothing
}
_FORMATTER = _Formatter()
