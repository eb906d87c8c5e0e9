"""Counts the GPUs that a script would see here. Asks the script's torch, and refuses if there are
too few."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from gpq.errors import GpqError, Refused

ASK = "import torch; print(torch.cuda.device_count())"
PATIENCE = 120  # seconds. A first import of torch from a network drive is slow


def need(count: int, python: str, environ: Mapping[str, str], cwd: str) -> None:
    """Raises Refused if torch sees fewer GPUs, because it would silently train on the CPU. Starts a
    process."""
    devices = _device_count(python, environ, cwd)
    if devices < count:
        plural = "" if devices == 1 else "s"
        raise Refused(
            f"--gpu needs {count} GPUs, but torch sees {devices} GPU{plural} here",
            "without --gpu the check runs on the CPUs",
        )


def _device_count(python: str, environ: Mapping[str, str], cwd: str) -> int:
    try:
        answer = subprocess.run(
            [python, "-c", ASK],
            env=environ,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
        )
    except OSError as error:
        problem = f"cannot start {python} here: {error.strerror}"
        raise GpqError(problem, "use --python PATH with an interpreter of this machine") from None
    except subprocess.TimeoutExpired:
        raise GpqError(
            f"torch did not say within {PATIENCE} s how many GPUs there are",
            "check the driver with nvidia-smi",
        ) from None
    last_line = answer.stdout.decode("utf-8", "replace").strip().rpartition("\n")[2]
    if answer.returncode or not last_line.isdecimal():
        error_line = answer.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        problem = (
            f"{python} cannot count the GPUs: {error_line or f'exit code {answer.returncode}'}"
        )
        raise GpqError(problem[:500], "use --python PATH with an interpreter that has torch")
    return int(last_line)
