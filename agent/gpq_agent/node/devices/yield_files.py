"""Who wants their server back: one file per user, in the folder of the locks. Every gpq on this
server reads it.

<folder>/gpq-yield.<uid>     {"until": wall clock of this server}, believed only for the user who
                             owns the file

gpq follows only the user whom the daemon's configuration names as the owner of the server. Other
users may ask without effect.
"""

import contextlib
import json
import os
import re
import stat
import time
from typing import List

from gpq_agent import records
from gpq_agent.node.host import user_names

LONGEST = 366 * 86400.0  # seconds
LOOK_PERIOD = 1.0  # seconds for which one look serves
MOST_BYTES = 256
NAME = re.compile(r"gpq-yield\.(\d{1,10})")


class Yielding:
    """The requests of this server's users, as one agent sees them."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._seen: List[str] = []
        self._seen_at = -LOOK_PERIOD

    def users(self) -> List[str]:
        """Login names of those who want their server, sorted."""
        if time.monotonic() - self._seen_at >= LOOK_PERIOD:
            self._seen, self._seen_at = sorted(set(self._look())), time.monotonic()
        return self._seen

    def _look(self) -> List[str]:
        users = []
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder):
                match = NAME.fullmatch(name)
                if match and time.time() < until(
                    os.path.join(self.folder, name), int(match.group(1))
                ):
                    users.append(user_names.user_name(int(match.group(1))))
        return users


def until(path: str, uid: int) -> float:
    """Until when the user wants the server. 0.0 if there is no valid file of that user. Never
    follows a link."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0.0
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            return 0.0
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
    path, moment = _path(folder), time.time() + seconds
    temporary = "{}.{}.new".format(path, os.getpid())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o644)
    try:
        os.fchmod(descriptor, 0o644)  # whatever the umask, because other users' agents read it
        os.write(descriptor, json.dumps({"until": moment}).encode("utf-8"))
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    return moment


def end(folder: str) -> bool:
    """The calling user gives the server back. Had they asked for it? Raises OSError."""
    path = _path(folder)
    is_active = time.time() < until(path, os.geteuid())
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return is_active


def _path(folder: str) -> str:
    return os.path.join(folder, "gpq-yield.{}".format(os.geteuid()))
