"""Folders of gpq's own: made only for their owner, and refused where somebody else could swap them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gpq_agent.wire import NotPrivate, make_private

import gpq
from tests.support.users import ANA, BOB, acting_as, shared_place

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acting as two users needs root")


@pytest.fixture
def place() -> Iterator[Path]:
    with shared_place() as path:
        yield path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def given(path: Path, owner: int, rights: int) -> Path:
    path.mkdir()
    os.chown(path, owner, ANA.pw_gid if owner == ANA.pw_uid else 0)
    path.chmod(rights)
    return path


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077, 0o777])
def test_no_umask_opens_or_closes_what_is_made(place: Path, umask: int) -> None:
    with acting_as(ANA):
        os.umask(umask)
        make_private(str(place / "a" / "b" / "c"))
        assert {mode(place / "a"), mode(place / "a" / "b"), mode(place / "a" / "b" / "c")} == {0o700}


@pytest.mark.parametrize("rights", [0o755, 0o770, 0o777, 0o2775, 0o300])
def test_an_own_folder_that_is_too_open_is_narrowed(place: Path, rights: int) -> None:
    given(place / "own", ANA.pw_uid, rights)
    with acting_as(ANA):
        make_private(str(place / "own"))
    assert not mode(place / "own") & 0o077


@pytest.mark.parametrize("rights", [0o700, 0o755, 0o1777])
def test_another_users_folder_is_refused_at_any_place_of_the_path(place: Path, rights: int) -> None:
    bobs = given(place / "gpq", BOB.pw_uid, rights)
    given(bobs / "hers", ANA.pw_uid, 0o700)
    for path in (bobs, bobs / "hers", bobs / "hers" / "new"):
        for user in (ANA, None):
            with acting_as(user) if user else pytest.MonkeyPatch.context():
                with pytest.raises(NotPrivate, match=f"{bobs} belongs to nobody") as caught:
                    make_private(str(path))
                assert caught.value.hint
                assert "\n" not in str(caught.value)
    assert sorted(place.rglob("*")) == [bobs, bobs / "hers"]


def test_a_folder_that_a_group_shares_needs_the_sticky_bit(place: Path) -> None:
    lab = given(place / "lab", 0, 0o2775)
    os.chown(lab, 0, ANA.pw_gid)
    lab.chmod(0o2775)
    with acting_as(ANA), pytest.raises(NotPrivate, match=f"others may write to {lab}") as caught:
        make_private(str(lab / "ana" / "gpq"))
    assert f"ask root for `chmod +t {lab}`" in caught.value.hint
    assert list(lab.iterdir()) == []
    lab.chmod(0o3775)
    with acting_as(ANA):
        make_private(str(lab / "ana" / "gpq"))


def test_a_home_may_be_writable_to_the_users_private_group_and_to_nobody_else(place: Path) -> None:
    home = given(place / "ana", ANA.pw_uid, 0o775)  # group daemon, in which only daemon is
    with acting_as(ANA):
        make_private(str(home / "state"))
    os.chown(home, ANA.pw_uid, BOB.pw_gid)
    with acting_as(ANA), pytest.raises(NotPrivate, match="others may write") as caught:
        make_private(str(home / "state"))
    assert caught.value.hint == f"run `chmod go-w {home}`"


def test_roots_links_and_own_ones_are_followed_and_another_users_are_not(place: Path) -> None:
    real = given(place / "disk", ANA.pw_uid, 0o700)
    (place / "link").symlink_to("disk/../disk")
    for owner in (0, ANA.pw_uid):
        os.chown(place / "link", owner, 0, follow_symlinks=False)
        with acting_as(ANA):
            make_private(str(place / "link" / "state" / "nodes"))
    assert (real / "state" / "nodes").is_dir()
    os.chown(place / "link", BOB.pw_uid, 0, follow_symlinks=False)
    with acting_as(ANA), pytest.raises(NotPrivate, match=f"{place / 'link'} belongs to nobody"):
        make_private(str(place / "link" / "state"))
    with acting_as(ANA), pytest.raises(NotPrivate, match="belongs to nobody"):
        make_private(str(place / "link"))


def plant_circle(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("plant", [Path.touch, plant_circle, os.mkfifo])
def test_what_is_not_a_folder_is_an_error(place: Path, plant: Callable[[Path], None]) -> None:
    plant(place / "x")
    for path in (place / "x", place / "x" / "y"):
        with pytest.raises(OSError, match="Not a directory"):
            make_private(str(path))


def test_a_folder_that_is_for_all_users_stays_as_it_is(place: Path) -> None:
    with pytest.raises(NotPrivate, match="is for all users"):  # as root, whose folder it is
        make_private(str(place))
    assert mode(place) == 0o1777


# They work in folders that make_private, mkdtemp or the user made.
OTHERS = (
    "check/runner.py", "demo.py", "demo_team.py",
    "options/snapshot.py",
)  # fmt: skip


def test_gpq_makes_its_folders_nowhere_else() -> None:
    root = Path(gpq.__file__).parent
    makers = {
        str(path.relative_to(root)) for path in root.rglob("*.py") if re.search(r"makedirs\(|mkdir\(", path.read_text())
    }
    assert makers == set(OTHERS)
