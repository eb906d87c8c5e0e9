"""Real gpq processes. Each test has its own state directory, and a real daemon if it asks for one.

Tests that only need some daemon use `queue`. Its daemon serves all tests of a file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpq.cli import fast_path
from tests.cli.served import Made, job, serving
from tests.support import commands, schemas

ROOT = Path(__file__).parents[2]
BARE = os.path.realpath(sys.executable)  # an interpreter without torch, so `gpq doctor` is fast
FIFO = 'interval = 2.0\npolicy = "fifo"\n[nodes.local]\nslots = 2\n'


@dataclass
class Gpq:
    """Runs the command line in `home` and checks the JSON that it prints against the published schema."""

    home: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.home}/bin:{os.path.dirname(sys.executable)}:/usr/bin:/bin",
            "HOME": str(self.home),
            "GPQ_HOME": str(self.home),
            "GPQ_CONFIG": str(self.home / "config.toml"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "agent")]),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            **self.environ,
        }

    def __call__(
        self, *argv: str, timeout: float = 120, cwd: Path | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        done = commands.run(argv, {**self.environment, **environ}, cwd=cwd or self.home, timeout=timeout)
        schemas.check_call(argv, done.stdout)
        return done


@contextmanager
def state_directory() -> Iterator[Path]:
    """A short path, because the path of a socket must be short."""
    path = Path(tempfile.mkdtemp(prefix="gpq-cli-"))
    (path / "config.toml").write_text(FIFO)
    (path / "bin").mkdir()
    launcher = path / "bin" / "gpq"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpq "$@"\n')
    launcher.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def home() -> Iterator[Path]:
    with state_directory() as path:
        yield path


@pytest.fixture
def gpq(home: Path) -> Gpq:
    return Gpq(home)


Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def call(gpq: Gpq, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Like `gpq`, but in this process. Use it for many similar cases after a real process has run one of them."""

    def run(*argv: str, entry: Callable[[list[str]], int] = fast_path.run) -> subprocess.CompletedProcess[str]:
        code = entry(list(argv))
        return subprocess.CompletedProcess(argv, code, *capsys.readouterr())

    for name in os.environ:
        monkeypatch.delenv(name)
    for name, value in gpq.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(gpq.home)
    return run


@pytest.fixture
def made(home: Path) -> Iterator[Made]:
    """A socket that answers with two fake jobs."""
    with serving(home, [job(1), job(2, "pending")]) as made:
        yield made


@contextmanager
def started(home: Path) -> Iterator[Gpq]:
    gpq = Gpq(home)
    start = gpq("daemon", "start")
    assert start.returncode == 0, start.stderr
    try:
        yield gpq
    finally:
        gpq("cancel", "all")
        stop = gpq("daemon", "stop")
    assert stop.returncode == 0, stop.stderr


@pytest.fixture
def live(home: Path) -> Iterator[Gpq]:
    """A real daemon with two CPU slots. No job and no daemon remains at the end."""
    with started(home) as gpq:
        yield gpq


@pytest.fixture(scope="module")
def served() -> Iterator[Gpq]:
    """Like `live`, but for a whole file."""
    with state_directory() as home, started(home) as gpq:
        yield gpq


@pytest.fixture
def queue(served: Gpq) -> Iterator[Gpq]:
    """The daemon of the file, without live jobs. Earlier tests used up some ids, so a test uses the ids of its own
    jobs."""
    yield served
    done = served("cancel", "all")
    assert done.returncode == 0, done.stderr


def submitted(gpq: Gpq, *argv: str, **environ: str) -> str:
    """The id that `gpq submit` printed."""
    done = gpq("submit", *argv, **environ)
    assert done.returncode == 0, done
    return done.stdout.split()[1]
