"""The judge of a stress run sees every broken promise. Here the notes are not those of jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.lives import Order, agrees, copies, lives_of, overlaps


def _note(
    folder: Path, name: str, first: float, last: float, code: int | None = 0, devices: Sequence[str] = ("slot-0",)
) -> None:
    folder.mkdir(exist_ok=True)
    end = {} if code is None else {"code": code}
    with open(folder / name, "a") as notes:
        for note in ({"devices": ",".join(devices)}, {"at": first}, {"at": last, **end}):
            notes.write(json.dumps(note) + "\n")


def test_attempts_one_after_the_other_are_right(tmp_path: Path) -> None:
    _note(tmp_path / "a", "ana-1-1", 1.0, 2.0, code=None)
    _note(tmp_path / "b", "ana-1-2", 2.5, 3.0)
    _note(tmp_path / "a", "bo-1-1", 2.5, 3.0)
    lives = lives_of({name: tmp_path / name for name in "ab"})
    assert overlaps(lives) == []
    assert copies(lives["ana", 1]) == 2


@pytest.mark.parametrize(
    ("server", "name", "devices"),
    [
        ("b", "ana-1-2", ("slot-1",)),  # another attempt of the job
        ("b", "ana-1-1", ("slot-1",)),  # the same attempt again
        ("a", "bo-4-1", ("slot-1", "slot-0")),  # another user's job on the slot
    ],
)
def test_two_at_once_are_seen(tmp_path: Path, server: str, name: str, devices: Sequence[str]) -> None:
    _note(tmp_path / "a", "ana-1-1", 1.0, 2.0)
    _note(tmp_path / server, name, 1.9, 3.0, devices=devices)
    assert len(overlaps(lives_of({"a": tmp_path / "a", server: tmp_path / server}))) == 1


def test_an_attempt_that_starts_again_on_its_server_is_seen(tmp_path: Path) -> None:
    _note(tmp_path / "a", "ana-1-1", 1.0, 2.0)
    _note(tmp_path / "a", "ana-1-1", 3.0, 4.0)
    attempts = lives_of({"a": tmp_path / "a"})["ana", 1]
    assert (len(attempts), copies(attempts)) == (1, 2)


@pytest.mark.parametrize(
    ("state", "status", "reason", "code", "right"),
    [
        ("completed", 0, "", 0, True),
        ("completed", 0, "", 3, False),
        ("completed", 0, "", None, False),
        ("failed", 3, "exit 3", 3, True),
        ("failed", 3, "exit 3", None, False),  # made up
        ("failed", 1, "the server was rebooted", None, True),
        ("failed", 1, "", None, False),
        ("cancelled", None, "cancelled by its user", None, False),  # by nobody
    ],
)
def test_an_end_that_the_job_did_not_note_is_wrong(
    tmp_path: Path, state: str, status: int | None, reason: str, code: int | None, right: bool
) -> None:
    _note(tmp_path / "a", "ana-1-1", 1.0, 2.0, code=code)
    attempts = lives_of({"a": tmp_path / "a"})["ana", 1]
    assert agrees(state, status, reason, Order(3, lease=False), attempts) is right
