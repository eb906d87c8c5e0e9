"""A daemon for benchmarks with real jobs: one server with two GPUs, or with two cores."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpq.client import daemon_control

SLOTS = 2


@contextmanager
def daemon(settings: str) -> Iterator[None]:
    """A daemon with two slots and these lines of config.toml. Nothing of it is left afterwards."""
    home = Path(tempfile.mkdtemp(prefix="gpq-bench-"))
    config = home / "config.toml"
    config.write_text(f"{settings}\n{_server()}")
    variables = {"GPQ_HOME": str(home), "GPQ_CONFIG": str(config)}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
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
