"""The end of an attempt: the end of the job's first process, and the record of it."""

import contextlib
import errno
import os
import time
from typing import Any, Dict, List, Optional

from gpq_agent import records, wire
from gpq_agent.node.host import procs
from gpq_agent.node.spool import run_folder, spool
from gpq_agent.node.spool.shapes import NOTE


class JobProcess:
    """The first process of a job. `identity`: its record. `parent`: it is our child, so we can
    collect its exit status."""

    def __init__(self, identity: Dict[str, Any], parent: bool, boot: str) -> None:
        self.identity = identity
        self.pid = int(identity["pid"])
        self.parent = parent
        self.boot = boot
        self.childless = not parent
        self.ended_at: Optional[float] = None
        self._status: Optional[int] = None

    def collect(self) -> None:
        """Collect every child that has ended, including escapees that the kernel handed to us."""
        if not self.parent:
            if self.ended_at is None and not procs.lives(self.identity, self.boot):
                self.ended_at = time.time()
            return
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.pid and self._status is None:
                    self._status = status
                    self.ended_at = time.time()
        except ChildProcessError:
            self.childless = True

    @property
    def code(self) -> Optional[int]:
        """Its exit code, None if a signal ended it or the code is unknown."""
        if self._status is None or not os.WIFEXITED(self._status):
            return None
        return os.WEXITSTATUS(self._status)

    @property
    def killer(self) -> Optional[int]:
        """The signal that ended it, None if it exited or the signal is unknown."""
        if self._status is None or os.WIFEXITED(self._status):
            return None
        return os.WTERMSIG(self._status)


class Notes:
    """What a user should know about an attempt, one line each. `folder`: the attempt's."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lines: List[str] = []

    def add(self, line: str) -> None:
        """Add a line to the record of its end."""
        if line not in self.lines:
            self.lines.append(line)

    def tell(self, line: str) -> None:
        """Add a line to the record, and show it while the attempt lives. The attempt continues even
        if that fails."""
        self.add(line)
        with contextlib.suppress(OSError):
            wire.write_json(os.path.join(self.folder, NOTE), {"note": line})


def write_exit(folder: str, record: wire.ExitRecord) -> None:
    """Write the record durably, even on a full disk. Tries as long as it takes, because a lost exit
    code cannot be recovered."""
    path = os.path.join(folder, wire.EXIT)
    while True:
        try:
            run_folder.mend(folder)
            if os.path.isdir(path):  # no file can replace it
                records.set_aside(path)
            spool.write_reserved(path, record._asdict())
            return
        except OSError as error:
            if error.errno == errno.EROFS or _is_gone(folder):  # purged, so nobody will ask
                return
            time.sleep(1.0)


def _is_gone(folder: str) -> bool:
    """Is the folder gone? No if the disk only fails to answer."""
    try:
        os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
