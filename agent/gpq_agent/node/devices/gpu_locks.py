"""Which user's gpq has a GPU of this server. Each GPU has one lock file, in a folder that everybody
may write to.

<folder>/gpq-<UUID>.lock          its flock holds the GPU. The shim has it, and so has the first
                                  process of its job. So the lock ends with them however they end,
                                  and outlives agent, daemon and connection
<folder>/gpq-<UUID>.<uid>.holder  who holds it, locked in the same way: {"job", "attempt", "pid" of
                                  the shim, "spool", "since"}

gpq opens files of other users only for reading, never through a link, and writes nothing to them.
It believes a holder as far as the kernel vouches for it: the file belongs to the user in its name,
and is locked. Somebody who means harm can hold locks, just as they can hold GPUs.
"""

import contextlib
import fcntl
import os
import re
import stat
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional

from gpq_agent import records, wire
from gpq_agent.node.host import user_names
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool.spool import try_lock, try_share

# not /dev/shm, because systemd removes a user's files there at the last logout
FOLDERS = ("/run/gpq", "/run/lock", "/tmp")
PATIENCE = 0.5  # seconds to wait for somebody who only checks whether the lock is held
LOOK_PERIOD = 1.0  # seconds for which one look at a lock serves
MOST_BYTES = 4096  # bytes to read from a holder's file
TAKEN = "taken"  # kind of SpoolError: reported as "busy", but waiting for this GPU does not help


class Holder(NamedTuple):
    """Who holds a lock. `content`: what the holder's own file says, empty if there is none to
    believe."""

    user: str
    content: Dict[str, Any]

    def sentence(self, spool: str) -> str:
        """``held by bob's gpq (job 7, since 14:02)``."""
        if not self.user:
            return "held by the gpq of an unknown user"
        facts = []
        if isinstance(self.content.get("job"), int):
            facts.append("job {}".format(self.content["job"]))
        if isinstance(self.content.get("since"), (int, float)) and 0 < self.content["since"] < 1e11:
            facts.append("since {}".format(user_names.moment(self.content["since"])))
        owner = (
            "an attempt unknown to this agent"
            if self.content.get("spool") == spool
            else self.user + "'s gpq"
        )
        return "held by {}{}".format(owner, " ({})".format(", ".join(facts)) if facts else "")


def common_folder() -> str:
    """The first of `FOLDERS` where everybody may create files and remove only their own. It depends
    only on the machine, so every user's gpq chooses the same one."""
    for path in FOLDERS:
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if (
            stat.S_ISDIR(status.st_mode)
            and status.st_uid == 0
            and status.st_mode & 0o1002 == 0o1002
        ):
            return path
    return FOLDERS[-1]


