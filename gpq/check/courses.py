"""A shape on its way through its attempts: the processes of the current one, and how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from gpq.check.fork_server import Fork, ending
from gpq.check.shapes import Shape

TRIES = 3  # of an attempt whose port was taken
LAST_LINES = 12
MOST_OF_A_LOG = 1 << 16  # bytes to read at the end of a log

Process = subprocess.Popen[bytes] | Fork


@dataclass
class ShapeRun:
    """One shape on its way. `attempt` is the index of the current one, -1 before the first."""

    shape: Shape
    folder: Path
    attempt: int = -1
    processes: list[Process] = field(default_factory=list)
    failed: str = ""  # why it did not finish
    log: str = ""  # the log of the process that failed
    over: bool = False
    tries: int = 1

    def log_of(self, rank: int) -> Path:
        """The log of a replica of the current or last attempt."""
        return self.folder / f"{self.attempt + 1}.{rank}.log"

    def error(self) -> str:
        """The last line of the process that failed."""
        line = " ".join(last_lines(self.log)[-1:])
        return line.removeprefix("[rank0]: ") or self.failed

    def look(self) -> None:
        """Has its attempt ended? If one replica fails, the others would wait for it."""
        codes = [process.poll() for process in self.processes]
        failures = [(rank, code) for rank, code in enumerate(codes) if code]
        if failures:
            self._fail(*failures[0])
        elif None not in codes:
            self.close()
            self.over = self.attempt + 1 == len(self.shape.attempts)

    def close(self) -> None:
        """End its remaining processes."""
        for process in self.processes:
            _end(process)
        self.processes.clear()

    def _fail(self, rank: int, code: int) -> None:
        """Try the attempt again if its port was taken."""
        if self.tries < TRIES and self._is_port_taken(rank):
            self.close()
            self.tries += 1
            self.attempt -= 1
            return
        self.failed, self.log, self.over = ending(code), str(self.log_of(rank)), True
        self.close()

    def _is_port_taken(self, rank: int) -> bool:
        """Did another process have the port by then?"""
        return any("EADDRINUSE" in line for line in last_lines(str(self.log_of(rank))))


def last_lines(path: str) -> list[str]:
    """The end of a process's output."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - MOST_OF_A_LOG))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-LAST_LINES:]


def _end(process: Process) -> None:
    """End its whole session: loader workers, and everything that the script started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
