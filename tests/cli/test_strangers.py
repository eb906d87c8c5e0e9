"""Other users of this machine: what they put where gpq looks, or may change, is refused in one line and never used."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gpq.check import keeping
from gpq.servers import config_file
from tests.cli.conftest import Gpq
from tests.support.users import shared_place

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acting as two users needs root")

SUBMIT = ("submit", "--snapshot", "--hold", "--env", "HF_TOKEN=secret", "--", "true")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for everybody, such as /tmp or /scratch."""
    with shared_place() as path:
        yield path


@pytest.fixture
def ana(place: Path) -> Gpq:
    """With a home of her own, and the usual folders in it."""
    home = place / "ana"
    home.mkdir(0o755)
    (home / "train.py").write_text("pass\n")
    return Gpq(home, {"GPQ_HOME": "", "GPQ_CONFIG": ""})


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o777])
def test_no_umask_of_the_first_command_opens_the_state_to_others(ana: Gpq, place: Path, umask: int) -> None:
    (place / "run").mkdir(0o700)
    gpq = Gpq(ana.home, {**ana.environ, "XDG_RUNTIME_DIR": str(place / "run")})
    before = os.umask(umask)
    try:
        said = gpq(*SUBMIT)
    finally:
        os.umask(before)
        gpq("daemon", "stop")
    assert said.returncode == 0, said.stderr
    folders = [path for path in (ana.home / ".local").rglob("*") if path.is_dir() and not path.is_symlink()]
    folders += [ana.home / ".local", place / "run" / "gpq"]
    assert {ana.home / ".local" / "state" / "gpq" / name for name in ("lib", "snapshots", "nodes")} <= set(folders)
    assert open_to_others(folders) == {}


def open_to_others(folders: Iterable[Path]) -> dict[str, str]:
    return {str(path): oct(path.stat().st_mode) for path in folders if stat.S_IMODE(path.stat().st_mode) != 0o700}


def test_a_verdict_and_the_configuration_are_in_folders_for_their_owner(
    ana: Gpq, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "GPQ_HOME", "GPQ_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(ana.home))
    before = os.umask(0)
    try:
        keeping.keep(keeping.place("train.py", []), {})
        config_file.write("interval = 5.0\n", "")
    finally:
        os.umask(before)
    folders = [path for path in ana.home.rglob("*") if path.is_dir()]
    assert {ana.home / ".config" / "gpq", ana.home / ".local" / "state" / "gpq" / "checks"} <= set(folders)
    assert open_to_others(folders) == {}
