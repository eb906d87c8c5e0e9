"""A daemon for benchmarks with real jobs. Its own server has two GPUs, or two cores."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from gpq.client import daemon_control

SLOTS = 2
RESULTS = ":/!benchmarks/results"  # which a benchmark writes itself


@contextmanager
def daemon(settings: str, servers: str = "") -> Iterator[Path]:
    """The folder of a daemon with these lines of config.toml. Nothing of it is left afterwards."""
    home = Path(tempfile.mkdtemp(prefix="gpq-bench-"))
    config = home / "config.toml"
    config.write_text(f"{settings}\n{servers or _server()}")
    variables = {"GPQ_HOME": str(home), "GPQ_CONFIG": str(config)}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield home
    finally:
        daemon_control.stop(jobs=True)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(home)


def _server() -> str:
    """A workstation that offers two GPUs if it has them, else two cores."""
    offer = f"gpus = {[str(index) for index in range(SLOTS)]}"
    if _gpus() < SLOTS:
        offer = f"slots = {SLOTS}\ncores = {sorted(os.sched_getaffinity(0))[:SLOTS]}"
    return f"[nodes.workstation]\n{offer}\n"


def _gpus() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def slots() -> str:
    """What the two slots are, in words."""
    return "two GPUs" if _gpus() >= SLOTS else "two slots of one core each"


def commit() -> str:
    """The short name of the commit, with a + if files other than results differ from it."""
    revision = _git("rev-parse", "--short=8", "HEAD") or "unknown"
    return revision + ("+" if _git("status", "--porcelain", "--", ":/", RESULTS) else "")


def _git(*words: str) -> str:
    here = Path(__file__).parent
    return subprocess.run(
        ["git", *words], cwd=here, capture_output=True, text=True, check=False
    ).stdout.strip()


def moment(stamp: str) -> float:
    """Seconds since the epoch of a time in an answer of the daemon."""
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
