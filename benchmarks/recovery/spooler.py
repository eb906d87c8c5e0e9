"""task-spooler from Debian's package: one queue of one user on one machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.recovery import processes
from benchmarks.recovery.system import Told
from tests.support.waiting import wait_until

LINE = re.compile(
    r"(\d+)\s+(queued|running|finished|skipped|allocating)\s+\S+\s+(-?\d+)?.*?\[([\w.-]+)\]"
)
LISTENS = 0x10000  # among the flags in /proc/net/unix
PACKAGES = {"tsp": "task-spooler"}


def told(listed: str) -> dict[str, Told]:
    """The output of `tsp -l`, by job label."""
    found = {}
    for line in listed.splitlines():
        if match := LINE.match(line):
            _, state, code, label = match.groups()
            over = state in ("finished", "skipped")
            found[label] = Told(state, over, int(code) if over and code else None)
    return found


def listener(table: str, socket: str) -> int:
    """The inode of the socket that listens under this path, from the text of /proc/net/unix. 0 if
    none does."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[7:] == [socket] and int(fields[3], 16) & LISTENS:
            return int(fields[6])
    return 0


class Spooler:
    node = "$(uname -n)"
    slots = 1
    better: Sequence[str] = (
        (
            "task-spooler keeps its queue in memory. TS_SAVELIST is set here. The server"
            " writes it, as a script for people to run, when it gets TERM but not on kill -9."
        ),
    )
    settings: Sequence[str] = (
        "task-spooler: Debian's package, one slot (its default), TS_SAVELIST set; asked with tsp",
    )

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpq-tsp-"))
        self.home = str(self.folder)
        paths = {
            "TS_SOCKET": f"{self.home}/socket",
            "TS_SAVELIST": f"{self.home}/saved",
            "TMPDIR": self.home,
        }
        self.env = processes.environment(self.home, paths)
        version = re.search(r"v(\S+)", processes.say(["tsp", "-V"], self.env))
        self.name = f"task-spooler {version[1] if version else '(unknown version)'}"

    def __enter__(self) -> Spooler:
        self.restart()
        return self

    def __exit__(self, *_: object) -> None:
        processes.end(self.home)
        shutil.rmtree(self.folder)

    def homes(self) -> list[Path]:
        return [self.folder]

    def submit(self, token: str, script: str, **_: object) -> str:
        path = self.folder / f"{token}.sh"
        path.write_text(script)
        return processes.say(["tsp", "-L", token, "sh", str(path)], self.env).strip()

    def jobs(self) -> dict[str, Told]:
        return told(processes.say(["tsp", "-l"], self.env))

    def kill(self) -> None:
        pid = self._server()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid not in processes.marked(self.home), "the server is gone")

    def _server(self) -> int:
        inode = listener(Path("/proc/net/unix").read_text(), self.env["TS_SOCKET"])
        for pid in processes.marked(self.home):
            with contextlib.suppress(OSError):
                for entry in os.scandir(f"/proc/{pid}/fd"):
                    if os.readlink(entry.path) == f"socket:[{inode}]":
                        return pid
        raise RuntimeError("no server of task-spooler listens")

    def restart(self) -> None:
        """Every command starts a server if none runs."""
        self.jobs()
