"""Decides which facts of the journal make a notification, and writes its text. Pure.

The text never contains the job's command or environment, because they may be private. What a job or
a server says goes through `redact`, and the end of its log through `last_lines`, which drops a
whole line if it names a secret with its value, looks like a token, or shows the value of a variable
of the job. It is better to drop a harmless line than to send a key to a chat room.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from gpq.control import event_text
from gpq.control.reader import run_seconds
from gpq.core.feasibility.leases import span
from gpq.core.model import events as facts
from gpq.core.model.jobs import HOLDS_DEVICES, TERMINAL, Job, JobState
from gpq.core.model.units import Seconds
from gpq.outward import SECRET

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
ENDS: dict[type[Told], str] = {
    facts.Succeeded: "end", facts.Failed: "fail", facts.Cancelled: "end",
    facts.TimeLimitReached: "fail",
}  # fmt: skip
STARTS = {"start": "is running", "restart": "is running again"}
HOW = {JobState.TIMEOUT: "ran out of time", JobState.CANCELLED: "was cancelled"}
MOST_HEADLINES = 50  # in one notification
WITH_LOG = ("retry", "fail", "end")  # words with which the log is useful
LEFT_OUT = "[gpq removed a line that may contain a secret]"
LONGEST_LINE = 300  # characters
LEAST_VALUE, LEAST_SECRET = 8, 4  # characters of a value to search for
ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
)
CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
NAME = re.compile(r"[\w.-]+")
# after a name
GIVEN = re.compile(r"[\"']?\s*(?:[=:]|=>|\bis\b)\s*[\"']?(\S{4,})", re.IGNORECASE)
# tokens: 1024, key=3
NUMBER = re.compile(r"[-+]?[\d.,_]+(?:e[-+]?\d+)?[a-z%/,;)\]}]{0,6}", re.IGNORECASE)
TOKENS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|\b(?:bearer|basic)\s+[\w.~+/=-]{8,}|\bauthorization\b\s*[:=]"
    r"|://[^/\s:@]+:[^/\s@]+@"
    r"|\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|sk-|rk_live_|hf_|npm_|pypi-|AKIA|ASIA"
    r"|AIza|ya29\.)[\w-]{8,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}|hooks\.slack\.com/|discord(?:app)?\.com/api/webhooks/",
    re.IGNORECASE,
)
# a long random word. Hashes of commits and files are shorter, or hex
BLOB = re.compile(r"[A-Za-z0-9+/_=-]{32,}")
HEX = re.compile(r"[0-9a-fA-F-]+")
# chat rooms read these as a call to everybody
CALLS = re.compile(r"<!|@(?=everyone|here|channel|all\b)", re.IGNORECASE)
# Is the character a small letter, a capital letter, a digit?
LETTERS_AND_DIGITS = {(True, False, False), (False, True, False), (False, False, True)}


class Notification(NamedTuple):
    title: str
    body: str


def word_of(event: Told, job: Job) -> str:
    """Its word in `--notify-on`, "" if it makes no notification. `job`: as it is now, or when it
    ended."""
    match event:
        case facts.Started():  # only the first server of an attempt makes a notification
            is_first = job.attempt != event.attempt or job.started_nodes[:1] == (event.node,)
            word = "start" if event.attempt == 1 else "restart"
            return word if is_first else ""
        case facts.Stopped():
            return "retry" if event.failed else ""
        case facts.Held():
            return "fail" if event.why else ""
    return ENDS[type(event)]


def is_wanted(word: str, event: Told, job: Job) -> bool:
    """A final failure counts as `fail` and as `end`, but makes one notification."""
    is_end = type(event) in ENDS
    return word in job.spec.notify_on or (is_end and "end" in job.spec.notify_on)


def headline(job: Job, word: str, fact: str) -> str:
    """One line: ``job 42 train failed: exit 1``."""
    name = f"job {job.id}"
    if job.name:
        name += f" {job.name}"
    fact = one_line(fact, job.spec.env)
    if word in STARTS:
        return f"{name} {STARTS[word]}"
    is_held = word == "fail" and job.state not in TERMINAL
    if is_held and fact.startswith("held"):
        return f"{name} is {fact}"
    if is_held or word == "retry":
        return f"{name}: {fact}"
    outcome = f"{name} {HOW.get(job.state, str(job.state))}"
    end_line = event_text.ended_line(job)
    if end_line:
        outcome += f": {one_line(end_line, job.spec.env)}"
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
        body += [one_line(f"note: {line}", job.spec.env) for line in notes]
    if lines:
        body += ["", f"The last {len(lines)} lines of its log:", *lines]
    elif note:
        body += ["", one_line(note, job.spec.env)]
    if word in WITH_LOG:
        body += ["", f"gpq logs {job.id}"]
    return Notification(f"gpq: {headline(job, word, fact)}"[:150], "\n".join(body))


def digest(headlines: Sequence[str]) -> Notification:
    """About many facts at once."""
    lines = [*headlines[:MOST_HEADLINES]]
    if len(headlines) > MOST_HEADLINES:
        lines.append(f"and {len(headlines) - MOST_HEADLINES} more: gpq status")
    return Notification(f"gpq: {len(headlines)} messages about jobs", "\n".join(lines))


def last_lines(text: str, count: int, env: Iterable[tuple[str, str]] = ()) -> list[str]:
    """The last `count` lines of a log that are not empty, safe to send. `env`: the job's."""
    secrets = _values(env)
    raw_lines = text.replace("\r\n", "\n").split("\n")
    lines = list(filter(None, (plain(line.rpartition("\r")[2] or line) for line in raw_lines)))
    return [redact(line, secrets) for line in lines[max(len(lines) - count, 0) :]]


