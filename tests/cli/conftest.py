"""Real gpq processes, each test with a state directory of its own; a real daemon where a test asks for one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import commands, schemas
from tests.cli.served import Made, job, serving

ROOT = Path(__file__).parents[2]
FIFO = 'interval = 2.0\npolicy = "fifo"\n[nodes.local]\nslots = 2\n'


@dataclass
class Gpq:
    """Runs the command line in `home`; what it prints as JSON is held against the published schema."""

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


@pytest.fixture
def home() -> Iterator[Path]:
    """Short, because a socket's path must be."""
    path = Path(tempfile.mkdtemp(prefix="gpq-cli-"))
    (path / "config.toml").write_text(FIFO)
    (path / "bin").mkdir()
    launcher = path / "bin" / "gpq"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpq "$@"\n')
    launcher.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def gpq(home: Path) -> Gpq:
    return Gpq(home)


@pytest.fixture
def made(home: Path) -> Iterator[Made]:
    """A socket with two made jobs."""
    with serving(home, [job(1), job(2, "pending")]) as made:
        yield made


@pytest.fixture
def live(gpq: Gpq) -> Iterator[Gpq]:
    """A real daemon with two CPU slots; at the end no job and no daemon is left."""
    started = gpq("daemon", "start")
    assert started.returncode == 0, started.stderr
    yield gpq
    gpq("cancel", "all")
    stopped = gpq("daemon", "stop")
    assert stopped.returncode == 0, stopped.stderr
