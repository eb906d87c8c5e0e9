"""What gpq tells about a job, and that neither its command nor its environment is part of that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.model.events import Cancelled, Failed, Held, Started, Stopped, Succeeded, TimeLimitReached
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.placements import Exit
from gpq.core.model.units import JobId, NodeId
from gpq.notify.announcement import digest, headline, is_wanted, letter, word_of
from tests.support.builders import job, on, running, spec

ONE = JobId(1)
GOING = running(
    1, on("a", 0, 1), spec_=spec(name="train", argv=("train.py", "--api-key", "geheim"), env=(("K", "versteckt"),))
)
BAD = Exit(code=3)


def over(state: JobState, end: Exit | None = None) -> Job:
    return replace(GOING, state=state, placement=None, exit=end, run_seconds=7200.0)


@pytest.mark.parametrize(
    ("event", "now", "word"),
    [
        (Started(1.0, ONE, 1, NodeId("a")), GOING, "start"),
        (Started(1.0, ONE, 2, NodeId("a")), replace(GOING, attempt=2), "restart"),
        (Started(1.0, ONE, 1, NodeId("b")), GOING, ""),  # another server of the same attempt
        (Stopped(1.0, ONE, BAD, failed=True), GOING, "retry"),
        (Stopped(1.0, ONE, BAD), GOING, ""),
        (Held(1.0, ONE, "held: failed 3 times in a row"), GOING, "fail"),
        (Held(1.0, ONE), GOING, ""),
        (Failed(1.0, ONE, BAD), GOING, "fail"),
        (TimeLimitReached(1.0, ONE), GOING, "fail"),
        (Succeeded(1.0, ONE, Exit(0)), GOING, "end"),
        (Cancelled(1.0, ONE), GOING, "end"),
    ],
)
def test_each_fact_has_its_word(event: Failed, now: Job, word: str) -> None:
    assert word_of(event, now) == word


def test_a_failure_is_an_end_and_a_hold_is_not() -> None:
    asks = replace(GOING, spec=GOING.spec.having(notify=("slack",), notify_on=("end",)))
    assert is_wanted("fail", Failed(1.0, ONE, BAD), asks)
    assert not is_wanted("fail", Held(1.0, ONE, "held: x"), asks)
    assert not is_wanted("start", Started(1.0, ONE, 1, NodeId("a")), asks)
    fails = replace(asks, spec=asks.spec.having(notify_on=("fail",)))
    assert is_wanted("fail", Held(1.0, ONE, "held: x"), fails)
    assert not is_wanted("end", Succeeded(1.0, ONE, Exit(0)), fails)


def test_headlines() -> None:
    assert headline(over(JobState.FAILED, BAD), "fail", "") == "job 1 train failed: exit 3"
    assert headline(over(JobState.COMPLETED), "end", "completed") == "job 1 train completed"
    assert headline(over(JobState.CANCELLED), "end", "cancelled") == "job 1 train was cancelled"
    assert headline(GOING, "start", "") == "job 1 train is running"
    assert headline(job(1, state=JobState.HELD), "fail", "held: failed 3 times") == "job 1 is held: failed 3 times"


def test_a_message_has_the_end_of_the_log_but_no_command_and_no_environment() -> None:
    told = letter(over(JobState.FAILED, BAD), "fail", "", ["step 1", "boom"], "", now=100.0)
    assert told.title == "gpq: job 1 train failed: exit 3"
    assert "The last 2 lines of its log:\nstep 1\nboom\n" in told.body
    assert "gpq logs 1" in told.body
    assert "geheim" not in told.body + told.title
    assert "versteckt" not in told.body
    without = letter(over(JobState.FAILED, BAD), "fail", "", [], "Cannot read its log now: a is silent", now=100.0)
    assert "Cannot read its log now: a is silent" in without.body


@pytest.mark.parametrize(
    "line", ["HTTPError: 401 for https://ana:hunter2-Secret@x.de", "KeyError: hunter2-Secret", "at K=versteckt"]
)
def test_no_line_that_a_job_or_a_server_wrote_leaves_with_a_secret_or_a_control_character(line: str) -> None:
    job_ = replace(GOING, spec=GOING.spec.having(env=(("API_TOKEN", "hunter2-Secret"), ("K", "versteckt"))))
    failed = replace(job_, state=JobState.FAILED, placement=None, exit=Exit(code=1, note=line))
    sent = [
        letter(failed, "fail", "", [], "", now=9.0), letter(job_, "retry", f"attempt failed: {line}", [], "", now=9.0),
        letter(job_, "fail", f"held: {line}", [], "", now=9.0), letter(job_, "retry", "x", [], line, now=9.0),
        digest([headline(job_, "retry", line), headline(failed, "fail", "")]),
    ]  # fmt: skip
    for notification in sent:
        text = f"{notification.title}\n{notification.body}"
        assert "hunter2" not in text
        assert "versteckt" not in text
        assert "gpq removed a line that may contain a secret" in text
    assert sent[0].title.startswith("gpq: job 1 train failed: ")
    title, body = letter(replace(failed, exit=Exit(1, note="a\x1b[2J\nb @everyone")), "fail", "", [], "", now=9.0)
    assert title == "gpq: job 1 train failed: exit 1: a b @ everyone"
    assert "\x1b" not in body


def test_many_notifications_are_one_message_of_limited_length() -> None:
    told = digest([f"job {number} completed" for number in range(100)])
    assert told.title == "gpq: 100 messages about jobs"
    assert told.body.count("\n") == 50
    assert told.body.endswith("and 50 more: gpq status")


def test_the_letter_about_an_end_has_the_notes_that_its_headline_lacks() -> None:
    done = replace(over(JobState.COMPLETED, Exit(0)), notices=("gpq ended 2 processes", "the key is versteckt"))
    body = letter(done, "end", "completed", [], "", 1.0).body.splitlines()
    assert body[2] == "note: gpq ended 2 processes"
    assert "versteckt" not in "".join(body)
    killed = replace(
        over(JobState.FAILED, Exit(None, signal=9, note="killed by SIGKILL, not by gpq")),
        notices=("low", "killed by SIGKILL, not by gpq"),
    )
    body = letter(killed, "fail", "failed", [], "", 1.0).body.splitlines()
    assert body[0] == "job 1 train failed: killed by SIGKILL, not by gpq"
    assert [line for line in body if line.startswith("note: ")] == ["note: low"]
