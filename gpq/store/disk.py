"""What is below the database: the file system's kind, the reserve for a full disk, the meaning of
SQLite's errors."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import sqlite3
import time

from gpq import paths
from gpq.errors import GpqError, Refused

RESERVE_BYTES = 512 * 1024
LOW_BYTES = 128 * 1024  # bytes: less free space than this counts as full

# File systems over a network, where locks and shared memory of the database are unreliable.
NETWORK = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs", "ceph", "glusterfs", "lustre", "gpfs",
    "beegfs", "orangefs", "pvfs2", "coda",
})  # fmt: skip
# A program's file system (FUSE) may come from anywhere and answer at any time. These are on a local
# disk.
LOCAL_FUSE = frozenset(
    {"fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.encfs", "fuse.bindfs", "fuse.lxcfs"}
)


def mount_of(folder: str, mounts: str = "/proc/self/mountinfo") -> tuple[str, str]:
    """Mount point and type of the file system of `folder` (resolved), by the text of `mounts`.
    ("", "") if unknown. Raises OSError."""
    mount_point, kind = "", ""
    with open(mounts, encoding="utf-8", errors="replace") as stream:
        lines = stream.read().splitlines()
    for line in lines:
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5:
            continue
        point = fields[4].encode().decode("unicode_escape")  # spaces are written \040
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(mount_point):
            mount_point, kind = point, after.split()[0]
    return mount_point, kind


def is_remote(kind: str) -> bool:
    """Could another machine or program make a file system of this type hang or lose locks?"""
    served = kind == "fuse" or kind.startswith("fuse.")
    return kind in NETWORK or (served and kind not in LOCAL_FUSE)


def refuse_network(folder: str, mounts: str = "/proc/self/mountinfo") -> None:
    """Raises Refused if `folder` is on a network file system."""
    try:
        _, kind = mount_of(os.path.realpath(folder), mounts)
    except OSError:
        return  # not Linux, or no /proc, so it cannot tell
    if is_remote(kind):
        raise Refused(
            f"{folder} is on a network file system ({kind}), which cannot keep gpq's state safely",
            "set GPQ_HOME to a folder on a local disk",
        )


class Reserve:
    """A file of zeros that gpq gives up when the disk is full, so that it can still write how
    running jobs end."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.held = False

    def take(self) -> bool:
        """Hold the reserve again. False if the disk has no room for it."""
        if self.held:
            return True
        try:
            if os.path.islink(self._path):  # not ours
                os.unlink(self._path)
            descriptor = os.open(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError:
            return False
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            os.fsync(descriptor)
            self.held = True
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        finally:
            os.close(descriptor)
        return self.held

    def release(self) -> bool:
        """Give it up. False if there was none."""
        was_held, self.held = self.held, False
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        return was_held


def is_full(error: sqlite3.Error, folder: str) -> bool:
    """Was there too little space? SQLite reports that as an I/O error when it extends its shared
    memory."""
    text = str(error)
    if "database or disk is full" in text:
        return True
    if "disk I/O error" not in text and "unable to open" not in text:
        return False
    with contextlib.suppress(OSError):
        room = os.statvfs(folder)
        return room.f_bavail * room.f_frsize < LOW_BYTES
    return False


def full(path: str) -> GpqError:
    return Refused(
        f"the disk is full: {os.path.dirname(path)} has no room for the state. gpq changed nothing",
        "free some space there and try again. Running jobs keep running",
    )


def damage_in(error: sqlite3.Error) -> str:
    """What is damaged, or "" if the error is of another kind. Never the content, because a job's
    environment may be in it."""
    text = str(error)
    if "Could not decode to UTF-8" in text:
        return "a text in it is not UTF-8"
    if "user-defined function raised" in text:  # `plain` of gpq.store.packing
        return "a row cannot be read"
    phrases = ("malformed", "not a database", "corrupt", "no such table", "no such column")
    return text if any(phrase in text for phrase in phrases) else ""


def damage_error(path: str, what: str, *, is_served: bool = False) -> GpqError:
    """Also says how to recover, as one command. It moves the log away too, because SQLite would
    apply that to the copy. `is_served`: by a daemon that runs, which must end before."""
    problem = f"the database {path} is damaged ({what}). gpq did not change it"
    first = "gpq daemon stop && " if is_served else ""
    folder, name = os.path.split(path)
    number = next(
        number for number in itertools.count(1) if not os.path.exists(f"{folder}/damaged-{number}")
    )
    folder_command = f"cd {shlex.quote(folder)} && mkdir damaged-{number}"
    removal = f"{first}{folder_command} && mv {name}* damaged-{number}"
    try:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(os.path.getmtime(f"{path}.backup")))
    except OSError:
        return Refused(
            problem,
            f"there is no backup. `{removal}` moves the database away, to start with a new one",
        )
    copy = f"cp damaged-{number}/{name}.backup {name}"
    advice = f"`{removal} && {copy}` restores the backup of {at}. Later changes are lost"
    if os.path.exists(os.path.join(folder, paths.MARKS)):
        return Refused(problem, advice)
    refusal = (
        "servers may refuse the older database. `gpq nodes` then shows which file to remove on each"
    )
    return Refused(problem, f"{advice}. Because {paths.MARKS} is missing, {refusal}")
