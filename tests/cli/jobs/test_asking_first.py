"""If a name matches several jobs, a command on a terminal lists them and asks before it does anything."""

from __future__ import annotations

import json
import threading

import pytest

from gpq.cli.jobs.cancel import QUIET_SECONDS
from tests.cli.conftest import Gpq, submitted
from tests.cli.jobs.test_live import ok
from tests.cli.terminals import Terminal


@pytest.fixture
def three(queue: Gpq) -> list[int]:
    """The ids of three held jobs. Two of them have the same name."""
    return [
        int(submitted(queue, "--hold", "--name", name, "--", "sleep", "600")) for name in ("train", "train", "other")
    ]


def states(gpq: Gpq, jobs: list[int]) -> list[str]:
    return [row["state"] for row in json.loads(ok(gpq, "status", "--json", f"{jobs[0]}-{jobs[-1]}"))["jobs"]]


def at_terminal(gpq: Gpq, *argv: str, answer: str = "") -> tuple[int, str]:
    terminal = Terminal(gpq.environment, *argv, columns=100)
    if answer:
        terminal.shows("[y/N]")
        terminal.press(answer + "\n")
    return terminal.end(), terminal.text


def test_no_keeps_all_jobs_and_yes_cancels_them(queue: Gpq, three: list[int]) -> None:
    question = f"2 jobs are called train: {three[0]} (held), {three[1]} (held)"
    for answer in ("", "what?"):
        terminal = Terminal(queue.environment, "cancel", "train", columns=100)
        terminal.shows(question, "[y/N]")
        terminal.press(answer + "\n")
        assert terminal.end() == 5
        assert "nothing was cancelled" in terminal.text
        assert states(queue, three) == ["held", "held", "held"]
    terminal = Terminal(queue.environment, "cancel", "train", columns=100)
    terminal.shows("[y/N]")
    threading.Event().wait(2 * QUIET_SECONDS)  # gpq must not print a waiting note while the user thinks
    terminal.press("\x03")
    assert terminal.end() == 130
    assert "waiting until" not in terminal.text
    assert "goes on" not in terminal.text
    assert states(queue, three) == ["held", "held", "held"]
    assert at_terminal(queue, "cancel", "train", answer="y")[0] == 0
    assert states(queue, three) == ["cancelled", "cancelled", "held"]


def test_an_exact_selection_needs_no_confirmation(queue: Gpq, three: list[int]) -> None:
    for words in ((f"{three[0]}-{three[1]}",), ("train", "--yes"), ("other",)):
        status, text = at_terminal(queue, "cancel", *words)
        assert (status, "[y/N]" in text) == (0, False)
        for _ in range(2):
            submitted(queue, "--hold", "--name", "train", "--", "sleep", "600")
    assert states(queue, three) == ["cancelled", "cancelled", "cancelled"]


def test_a_script_is_never_asked(queue: Gpq, three: list[int]) -> None:
    ok(queue, "cancel", "train")
    assert states(queue, three) == ["cancelled", "cancelled", "held"]


def test_the_log_of_a_name_says_which_job_it_shows(queue: Gpq) -> None:
    for word in ("one", "two"):
        job = submitted(queue, "--name", "tune", "--", "sh", "-c", f"echo {word}; sleep 600")
    terminal = Terminal(queue.environment, "logs", "-f", "tune", columns=100)
    terminal.shows(f"2 jobs match `tune`: this is the newest, job {job}", "two")
    terminal.press("\x03")
    assert terminal.end() == 130
    assert "the job stays queued or keeps running" in terminal.text
