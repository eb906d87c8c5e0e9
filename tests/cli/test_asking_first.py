"""A name of several jobs, at a terminal: which are meant is said before anything is done to them."""

from __future__ import annotations

import json
import threading

import pytest

from gpq.cli.cancel import QUIET_SECONDS
from tests.cli.conftest import Gpq
from tests.cli.terminals import Terminal
from tests.cli.test_live import ok


@pytest.fixture
def three(live: Gpq) -> Gpq:
    for name in ("train", "train", "other"):
        ok(live, "submit", "--hold", "--name", name, "--", "sleep", "600")
    return live


def states(gpq: Gpq) -> list[str]:
    return [row["state"] for row in json.loads(ok(gpq, "status", "--json", "1-3"))["jobs"]]


def at_terminal(gpq: Gpq, *argv: str, answer: str = "") -> tuple[int, str]:
    terminal = Terminal(gpq.environment, *argv, columns=100)
    if answer:
        terminal.shows("[y/N]")
        terminal.press(answer + "\n")
    return terminal.end(), terminal.text


def test_a_no_leaves_all_of_them_and_a_yes_none(three: Gpq) -> None:
    for answer in ("n", "", "what?"):
        terminal = Terminal(three.environment, "cancel", "train", columns=100)
        terminal.shows("2 jobs are called train: 1 (held), 2 (held)", "[y/N]")
        terminal.press(answer + "\n")
        assert terminal.end() == 5
        assert "nothing was cancelled" in terminal.text
        assert states(three) == ["held", "held", "held"]
    terminal = Terminal(three.environment, "cancel", "train", columns=100)
    terminal.shows("[y/N]")
    threading.Event().wait(2 * QUIET_SECONDS)  # whoever thinks it over is not told that something is waited for
    terminal.press("\x03")
    assert terminal.end() == 130
    assert "waiting until" not in terminal.text
    assert "goes on" not in terminal.text
    assert states(three) == ["held", "held", "held"]
    assert at_terminal(three, "cancel", "train", answer="y")[0] == 0
    assert states(three) == ["cancelled", "cancelled", "held"]


def test_who_says_exactly_what_is_meant_is_not_asked(three: Gpq) -> None:
    for words in (("1-2",), ("train", "--yes"), ("other",)):
        status, text = at_terminal(three, "cancel", *words)
        assert (status, "[y/N]" in text) == (0, False)
        ok(three, "submit", "--hold", "--name", "train", "--", "sleep", "600")
        ok(three, "submit", "--hold", "--name", "train", "--", "sleep", "600")
    assert states(three) == ["cancelled", "cancelled", "cancelled"]


def test_a_script_means_what_it_says(three: Gpq) -> None:
    ok(three, "cancel", "train")
    assert states(three) == ["cancelled", "cancelled", "held"]


def test_the_log_of_a_name_says_whose_it_is(live: Gpq) -> None:
    for word in ("one", "two"):
        ok(live, "submit", "--name", "train", "--", "sh", "-c", f"echo {word}; sleep 600")
    terminal = Terminal(live.environment, "logs", "-f", "train", columns=100)
    terminal.shows("`train` stands for 2 jobs; this is the newest, job 2", "two")
    terminal.press("\x03")
    assert terminal.end() == 130
    assert "the job stays queued or runs on" in terminal.text
