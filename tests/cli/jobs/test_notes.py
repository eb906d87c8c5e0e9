"""A note about a job reaches every place that shows the job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from gpq.views import queue
from tests.cli.conftest import FIFO, Gpq, started, state_directory, submitted
from tests.support.waiting import wait_until
from tests.support.webhook import webhook

# Reports what a training script reports, and leaves a process behind.
PROGRAM = """
import json, os, subprocess
with open(os.environ["GPQ_RUN_DIR"] + "/report.jsonl", "w") as report:
    for line in ({"kind": "notice", "message": "something of the library"},
                 {"kind": "metrics", "step": 1, "values": {"loss": "nan"}}):
        report.write(json.dumps({"v": 1, "time": 1.0, **line}) + "\\n")
subprocess.Popen(["sleep", "600"])
"""
NOTES = {
    "library": "something of the library",
    "server": "gpq ended 1 process (1 sleep) that it had left running. For work that should finish",
    "metrics": "loss is nan for",
    "predecessor": ", which it comes after, completed with a note: gpq ended 1 process (1 tail)",
    "notification": "the notification of its end was not sent to broken yet",
}
PLACES = {
    "status": ("status",),
    "status of one": ("status", "JOB"),
    "status in JSON": ("status", "--json"),
    "wait": ("wait", "JOB"),
    "wait in JSON": ("wait", "JOB", "--json"),
    "logs": ("logs", "JOB"),
    "last lines": ("logs", "JOB", "-n", "1"),
    "logs that follow": ("logs", "JOB", "-f"),
    "logs in JSON": ("logs", "JOB", "--json"),
    "show": ("show", "JOB"),
    "show in JSON": ("show", "JOB", "--json"),
    "why": ("why", "JOB"),
    "why in JSON": ("why", "JOB", "--json"),
    "python wait": "job.wait()",
    "python log": "list(job.log_pieces())",
    "python status": "print(job.status().notes)",
}


@pytest.fixture(scope="module")
def noted() -> Iterator[tuple[Gpq, str]]:
    """A job with a note of each kind. It has ended, and completed."""
    with webhook("refuses") as broken, state_directory() as home:
        (home / "config.toml").write_text(f'{FIFO}[notify]\nbroken = "{broken.url("token")}"\n')
        (home / "program.py").write_text(PROGRAM)
        with started(home) as gpq:
            first = submitted(gpq, "--", "sh", "-c", "tail -f /dev/null & exit 0")
            options = ("--after", first, "--notify", "broken", "--notify-on", "end")
            job = submitted(gpq, *options, "--", "python3", "program.py")
            wait_until(lambda: "not sent" in gpq("show", job).stdout, "the service has refused")
            yield gpq, job


@pytest.mark.parametrize("place", PLACES)
def test_every_place_shows_every_kind_of_note(noted: tuple[Gpq, str], place: str) -> None:
    gpq, job = noted
    words = PLACES[place]
    if isinstance(words, str):
        code = f"import gpq; job = gpq.Job({job}); {words}"
        done = subprocess.run(
            [sys.executable, "-c", code], env=gpq.environment, capture_output=True, text=True, timeout=120, check=False
        )
    else:
        done = gpq(*(word.replace("JOB", job) for word in words))
    assert done.returncode == 0, done
    text = done.stdout if "in JSON" in place else done.stdout + done.stderr
    for note in NOTES.values():
        assert text.count(note) == 1 or (note in text and place.startswith("show")), note  # with its event


def test_who_submits_a_job_after_one_with_a_note_hears_of_it(noted: tuple[Gpq, str]) -> None:
    gpq, job = noted
    done = gpq("submit", "--hold", "--after", job, "--", "true")
    assert f"note: job {job}, which it comes after, completed with a note: gpq ended 1 process (1 sleep)" in done.stderr


def test_the_notes_of_many_jobs_are_few_and_the_newest_first() -> None:
    rows = [{"id": number, "reason": "", "notes": ["old", f"new {number // 2}"]} for number in range(16)]
    lines = queue.notes(rows)
    assert lines[0] == "jobs 14, 15: new 7"
    assert lines[5:] == ["jobs 4, 5: new 2", "3 more: `gpq show JOB` has all notes of a job"]
    assert queue.notes(rows[:3]) == ["jobs 0, 1, 2: old", "jobs 0, 1: new 0", "job 2: new 1"]
    assert queue.notes([{**row, "notes": ["old"]} for row in rows]) == ["jobs 0, 1, 2, 3 and 12 others: old"]


def test_what_the_reason_says_is_no_note() -> None:
    assert queue.notes([{"id": 1, "reason": "exit 1: out of disk", "notes": ["out of disk", "low on memory"]}]) == [
        "job 1: low on memory"
    ]
