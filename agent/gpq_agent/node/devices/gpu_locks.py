"""Which user's gpq has a GPU of this server, or a CPU slot that is locked like one. The lock files
are in a folder that everybody may write to.

<folder>/gpq-<UUID>.<uid>.holder  each user's own file. Its flock holds the GPU. The shim has it,
                                  and so has the first process of its job. So the lock ends with
                                  them however they end, and outlives agent, daemon and connection.
                                  It says who holds it: {"job", "attempt", "pid" of the shim,
                                  "spool", "since"}
<folder>/gpq-<UUID>.lock          one for all users, locked in the same way if it can be opened.
                                  Older versions know only this one
<folder>/gpq-cpu-<digest>-<N>...  the same for CPU slot N. The digest is that of `slots.machine`, so
                                  the same slots have the same lock, and no others do

What nobody holds blocks nobody: only a lock counts, not a file. A file is a user's own if it
belongs to the user in its name. gpq opens those of other users only for reading, never through a
link, and writes nothing to them. It looks for the files by name, because listing the folder would
take as long as others like. Somebody who means harm can hold locks, just as they can hold GPUs.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set

from gpq_agent import records, wire
from gpq_agent.node.host import user_names
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool.spool import try_lock, try_share

# not /dev/shm, because systemd removes a user's files there at the last logout
FOLDERS = ("/run/gpq", "/run/lock", "/tmp")
PATIENCE = 0.5  # seconds to wait for somebody who only checks whether the lock is held
LOOK_PERIOD = 1.0  # seconds for which one look at a lock serves
MOST_BYTES = 4096  # bytes to read from a holder's file
SPARE_NAMES = 3
SLOT = "slot-"  # how the ids of CPU slots begin
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
    """The locks of this server's GPUs, as one agent checks and takes them. `slots`: the machine's
    identity if its CPU slots have locks, too."""

    def __init__(self, folder: str = "", spool: str = "", slots: str = "") -> None:
        self.folder = folder or common_folder()
        self.spool = spool
        self.slots = slots
        self._seen: Dict[str, str] = {}
        self._seen_at: Dict[str, float] = {}
        self._users: Set[int] = set()
        self._users_at = -LOOK_PERIOD

    def covers(self, name: str) -> bool:
        """Is this device locked between users?"""
        return bool(self.slots) or not name.startswith(SLOT)

    # -- taking

    def take(self, names: Iterable[str], job: int, attempt: int) -> List[int]:
        """Take the locks of these GPUs and return their descriptors for a shim to inherit. Raises
        SpoolError and takes none if somebody else has one (TAKEN) or it cannot be locked."""
        descriptors: List[int] = []
        try:
            for name in sorted(names):
                descriptors += self._take_one(name, job, attempt)
        except BaseException:
            close(descriptors)
            raise
        return descriptors

    def _take_one(self, name: str, job: int, attempt: int) -> List[int]:
        deadline = time.monotonic() + PATIENCE
        while True:
            opened = [
                fd for fd in (self._open_shared(name, create=True), self._own(name)) if fd >= 0
            ]
            if not opened:
                raise SpoolError(
                    "cannot lock {}: no file for it can be made in {}".format(name, self.folder),
                    "free space there, or ask root to remove {}*".format(self._path(name, -1)[:-4]),
                    TAKEN,
                )
            try:
                # A file that was removed in the meantime locks nothing.
                is_locked = all(try_lock(fd) and os.fstat(fd).st_nlink > 0 for fd in opened)
                # The own lock comes before the look, so that at least one of two sees the other.
                if is_locked and not self._holder_of(name, except_own=True):
                    self._tell(opened[-1], job, attempt)
                    return opened
            except BaseException:
                close(opened)
                raise
            close(opened)
            if time.monotonic() > deadline:
                self._seen_at.pop(name, None)
                reason = self.holder(name) or "held by another gpq"
                raise SpoolError("{} is {}".format(name, reason), "choose another GPU", TAKEN)
            time.sleep(0.01)

    def _open_shared(self, name: str, *, create: bool = False) -> int:
        """Open the lock file of all users. -1 if it cannot be used. No O_CREAT on an existing file:
        kernels refuse that for another user's file in such a folder (fs.protected_regular)."""
        path = self._path(name)
        if create and not os.path.lexists(path):
            umask = os.umask(0o022)  # other users open it too, perhaps at this moment
            with contextlib.suppress(OSError):  # perhaps somebody else was faster
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            os.umask(umask)
        return open_plain(path, links=1)  # with more it may be the one of another GPU, too

    def _own(self, name: str) -> int:
        """Open this user's own file, and create it if it is missing. -1 if other users have taken
        its names."""
        for path in own_names(self._path(name, os.geteuid())):
            # with another name it may be anything of this user, such as a key
            descriptor = open_plain(path, os.O_RDWR | os.O_CREAT, uid=os.geteuid(), links=1)
            if descriptor >= 0:
                os.fchmod(descriptor, 0o644)
                return descriptor
        return -1

    def _tell(self, descriptor: int, job: int, attempt: int) -> None:
        """Record who holds the lock that was just taken. It counts anyway."""
        facts = {"job": job, "attempt": attempt, "spool": self.spool, "since": time.time()}
        with contextlib.suppress(OSError):  # the one for all users is open only for reading
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, wire.encode(facts), 0)

    # -- looking

    def forget(self, name: str) -> None:
        """Forget what was seen of a lock that this agent held itself."""
        self._seen_at.pop(name, None)

    def holder(self, name: str) -> str:
        """Who has the GPU, as a phrase, "" for nobody. Only for GPUs that none of our own attempts
        has. One look serves for `LOOK_PERIOD`."""
        if not self.covers(name):
            return ""
        if time.monotonic() - self._seen_at.get(name, float("-inf")) >= LOOK_PERIOD:
            descriptor = self._open_shared(name)
            is_held = descriptor >= 0 and not try_share(descriptor)
            if descriptor >= 0:
                os.close(descriptor)
            holder = self._holder_of(name) or (Holder("", {}) if is_held else None)
            self._seen[name] = holder.sentence(self.spool) if holder else ""
            self._seen_at[name] = time.monotonic()
        return self._seen[name]

    def _holder_of(self, name: str, *, except_own: bool = False) -> Optional[Holder]:
        """Who has locked their own file. `except_own`: except this user, and with a new look at who
        has a process here, which everybody has who holds a lock."""
        if except_own or time.monotonic() - self._users_at >= LOOK_PERIOD:
            self._users, self._users_at = user_names.present(), time.monotonic()
        for uid in sorted(self._users - ({os.geteuid()} if except_own else set())):
            for path in own_names(self._path(name, uid)):
                content = _read_locked(path, uid)
                if content is not None:
                    return Holder(wire.user_name(uid), content)
        return None

    def _path(self, name: str, uid: int = -1) -> str:
        if name.startswith(SLOT):
            digest = hashlib.sha256(self.slots.encode("utf-8")).hexdigest()[:16]
            name = "cpu-{}-{}".format(digest, name[len(SLOT) :])
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
        with contextlib.suppress(OSError, ValueError):  # the one for all users is only for reading
            content = dict(wire.decode(os.pread(descriptor, MOST_BYTES, 0)), pid=pid)
            os.pwrite(descriptor, wire.encode(content).rstrip().ljust(MOST_BYTES // 8) + b"\n", 0)


def keep_fresh(descriptors: Iterable[int]) -> None:
    """Update the time stamps, so that programs that remove old files leave the locks alone. Files
    of other users cannot be touched."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.utime(descriptor)


def own_names(path: str) -> List[str]:
    """The paths that a user's own file may have. Anybody could take one, so there are spare
    ones."""
    return [path, *("{}.{}".format(path, number) for number in range(1, SPARE_NAMES + 1))]


def open_plain(path: str, flags: int = os.O_RDONLY, *, uid: int = -1, links: int = 1 << 32) -> int:
    """The descriptor of a regular file, of this user if one is given, that has at most that many
    names. -1 for anything else."""
    try:
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o644)
    except OSError:
        return -1
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and uid in (status.st_uid, -1) and status.st_nlink <= links:
        return descriptor
    os.close(descriptor)
    return -1


def _read_locked(path: str, uid: int) -> Optional[Dict[str, Any]]:
    """What a user's own file says. None if it is not that user's, or nobody has locked it."""
    descriptor = open_plain(path, uid=uid)
    if descriptor < 0:
        return None
    try:
        if try_share(descriptor):
            return None
        return records.parse(os.pread(descriptor, MOST_BYTES, 0))
    except (OSError, ValueError):
        return {}
    finally:
        os.close(descriptor)
