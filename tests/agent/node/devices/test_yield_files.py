"""Requests for a server: the file's owner shows who asks, and nothing else is believed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from gpq_agent.node.devices import yield_files
from gpq_agent.node.devices.yield_files import Yielding, ask, end
from gpq_agent.node.host.user_names import user_name

ME = user_name(os.geteuid())


def users(folder: Path) -> list[str]:
    return Yielding(str(folder)).users()


def test_a_request_counts_until_it_expires_or_is_withdrawn(tmp_path: Path) -> None:
    assert users(tmp_path) == []
    before = time.time()
    until = ask(str(tmp_path), 3600.0)
    assert before + 3600.0 <= until <= time.time() + 3600.0
    assert users(tmp_path) == [ME]
    ask(str(tmp_path), 0.001)
    time.sleep(0.002)
    assert users(tmp_path) == []
    ask(str(tmp_path), 60.0)
    assert end(str(tmp_path)) is True
    assert users(tmp_path) == []
    assert end(str(tmp_path)) is False
    assert list(tmp_path.iterdir()) == []


def test_others_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        ask(str(tmp_path), 60.0)
    finally:
        os.umask(before)
    [path] = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan")])
def test_nonsense_is_refused(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(ValueError, match="year"):
        ask(str(tmp_path), seconds)


def test_only_the_users_own_regular_file_is_believed(tmp_path: Path) -> None:
    uid = os.geteuid()
    told = json.dumps({"until": time.time() + 60})
    (tmp_path / f"gpq-yield.{uid + 1}").write_text(told)  # in another user's name
    assert users(tmp_path) == []
    target = tmp_path / "target"
    target.write_text(told)
    (tmp_path / f"gpq-yield.{uid}").symlink_to(target)
    assert users(tmp_path) == []
    (tmp_path / f"gpq-yield.{uid}").unlink()
    os.mkfifo(tmp_path / f"gpq-yield.{uid}")  # does not hang
    assert users(tmp_path) == []
    (tmp_path / f"gpq-yield.{uid}").unlink()
    for text in ("", "{", "[]", '{"until": "soon"}', '{"until": NaN}', '{"until": 1e300}', "\xff"):
        (tmp_path / f"gpq-yield.{uid}").write_text(text)
        assert users(tmp_path) == []
    (tmp_path / f"gpq-yield.{uid}").write_text(told)
    assert users(tmp_path) == [ME]
    assert users(tmp_path / "nowhere") == []


def test_a_look_serves_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Yielding(str(tmp_path))
    assert one.users() == []
    ask(str(tmp_path), 60.0)
    assert one.users() == []
    monkeypatch.setattr(yield_files, "LOOK_PERIOD", 0.0)
    assert one.users() == [ME]
