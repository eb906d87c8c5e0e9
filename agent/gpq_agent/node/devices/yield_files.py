"""Whether the owner of this server wants it back, by a file in the folder of the locks. Every gpq
on this server reads it.

<folder>/gpq-yield.<uid>     {"until": wall clock of this server}, believed only for the user who
                             owns the file. If another user has taken that name: `own_names`

gpq follows only the user whom the daemon's configuration names as the owner of the server, and
looks for no other file. Other users may ask without effect.
"""

import contextlib
import errno
import json
import os
import pwd
import tempfile
import time
from typing import List

from gpq_agent import records
from gpq_agent.node.devices.gpu_locks import open_plain, own_names

LONGEST = 366 * 86400.0  # seconds
MOST_BYTES = 256


class Yielding:
    """The request of this server's owner, as one agent sees it. `owner`: login name, or ""."""

    def __init__(self, folder: str, owner: str) -> None:
        self.folder = folder
        self.owner = owner

    def users(self) -> List[str]:
        """The owner's login name, if the owner wants the server."""
        try:
            uid = pwd.getpwnam(self.owner).pw_uid
        except KeyError:
            return []
        return [self.owner] if time.time() < _latest(self.folder, uid) else []


def _latest(folder: str, uid: int) -> float:
    return max(until(path, uid) for path in _paths(folder, uid))


def until(path: str, uid: int) -> float:
    """Until when the user wants the server. 0.0 if there is no valid file of that user."""
    descriptor = open_plain(path, uid=uid)
    if descriptor < 0:
        return 0.0
    try:
        moment = records.parse(os.read(descriptor, MOST_BYTES)).get("until")
        return float(moment) if isinstance(moment, (int, float)) and 0 < moment < 1e11 else 0.0
    except (OSError, ValueError):
        return 0.0
    finally:
        os.close(descriptor)


def ask(folder: str, seconds: float) -> float:
    """The calling user wants this server for this many seconds. Return until when. Raises OSError,
    ValueError."""
    if not 0 < seconds <= LONGEST:
        raise ValueError("you can ask for a server for at most a year")
    moment = time.time() + seconds
    descriptor, temporary = tempfile.mkstemp(prefix=".gpq-yield.", dir=folder)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, 0o644)  # whatever the umask, because other users' agents read it
        stream.write(json.dumps({"until": moment}).encode("utf-8"))
    placed = False
    for path in _paths(folder, os.geteuid()):
        with contextlib.suppress(OSError):  # another user's file or folder
            if placed:
                os.unlink(path)
            else:
                os.replace(temporary, path)
                placed = True
    if not placed:
        os.unlink(temporary)
        raise OSError(errno.EEXIST, "other users have taken all names of your request", path)
    return moment


def end(folder: str) -> bool:
    """The calling user gives the server back. Had they asked for it? Raises OSError."""
    is_active = time.time() < _latest(folder, os.geteuid())
    for path in _paths(folder, os.geteuid()):
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(path).st_uid == os.geteuid():
                os.unlink(path)
    return is_active


def _paths(folder: str, uid: int) -> List[str]:
    return own_names(os.path.join(folder, "gpq-yield.{}".format(uid)))
