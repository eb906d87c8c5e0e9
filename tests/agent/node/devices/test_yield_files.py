"""Requests for a server: the file's owner shows who asks, and nothing else is believed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gpq_agent.node.devices.gpu_locks import own_names
from gpq_agent.node.devices.yield_files import Yielding, ask, end
from gpq_agent.wire import user_name

from tests.support.users import ANA, BOB, acting_as, shared_place

ME = user_name(os.geteuid())


def users(folder: Path, owner: str = ME) -> list[str]:
    return Yielding(str(folder), owner).users()


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


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's file needs root")
@pytest.mark.parametrize("plant", [Path.mkdir, Path.touch, os.mkfifo])
@pytest.mark.parametrize("spares", range(1, 4))
def test_a_name_that_another_user_has_taken_stops_no_request(plant: Callable[[Path], None], spares: int) -> None:
    with shared_place() as place:
        uid = ANA.pw_uid
        names = [place / f"gpq-yield.{uid}", *(place / f"gpq-yield.{uid}.{number}" for number in range(1, spares))]
        with acting_as(BOB):
            for path in names:
                plant(path)
        place.chmod(0o1733)  # nobody can list it, and nobody needs to
        with acting_as(ANA):
            ask(str(place), 3600.0)
            ask(str(place), 60.0)
            assert users(place, ANA.pw_name) == [ANA.pw_name]
        with acting_as(BOB):
            assert users(place, ANA.pw_name) == [ANA.pw_name]
            assert users(place, BOB.pw_name) == users(place, "no such user") == users(place, "") == []
        with acting_as(ANA):
            assert end(str(place)) is True
        assert users(place, ANA.pw_name) == []
        assert sorted(place.iterdir()) == names


def test_if_all_names_are_taken_the_request_fails_and_leaves_nothing(tmp_path: Path) -> None:
    for path in own_names(str(tmp_path / f"gpq-yield.{os.geteuid()}")):
        Path(path).mkdir()
    with pytest.raises(OSError, match="taken all names"):
        ask(str(tmp_path), 60.0)
    assert len(list(tmp_path.iterdir())) == 4
