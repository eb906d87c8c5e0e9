"""Checks of a file system that may not answer: in a child, with limited patience, and not again at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpq_agent.node.host import with_timeout
from gpq_agent.node.host.errors import SpoolError

from tests.support.figures import Figures


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(with_timeout, "PATIENCE", 0.3)
    monkeypatch.setattr(with_timeout, "_silent", {})
    yield
    deadline = time.monotonic() + 30.0
    while with_timeout._left and time.monotonic() < deadline:  # children of ours
        with_timeout.check("/", lambda: None)


def hang() -> None:
    time.sleep(600)


def test_a_problem_that_the_question_finds_is_reported_unchanged() -> None:
    with_timeout.check("/a", lambda: None)

    def wrong() -> None:
        raise SpoolError("no such thing", "make one", "not-found")

    with pytest.raises(SpoolError) as refusal:
        with_timeout.check("/a", wrong)
    assert (refusal.value.message, refusal.value.hint, refusal.value.kind) == ("no such thing", "make one", "not-found")


def test_an_error_of_the_system_may_pass() -> None:
    def failing() -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(SpoolError, match="Input/output error") as refusal:
        with_timeout.check("/a", failing)
    assert refusal.value.kind == "busy"


def test_a_place_that_does_not_answer_is_given_up_and_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch, figures: Figures
) -> None:
    began = time.monotonic()
    with pytest.raises(SpoolError, match="the file system of /b does not answer") as refusal:
        with_timeout.check("/b", hang)
    assert refusal.value.kind == "busy"
    figures.at_most("a file system that does not answer is given up", time.monotonic() - began, 20.0)
    asked: list[int] = []
    with pytest.raises(SpoolError, match="does not answer"):
        with_timeout.check("/b", lambda: asked.append(1))
    with_timeout.check("/c", lambda: None)  # other places are not to blame
    monkeypatch.setattr(with_timeout, "AGAIN_AFTER", 0.0)
    with_timeout.check("/b", lambda: None)
    assert "/b" not in with_timeout._silent


def test_a_killed_child_proves_nothing() -> None:
    with pytest.raises(SpoolError, match="ended too soon") as refusal:
        with_timeout.check("/d", lambda: os.kill(os.getpid(), 9))
    assert refusal.value.kind == "busy"


def test_a_machine_that_stood_still_is_not_the_fault_of_a_file_system(tmp_path: Path) -> None:
    """The handler of a signal takes longer than the patience, in the first look."""
    patience, awake = 1.0, tmp_path / "awake"

    def stand_still(number: int, frame: object) -> None:
        time.sleep(patience)
        awake.touch()

    def question() -> None:
        os.kill(os.getppid(), signal.SIGUSR1)
        while not awake.exists():
            time.sleep(0.01)

    before = signal.signal(signal.SIGUSR1, stand_still)
    try:
        with_timeout.check("/e", question, patience)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert awake.exists()
