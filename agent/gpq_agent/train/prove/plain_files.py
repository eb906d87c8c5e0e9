"""Files as they are, through functions that nothing replaces: the functions of `os` are also in
`posix`."""

import errno
import os
import posix
import shutil
import stat
from _io import open as plain_open
from typing import Any, Dict, Optional

from gpq_agent.train.errors import GpqTrainError


def mode_of(path: str) -> Optional[int]:
    """The mode of what is there, including a link. None if nothing is there."""
    try:
        return posix.lstat(path).st_mode
    except OSError:
        return None


def is_folder(path: str) -> bool:
    return stat.S_ISDIR(mode_of(path) or 0)


def link_target(path: str) -> Optional[str]:
    """The target of a link, None if it is not a link."""
    try:
        return posix.readlink(path)
    except OSError:
        return None


def scan(path: str) -> "Dict[str, os.DirEntry[str]]":
    with posix.scandir(path) as entries:
        return {entry.name: entry for entry in entries}


def failure(number: int, path: Any) -> OSError:
    return OSError(number, os.strerror(number), path)


def need(path: str, rights: int) -> None:
    if not posix.access(path, rights):
        raise failure(errno.EACCES, path)


def make_folders(path: str) -> None:
    """Create it and its parents if they are missing."""
    if not is_folder(path):
        make_folders(os.path.dirname(path))
        try:
            posix.mkdir(path, 0o700)
        except FileExistsError:
            if not is_folder(path):
                raise failure(errno.ENOTDIR, path) from None


def copy(source: str, target: str, part: str, content: bool) -> None:
    """Copy a file, a link or an empty folder. `part`: a name for a file until it is whole.

    Another process may do the same just now. The second one leaves it alone.
    """
    status = posix.lstat(source)
    rights = stat.S_IMODE(status.st_mode)
    try:
        if stat.S_ISLNK(status.st_mode):
            posix.symlink(posix.readlink(source), target)
        elif stat.S_ISDIR(status.st_mode):
            posix.mkdir(target, 0o700)
            posix.chmod(target, rights | stat.S_IRWXU)
        elif stat.S_ISREG(status.st_mode):
            _copy_file(source, part, content)
            posix.chmod(part, rights)
            posix.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns))
            posix.link(part, target)
        else:
            problem = "the script writes to {}, which is neither a file nor a folder"
            raise GpqTrainError(problem.format(source))
    except FileExistsError:
        pass
    finally:
        if mode_of(part) is not None:
            posix.remove(part)


def _copy_file(source: str, target: str, content: bool) -> None:
    with plain_open(target, "wb") as copy:
        if content:
            with plain_open(source, "rb") as stream:
                shutil.copyfileobj(stream, copy, 1 << 20)
