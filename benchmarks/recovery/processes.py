"""Processes of the comparison: commands that say why they failed, and the end of everything that it
started, by pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.machine import search_path
from tests.support.waiting import wait_until

MARK = (
    # in the environment of every process of a run, except slurmstepd, which writes its title over
    # it
    "RECOVERY_RUN"
)
# Dies with its starter, so that a killed comparison leaves no server behind.
WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")


def environment(mark: str, more: Mapping[str, str]) -> dict[str, str]:
    return {
        "PATH": search_path(),
        "LANG": "C.UTF-8",
        "HOME": "/root",
        "USER": "root",
        MARK: mark,
        **more,
    }


def say(argv: Sequence[str], env: Mapping[str, str], *, patience: float = 30.0) -> str:
    """The stdout of a command. Raises with its error output."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=env,
        timeout=patience,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{argv[0]}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def start(argv: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A server in the foreground, whose output goes to `log`. It and the processes that it starts
    work in the run's folder."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            [*WITH_PARENT, *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            cwd=env[MARK],
            start_new_session=True,
        )


def marked(mark: str) -> list[int]:
    """Pids of all live processes of the run."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
            ours = wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if state != b"Z" and (ours or os.readlink(f"/proc/{pid}/cwd") == mark):
                found.append(pid)
    return found


def end(mark: str) -> None:
    """Kill them all."""

    def none_left() -> bool:
        left = marked(mark)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    wait_until(none_left, "every process of the comparison has ended")