class Locks:
    """The locks of this server's GPUs, as one agent checks and takes them."""

    def __init__(self, folder: str = "", spool: str = "") -> None:
        self.folder = folder or common_folder()
        self.spool = spool
        self._seen: Dict[str, str] = {}
        self._seen_at: Dict[str, float] = {}

    # -- taking

    def take(self, names: Iterable[str], job: int, attempt: int) -> List[int]:
        """Take the locks of these GPUs and return their descriptors for a shim to inherit. Raises
        SpoolError and takes none if somebody else has one (TAKEN) or it cannot be opened."""
        descriptors: List[int] = []
        try:
            for name in sorted(names):
                descriptors.append(self._take_one(name))
                holder = self._tell(name, job, attempt)
                if holder >= 0:
                    descriptors.append(holder)
        except BaseException:
            close(descriptors)
            raise
        return descriptors

    def _take_one(self, name: str) -> int:
        deadline = time.monotonic() + PATIENCE
        while True:
            descriptor = self._open(name)
            try:
                if try_lock(descriptor) and self._is_there(name, descriptor):
                    return descriptor
            except OSError as error:
                os.close(descriptor)
                raise self._broken(name, error) from error
            os.close(descriptor)
            if time.monotonic() > deadline:
                self._seen_at.pop(name, None)
                reason = self.holder(name) or "held by another gpq"
                raise SpoolError("{} is {}".format(name, reason), "choose another GPU", TAKEN)
            time.sleep(0.01)

    def _open(self, name: str) -> int:
        """Open the lock file, and create it if it is missing. Never use O_CREAT on an existing
        file: kernels refuse that for another user's file in such a folder
        (fs.protected_regular)."""
        path = self._path(name)
        try:
            for _ in range(3):
                try:
                    return _plain(
                        os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC),
                        path,
                    )
                except FileNotFoundError:
                    pass
                try:
                    flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                    umask = os.umask(0o022)  # other users open it too, perhaps at this moment
                    try:
                        descriptor = os.open(path, flags, 0o644)
                    finally:
                        os.umask(umask)
                    os.fchmod(descriptor, 0o644)
                    return descriptor
                except FileExistsError:
                    continue  # somebody else was faster
            raise FileNotFoundError(path)
        except OSError as error:
            raise self._broken(name, error) from error

    def _broken(self, name: str, error: OSError) -> SpoolError:
        message = "cannot use the lock of {}: {}: {}".format(
            name, self._path(name), error.strerror or error
        )
        return SpoolError(message, "ask its owner or root to remove it", TAKEN)

    def _is_there(self, name: str, descriptor: int) -> bool:
        """Is the locked file still the one that others will find?"""
        try:
            status = os.lstat(self._path(name))
        except FileNotFoundError:
            return False
        own_status = os.fstat(descriptor)
        return (status.st_dev, status.st_ino) == (own_status.st_dev, own_status.st_ino)

    def _tell(self, name: str, job: int, attempt: int) -> int:
        """Record who holds the lock that was just taken. Returns -1 if that fails. The lock counts
        anyway."""
        path = self._path(name, os.geteuid())
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = _plain(os.open(path, flags, 0o644), path)
        except OSError:
            return -1
        try:
            if os.fstat(descriptor).st_uid != os.geteuid() or not try_lock(descriptor):
                raise PermissionError(path)
            os.fchmod(descriptor, 0o644)
            facts = {"job": job, "attempt": attempt, "spool": self.spool, "since": time.time()}
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, wire.encode(facts), 0)
        except OSError:
            os.close(descriptor)
            return -1
        return descriptor

    # -- looking

    def forget(self, name: str) -> None:
        """Forget what was seen of a lock that this agent held itself."""
        self._seen_at.pop(name, None)

    def holder(self, name: str) -> str:
        """Who has the GPU, as a phrase, "" for nobody. Only for GPUs that none of our own attempts
        has. One look serves for `LOOK_PERIOD`."""
        if time.monotonic() - self._seen_at.get(name, float("-inf")) >= LOOK_PERIOD:
            self._seen[name] = self._look(name)
            self._seen_at[name] = time.monotonic()
        return self._seen[name]

    def _look(self, name: str) -> str:
        path = self._path(name)
        try:
            descriptor = _plain(
                os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), path
            )
        except FileNotFoundError:
            return ""
        except OSError as error:
            return self._broken(name, error).message
        try:
            if try_share(descriptor):
                return ""
        finally:
            os.close(descriptor)
        holder = self._who(name)
        return (holder or Holder("", {})).sentence(self.spool)

    def _who(self, name: str) -> Optional[Holder]:
        shape = re.compile(
            re.escape(os.path.basename(self._path(name))[: -len(".lock")]) + r"\.(\d+)\.holder"
        )
        for entry in sorted(os.listdir(self.folder)):
            match = shape.fullmatch(entry)
            if match:
                content = _read_locked(os.path.join(self.folder, entry), int(match.group(1)))
                if content is not None:
                    return Holder(user_names.user_name(int(match.group(1))), content)
        return None

    def _path(self, name: str, uid: int = -1) -> str:
        plain_name = re.sub(r"[^A-Za-z0-9-]", "_", name)[:120]
        return os.path.join(
            self.folder,
            "gpq-{}.{}".format(plain_name, "lock" if uid < 0 else "{}.holder".format(uid)),
        )


def release(descriptors: Iterable[int]) -> None:
    """Release the locks of these descriptors, even if another process has inherited them. A process
    that was just forked closes unneeded descriptors only when it first runs."""
    for descriptor in descriptors:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def close(descriptors: Iterable[int]) -> None:
    """Release the locks of these descriptors, as far as this process holds them."""
    for descriptor in descriptors:
        os.close(descriptor)


def sign(descriptors: Iterable[int], pid: int) -> None:
    """For the shim: record the process that holds the locks from now on. If that fails, it stays
    unnamed."""
    for descriptor in descriptors:
        if (
            fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR
        ):  # the lock file itself, which may belong to another user
            continue
        with contextlib.suppress(OSError, ValueError):
            content = dict(wire.decode(os.pread(descriptor, MOST_BYTES, 0)), pid=pid)
            os.pwrite(descriptor, wire.encode(content).rstrip().ljust(MOST_BYTES // 8) + b"\n", 0)


def keep_fresh(descriptors: Iterable[int]) -> None:
    """Update the time stamps, so that programs that remove old files leave the locks alone. Files
    of other users cannot be touched."""
    for descriptor in descriptors:
        try:
            os.utime(descriptor)
        except OSError:
            continue


def _plain(descriptor: int, path: str) -> int:
    """Return the descriptor of a regular file. For anything else close it and raise OSError."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a regular file", path)
    return descriptor


def _read_locked(path: str, uid: int) -> Optional[Dict[str, Any]]:
    """What a holder's file says. None if the file is not that user's, or nobody has locked it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid or try_share(descriptor):
            return None
        return records.parse(os.pread(descriptor, MOST_BYTES, 0))
    except (OSError, ValueError):
        return {}
    finally:
        os.close(descriptor)
