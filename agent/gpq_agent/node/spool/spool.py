"""The spool: one directory of a server that holds every attempt's files, and the lock under which
they change state.

<spool>/spool.json              who owns it: {"id", "machine"}
<spool>/lock                    an agent or shim holds it (flock) while it changes the state of an
                                attempt, never for long
<spool>/attempts/42.1/          the files named in wire.py, and: lock (held by the living shim),
                                forgotten, exit.reserve and stop.reserve (blocks set aside, so that
                                a full disk loses neither, until it is forgotten)
<spool>/ended/12/12042.1/       the same once it is forgotten, by thousands of jobs, never listed
<spool>/checkpoints/42/         checkpoints of job 42, the same for all its attempts
<spool>/checkpoints/42.before-4/  those of before its attempt 4, which started from the beginning
"""

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import time
import uuid
from typing import Any, Container, Dict, Iterable, List, NamedTuple, Tuple, Type

from gpq_agent import records, wire
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool.checkpoint_folder import BEFORE

LOCK = "lock"
FORGOTTEN = "forgotten"
ENDED = "ended"
NAME = "spool.json"
COPY = ".copy"  # suffix for files whose content nothing else could restore
RESERVE = ".reserve"
RESERVE_BYTES = 4096
MOST_RESERVES = 9  # of one file
LOCK_PATIENCE = 20.0  # seconds to wait for another agent's state change
MOST_BESIDE = 1000  # entries of a folder to look at, where others may put any number
SWEEP_SECONDS = 1.0  # of one call, because the agent answers nothing else meanwhile
MOST_RECORD = 4096  # bytes to read of each


class Identity(NamedTuple):
    """spool.json and its copy: the identity of a spool."""

    id: str
    machine: str = ""


class Lock:
    """An exclusive flock with a deadline: a stopped agent must not stop the others for ever."""

    def __init__(self, path: str, patience: float = LOCK_PATIENCE) -> None:
        self.path = path
        self.patience = patience
        self.descriptor = -1

    def __enter__(self) -> "Lock":
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + self.patience
        while not try_lock(self.descriptor):
            if time.monotonic() > deadline:
                os.close(self.descriptor)
                problem = "{} has been locked for {:.0f} s".format(self.path, self.patience)
                raise SpoolError(problem, "another agent on this spool hangs: end it", "busy")
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take the exclusive lock if it is free."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def try_share(descriptor: int) -> bool:
    """Take a shared lock if nobody holds it exclusively."""
    return try_lock(descriptor, fcntl.LOCK_SH)


def is_locked(path: str) -> bool:
    """Does anybody hold the lock file?"""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