def one_line(text: str, env: Iterable[tuple[str, str]]) -> str:
    """A headline or a fact about a job as one line, safe to send. `env`: the job's."""
    return redact(plain(" ".join(text.splitlines())), _values(env))


def plain(line: str) -> str:
    """The line without control characters and invisible ones."""
    return CONTROL.sub("", ESCAPES.sub("", line).replace("\t", " ")).rstrip()


def redact(line: str, secrets: Sequence[str] = ()) -> str:
    """The line, or a note instead of it."""
    if any(value in line for value in secrets) or looks_secret(line[: 2 * LONGEST_LINE]):
        return LEFT_OUT
    excerpt = line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}..."
    return CALLS.sub(lambda call: f"{call[0]} ", excerpt)


def looks_secret(line: str) -> bool:
    """Does the line reveal a secret?"""
    if TOKENS.search(line):
        return True
    names = (name.end() for name in NAME.finditer(line) if SECRET.search(name[0]))
    values = (value[1] for end in names if (value := GIVEN.match(line, end)))
    if any(not NUMBER.fullmatch(value.strip("\"'")) for value in values):
        return True
    return any(_random(match[0]) for match in BLOB.finditer(line))


def _random(word: str) -> bool:
    """Are letters of both cases and digits mixed? Paths, hashes and rows of dashes are not."""
    if HEX.fullmatch(word) or "/" in word.strip("/"):
        return False
    kinds = [(sign.islower(), sign.isupper(), sign.isdigit()) for sign in word]
    if not set(kinds) >= LETTERS_AND_DIGITS:
        return False
    return sum(a != b for a, b in pairwise(kinds)) >= len(word) // 3


def _values(env: Iterable[tuple[str, str]]) -> list[str]:
    """Texts that must not be sent: values of secret variables, and NAME=VALUE of all others."""
    secrets = []
    for name, value in env:
        if SECRET.search(name) and len(value) >= LEAST_SECRET:
            secrets.append(value)
        elif len(value) >= LEAST_VALUE:
            secrets += [f"{name}={value}", f"{name}: {value}", f"'{name}': '{value}'"]
    return secrets
