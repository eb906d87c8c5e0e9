"""The checkpoint folder as the agent offers it: what is there, the code of a snapshot, and removal.
Files arrive in a process of their own (receiving.py)."""

import contextlib
import glob
import os
import shutil
from typing import Any, Dict, List, Tuple

from gpq_agent import wire
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool import checkpoint_folder, trees
from gpq_agent.node.spool.checkpoint_folder import BEFORE, CODE_PREFIX, HASH, STAGING

Message = Dict[str, Any]
SPARE = 64 << 20  # bytes of the disk to leave free


class Staging:
    """The staging of one checkpoint folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.damage: List[str] = []
        self.storage = checkpoint_folder.storage_id(folder, self.damage)

    def drop(self, message: Message) -> None:
        """Remove the files of a job, or the code of a snapshot: {"job"} or {"code"}. {"early"}:
        also those that the job had set aside when it started afresh."""
        name, target = self._target(message)
        if message.get("early"):
            for path in glob.glob(glob.escape(target) + BEFORE + "*"):
                remove(path)
        remove(os.path.join(self.folder, STAGING, name))
        remove(target)

    def code(self, digest: str) -> str:
        """The folder of a snapshot's code. Raises SpoolError if it is not here, and
        NotPrivate if another user could change it."""
        _, target = self._target({"code": digest})
        if not os.path.isdir(target):
            raise SpoolError(
                "the code {} is not on this server".format(digest[:12]),
                "gpq sends it again",
                "busy",
            )
        wire.make_private(target)
        return target

    def _target(self, message: Message) -> Tuple[str, str]:
        """(name of what is staged, where it belongs)."""
        if "code" not in message:
            job = str(int(message["job"]))
            return job, os.path.join(self.folder, job)
        digest = str(message["code"])
        if not HASH.fullmatch(digest):
            raise ValueError("{!r} is not a SHA-256".format(digest))
        return CODE_PREFIX + digest, os.path.join(self.folder, checkpoint_folder.CODE, digest)


def check_space(folder: str, size: int) -> None:
    """Raises SpoolError if this many bytes do not fit."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if size > 0 and free - SPARE < size:
        raise SpoolError(
            "not enough space in {}: {} MB are needed, {} MB are free".format(
                folder, size >> 20, free >> 20
            ),
            "free space there, or give the server another folder: `checkpoints` in config.toml",
            "busy",
        )


def inside(folder: str, path: str) -> str:
    """The full path. Raises SpoolError if a link on the way leads outside the folder."""
    full_path = os.path.join(folder, trees.local_name(path))
    root = os.path.realpath(folder)
    if not (os.path.realpath(full_path) + os.sep).startswith(root + os.sep):
        raise SpoolError("{!r} leads outside {}".format(path, folder))
    return full_path


def remove(path: str) -> None:
    """Rename first, so that half of it never looks complete."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, ".{}.{}.old.tmp".format(name.lstrip("."), os.getpid()))
    with contextlib.suppress(OSError):
        shutil.rmtree(temporary, ignore_errors=True)
        os.rename(path, temporary)
        shutil.rmtree(temporary)