class Spool:
    """Paths and state changes of one spool directory. Opening it creates what is missing."""

    def __init__(self, path: str, checkpoints: str = "") -> None:
        self.path = os.path.abspath(path)
        self.attempts = os.path.join(self.path, "attempts")
        self.checkpoints = os.path.abspath(checkpoints or os.path.join(path, "checkpoints"))
        for folder in (self.path, self.attempts, self.checkpoints):
            wire.make_private(folder)
        self.damage: List[str] = []  # sentences about files of the spool that were set aside
        self.id = self._claim()

    def _claim(self) -> str:
        """The spool's id. Refuses a spool of another machine, because all its attempts would look
        dead from here."""
        path = os.path.join(self.path, NAME)
        with self.lock():
            identities = self.read_both(Identity, NAME)
            if not identities and self.damage and self.attempt_keys():
                problem = "{}, so gpq cannot tell which attempts are this spool's".format(
                    self.damage[0]
                )
                hint = "end the jobs there, then remove {}".format(self.attempts)
                raise SpoolError(problem, hint)
            record = {"id": uuid.uuid4().hex[:16], "machine": machine_id()}
            if identities:
                record = identities[0]
            if len(identities) < 2:
                self.write_both(NAME, record)
        recorded_machine, own_machine = record.get("machine", ""), machine_id()
        if recorded_machine and own_machine and recorded_machine != own_machine:
            raise SpoolError(
                "{} belongs to another machine".format(self.path),
                "give each server its own --spool. "
                "If this machine was reinstalled, remove {}".format(path),
            )
        return str(record["id"])

    def read_both(self, kind: Type[Any], name: str) -> List[Dict[str, Any]]:
        """The valid contents of a file of the spool and its copy. A damaged one is set aside.
        Raises OSError."""
        contents = []
        for path in (os.path.join(self.path, name), os.path.join(self.path, name + COPY)):
            try:
                content = records.read_shape(kind, path)
            except records.Damaged as damage:
                self.put_away(damage)
            else:
                contents += [content] if content is not None else []
        return contents

    def write_both(self, name: str, content: Dict[str, Any]) -> None:
        """Raises OSError."""
        for path in (os.path.join(self.path, name), os.path.join(self.path, name + COPY)):
            wire.write_json(path, content)

    def put_away(self, damage: records.Damaged) -> None:
        """Set a damaged file of the spool aside, and remember to report it."""
        words = records.put_away(damage)
        if words not in self.damage:
            self.damage.append(words)

    def beside(self) -> List[str]:
        """Names of other spools of this machine in the same folder. A daemon may know the machine
        by several names."""
        folder, own_name = os.path.split(self.path)
        neighbours = []
        with os.scandir(folder) as entries:
            names = sorted(
                entry.name
                for entry in itertools.islice(entries, MOST_BESIDE)
                if entry.name != own_name
            )
        for name in names:
            try:
                record = wire.read_json(os.path.join(folder, name, NAME), MOST_RECORD)
            except (OSError, ValueError):
                continue
            if record is not None and record.get("machine", "") == machine_id():
                neighbours.append(name)
        return neighbours

    def lock(self) -> Lock:
        """Hold this around every change of an attempt's state."""
        return Lock(os.path.join(self.path, LOCK))

    def folder(self, key: str) -> str:
        """Directory of attempt ``42.1``, forgotten or not."""
        folder = os.path.join(self.attempts, key)
        if os.path.lexists(folder) or not os.path.isdir(self._retired_folder(key)):
            return folder
        return self._retired_folder(key)

    def _retired_folder(self, key: str) -> str:
        thousands = key.partition(".")[0][:-3] or "0"
        return os.path.join(self.path, ENDED, thousands, key)

    def retire(self, key: str) -> None:
        """Move a forgotten attempt out of the folder that is listed. If that fails, it costs only
        time, and the next agent tries again."""
        folder = self._retired_folder(key)
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(folder), 0o700, exist_ok=True)
            os.rename(os.path.join(self.attempts, key), folder)

    def ended_folders(self) -> List[str]:
        """Thousands of jobs with forgotten attempts, the least first."""
        with contextlib.suppress(FileNotFoundError):
            with os.scandir(os.path.join(self.path, ENDED)) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            return sorted(filter(str.isdecimal, names), key=int)
        return []

    def sweep(self, thousands: str, jobs: Container[int]) -> int:
        """Remove forgotten attempts of these jobs for SWEEP_SECONDS. Returns how many are left. The
        last attempt of the spool stays, for it shows which numbers were used."""
        place, folders = os.path.join(self.path, ENDED), self.ended_folders()
        if thousands not in folders:
            return 0
        lists = (_attempts(os.listdir(os.path.join(place, name))) for name in reversed(folders))
        last = next((attempts[-1:] for attempts in lists if attempts), [])
        attempts = _attempts(os.listdir(os.path.join(place, thousands)))
        old_attempts = [one for one in attempts if one[0] in jobs and one not in last]
        left, deadline = len(old_attempts), time.monotonic() + SWEEP_SECONDS
        for attempt in old_attempts:
            with contextlib.suppress(OSError):
                shutil.rmtree(os.path.join(place, thousands, wire.attempt_key(*attempt)))
                left -= 1
            if time.monotonic() > deadline:
                break
        with contextlib.suppress(OSError):  # something is still in it
            os.rmdir(os.path.join(place, thousands))
        return left

    def mark(self, key: str) -> str:
        """The value of ENV_MARK in every process of the attempt."""
        return "{}:{}".format(self.id, key)

    def key_of_mark(self, mark: str) -> str:
        """``42.1`` for a mark of this spool, "" for any other mark."""
        spool, _, key = mark.partition(":")
        return key if spool == self.id else ""

    def attempt_keys(self, ignored: Container[str] = ()) -> List[str]:
        """Attempts with an order, oldest first, forgotten ones included unless they are
        `ignored`."""
        names = (name for name in os.listdir(self.attempts) if name not in ignored)
        return [wire.attempt_key(job, attempt) for job, attempt in _attempts(names)]

    def set_aside(self, job: int, attempt: int) -> None:
        """Move the checkpoints of a job out of the way of an attempt that starts afresh. Of servers
        that share the folder, the first does it. Raises SpoolError."""
        folder = os.path.join(self.checkpoints, str(job))
        try:
            if os.listdir(folder):
                os.rename(folder, "{}{}{}".format(folder, BEFORE, attempt))
                os.mkdir(folder, 0o700)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY):
                raise SpoolError("cannot move {}: {}".format(folder, error.strerror)) from error


def _attempts(names: Iterable[str]) -> List[Tuple[int, int]]:
    """(job, attempt) of the names that are keys, rising."""
    attempts = []
    for name in names:
        with contextlib.suppress(ValueError):
            attempts.append(wire.parse_attempt_key(name))
    return sorted(attempts)


def own_path(text: str) -> str:
    """With `~` and `$USER` as they are on this server."""
    return os.path.expanduser(text).replace("$USER", wire.user_name(os.geteuid()))


def machine_id() -> str:
    """The id of the installed system, "" if it has none."""
    with contextlib.suppress(OSError), open("/etc/machine-id") as stream:
        return stream.read().strip()
    return ""


def reserve(path: str, count: int = 1) -> None:
    """Set blocks aside for `path`, so that it can be written `count` times even when the disk is
    full. Raises OSError."""
    for number in range(count):
        descriptor = os.open(
            path + RESERVE + str(number), os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600
        )
        try:
            _allocate(descriptor)
            os.fsync(descriptor)
        except OSError:
            os.unlink(path + RESERVE + str(number))  # an empty file would look like reserved blocks
            raise
        finally:
            os.close(descriptor)


def free_reserves(paths: Iterable[str]) -> None:
    """Give back the blocks from `reserve`, once nobody writes these files any more."""
    for path in paths:
        for reserve_path in filter(os.path.exists, _reserves(path)):
            with contextlib.suppress(OSError):  # it costs only its space
                os.unlink(reserve_path)


def _reserves(path: str) -> List[str]:
    return [path + RESERVE + str(number) for number in range(MOST_RESERVES)]


def _allocate(descriptor: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.write(descriptor, b" " * RESERVE_BYTES)


def write_reserved(path: str, content: Dict[str, Any]) -> None:
    """Like wire.write_json, but use the blocks from `reserve` if there are no others."""
    try:
        wire.write_json(path, content)
        return
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        reserve_paths = list(filter(os.path.exists, _reserves(path)))
        if not reserve_paths:
            raise
    line = wire.encode(content)
    descriptor = os.open(reserve_paths[0], os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.pwrite(descriptor, line, 0)
        os.ftruncate(descriptor, len(line))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(reserve_paths[0], path)
    with contextlib.suppress(OSError):
        reserve(path)  # the file that was replaced gave its own blocks back
