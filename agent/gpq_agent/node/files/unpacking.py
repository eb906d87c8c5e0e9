"""Unpacks the code of a snapshot."""

import os
import shutil
import tarfile
from typing import Generator

from gpq_agent.node.files.arriving import check_space, inside, remove
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool.trees import BLOCK


def unpack(path: str, target: str) -> Generator[None, None, None]:
    """Unpack a tar archive of regular files, folders and links that stay inside, all owned by this
    user. The result is complete or absent."""
    if os.path.isdir(target):
        return
    temporary = "{}.{}.tmp".format(target, os.getpid())
    remove(temporary)
    os.makedirs(temporary, mode=0o700)
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                _extract(archive, member, temporary)
                yield
        os.rename(temporary, target)
    except (tarfile.TarError, FileExistsError) as error:
        raise SpoolError("cannot unpack the code: {}".format(error)) from error
    finally:
        if not os.path.isdir(target):
            remove(temporary)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    parts = member.name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in member.name:
        raise SpoolError("the code contains a path that leads outside it: {!r}".format(member.name))
    path = inside(folder, member.name)
    if member.isdir():
        os.makedirs(path, exist_ok=True)
        # whatever the umask, because the files are the job's, not the agent's
        os.chmod(path, 0o755)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if member.issym():
        end = os.path.normpath(os.path.join(os.path.dirname(member.name), member.linkname))
        if os.path.isabs(member.linkname) or end == ".." or end.startswith("../"):
            raise SpoolError(
                "the code contains a link that leads outside it: {!r}".format(member.name)
            )
        os.symlink(member.linkname, path)
        return
    source = archive.extractfile(member) if member.isreg() else None
    if source is None:
        raise SpoolError("the code contains something that is not a file: {!r}".format(member.name))
    check_space(folder, member.size)
    mode = 0o755 if member.mode & 0o100 else 0o644  # never setuid, whatever it says
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb"
    ) as stream:
        os.fchmod(stream.fileno(), mode)
        shutil.copyfileobj(source, stream, BLOCK)
