"""What `gpq doctor` checks in the folder where gpq keeps its state."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from gpq import paths
from gpq.cli.doctor.verdicts import Check

MIN_FREE_MIB = 200
LONGEST_SOCKET = 107  # bytes, sockaddr_un
NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "fuse.sshfs",
    "lustre",
    "beegfs",
    "glusterfs",
    "ceph",
    "gpfs",
    "afs",
    "9p",
)


def directory() -> Check:
    home = paths.home()
    folder = existing(home)
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check(
            "state",
            "fail",
            f"{folder} is not writable",
            f"make it writable, or set GPQ_HOME (now {home})",
        )
    if folder != home:
        return Check("state", "ok", f"gpq will create {home}")
    mode = os.stat(home).st_mode & 0o777
    if mode & 0o022:
        return Check(
            "state",
            "warn",
            f"others may write to {home} (mode {mode:03o})",
            f"chmod 700 {home}",
        )
    return Check("state", "ok", f"{home} is writable")


def existing(path: str) -> str:
    """The path, or the nearest folder above it that exists."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def filesystem() -> Check:
    folder = os.path.realpath(existing(paths.home()))
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as stream:
            mount, kind = mount_of(folder, stream)
    except OSError as error:
        return Check("filesystem", "warn", f"cannot read /proc/self/mounts: {error.strerror}", "")
    if kind in NETWORK:
        return Check(
            "filesystem",
            "fail",
            f"the state is on {kind} ({mount}), where locks and SQLite are not reliable",
            "set GPQ_HOME to a folder on a local disk",
        )
    return Check("filesystem", "ok", f"the state is on {kind} ({mount})")


def mount_of(folder: str, mounts: Iterable[str]) -> tuple[str, str]:
    """Mount point and type of a folder's file system. The longest path wins, and the kernel lists
    the newest mount of a path last."""
    longest, kind = "", "unknown"
    for line in mounts:
        _, mount, filesystem, *_ = line.split(" ")
        mount = mount.replace("\\040", " ")
        is_above = os.path.commonpath([folder, mount]) == mount
        if is_above and len(mount) >= len(longest):
            longest, kind = mount, filesystem
    return longest, kind


def free_space() -> Check:
    folder = existing(paths.home())
    free = shutil.disk_usage(folder).free >> 20
    if free < MIN_FREE_MIB:
        return Check(
            "disk",
            "fail",
            f"{free} MiB free at {folder}",
            "make room, or set GPQ_HOME to another disk",
        )
    return Check("disk", "ok", f"{free / 1024:.1f} GiB free at {folder}")


def socket() -> Check:
    path = paths.socket()
    size = len(os.fsencode(path))
    if size > LONGEST_SOCKET:
        return Check(
            "socket",
            "fail",
            f"{path} has {size} bytes, but at most {LONGEST_SOCKET} are possible",
            "set GPQ_HOME to a shorter path",
        )
    return Check("socket", "ok", path)
