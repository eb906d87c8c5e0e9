"""One daemon per state directory: a lock that the kernel holds while the daemon lives, whoever
kills it."""

from __future__ import annotations

import fcntl
import json
import os

from gpq import paths
from gpq.errors import Refused


class DaemonLock:
    """Held for the life of the process. The file says who holds it."""

    def __init__(self) -> None:
        """Raises Refused if another daemon has it."""
        path = paths.daemon_lock()
        try:
            self._descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError as error:
            raise Refused(
                f"cannot write in the state directory {paths.home()}: {os.path.basename(path)}:"
                f" {error.strerror}",
                "make it writable, or set GPQ_HOME to a folder that is",
            ) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = owner_of(os.read(self._descriptor, 4096))
            os.close(self._descriptor)
            raise Refused(
                f"a daemon already runs for {paths.home()}{f' (pid {owner[0]})' if owner else ''}",
                "`gpq daemon status` shows it, and `gpq daemon stop` stops it",
            ) from None
        text = json.dumps({"pid": os.getpid(), "start_time": start_time(os.getpid())})
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def is_held(self) -> bool:
        """Is the locked file still the one that others see? Not if it or its folder was removed or
        replaced: then another daemon may have the state directory."""
        mine = os.fstat(self._descriptor)
        try:
            there = os.stat(paths.daemon_lock(), follow_symlinks=False)
        except OSError:
            return False
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def disown(self) -> None:
        """From here on it belongs to nobody, although the process holds it until it ends: nobody
        should wait for that."""
        os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        os.close(self._descriptor)


def owner_of(text: bytes) -> tuple[int, int] | None:
    """(pid, start time in clock ticks after boot) of the daemon that wrote the lock file. None if
    the file has neither."""
    try:
        tree = json.loads(text)
        return int(tree["pid"]), int(tree["start_time"])
    except (ValueError, KeyError, TypeError):
        return None


def start_time(pid: int) -> int:
    """The start time of a process in clock ticks after boot, which tells a reused pid from the old
    one. 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
            # a process that ended but that nobody waited for is gone, too
            return 0 if fields[0] == b"Z" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0
