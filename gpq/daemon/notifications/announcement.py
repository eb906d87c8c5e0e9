"""Decides which facts of the journal make a notification, and writes its text. Pure.

The text never contains the job's command or environment, because they may be private. What a job
or a server says goes through `redaction`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpq.control import event_text
from gpq.control.reader import run_seconds
from gpq.core.feasibility.leases import span
from gpq.core.model import events as facts
from gpq.core.model.jobs import HOLDS_DEVICES, TERMINAL, Job, JobState
from gpq.core.model.units import Seconds
from gpq.daemon.notifications import redaction

Told = (
    facts.Started
    | facts.Stopped
    | facts.Held
    | facts.Succeeded
    | facts.Failed
    | facts.Cancelled
    | facts.TimeLimitReached
)
KINDS = (
    facts.Started, facts.Stopped, facts.Held, facts.Succeeded, facts.Failed, facts.Cancelled,
    facts.TimeLimitReached,
)  # fmt: skip
HOW = {JobState.TIMEOUT: "ran out of time", JobState.CANCELLED: "was cancelled"}
MOST_HEADLINES = 50  # in one notification
WITH_LOG = ("retry", "fail", "end")  # words with which the log is useful


class Notification(NamedTuple):
    title: str
    body: str


def word_of(event: Told, job: Job) -> str:
    """Its word in `--notify-on`, "" if it makes no notification. `job`: as it is now, or when it
    ended."""
    match event:
        case facts.Started() if _is_first_server(event, job):
            return "start" if event.attempt == 1 else "restart"
        case facts.Stopped(failed=True):
            return "retry"
        case facts.Held() if event.why:
            return "fail"
        case facts.Failed() | facts.TimeLimitReached():
            return "fail"
        case facts.Succeeded() | facts.Cancelled():
            return "end"
        case _:
            return ""


def is_wanted(word: str, event: Told, job: Job) -> bool:
    """A final failure counts as `fail` and as `end`, but makes one notification."""
    is_end = isinstance(
        event, (facts.Succeeded, facts.Failed, facts.Cancelled, facts.TimeLimitReached)
    )
    return word in job.spec.notify_on or (is_end and "end" in job.spec.notify_on)


def _is_first_server(event: facts.Started, job: Job) -> bool:
    """Only the first server of an attempt makes a notification."""
    return job.attempt != event.attempt or job.started_nodes[:1] == (event.node,)


def headline(job: Job, word: str, fact: str) -> str:
    """One line: ``job 42 train failed: exit 1``."""
    name = f"job {job.id}"
    if job.name:
        name += f" {job.name}"
    fact = redaction.one_line(fact, job.spec.env)
    match word:
        case "start":
            return f"{name} is running"
        case "restart":
            return f"{name} is running again"
        case "retry":
            return f"{name}: {fact}"
        case "fail" if job.state not in TERMINAL and fact.startswith("held"):
            return f"{name} is {fact}"
        case "fail" if job.state not in TERMINAL:
            return f"{name}: {fact}"
    outcome = f"{name} {HOW.get(job.state, str(job.state))}"
    end_line = event_text.ended_line(job)
    if end_line:
        outcome += f": {redaction.one_line(end_line, job.spec.env)}"
    return outcome


def letter(
    job: Job, word: str, fact: str, lines: Sequence[str], note: str, now: Seconds
) -> Notification:
    """About one fact. `lines`: the end of its log, safe to send. `note`: why there are none."""
    details = [f"user {job.spec.user}"]
    if job.placement is not None and job.state in HOLDS_DEVICES:
        details.append(
            "on "
            + ", ".join(f"{node} ({len(devices)} GPUs)" for node, devices in job.placement.parts)
        )
    if job.first_started_at is not None:
        details.append(f"waited {span(max(job.first_started_at - job.submitted_at, 0.0))}")
        details.append(f"ran {span(run_seconds(job, now))}")
    if job.restarts:
        details.append(f"{job.restarts} restarts")
    body = [headline(job, word, fact), ", ".join(details)]
    if job.state in TERMINAL:
        notes = [line for line in job.notices if line not in event_text.ended_line(job)]
        body += [redaction.one_line(f"note: {line}", job.spec.env) for line in notes]
    if lines:
        body += ["", f"The last {len(lines)} lines of its log:", *lines]
    elif note:
        body += ["", redaction.one_line(note, job.spec.env)]
    if word in WITH_LOG:
        body += ["", f"gpq logs {job.id}"]
    return Notification(f"gpq: {headline(job, word, fact)}"[:150], "\n".join(body))


def digest(headlines: Sequence[str]) -> Notification:
    """About many facts at once."""
    lines = [*headlines[:MOST_HEADLINES]]
    if len(headlines) > MOST_HEADLINES:
        lines.append(f"and {len(headlines) - MOST_HEADLINES} more: gpq status")
    return Notification(f"gpq: {len(headlines)} messages about jobs", "\n".join(lines))
