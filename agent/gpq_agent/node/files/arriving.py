"""Put a set of files that has come whole to where it belongs: a checkpoint of the library is whole
or absent, and whatever else a job keeps there is afterwards what it was where it comes from."""

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import time
from typing import Generator, List, Set

from gpq_agent.node.host import procs
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool import checkpoint_folder, trees
from gpq_agent.node.spool.trees import FOLDER, LINK, Entry

SPARE = 64 << 20  # bytes of the disk that are left free
PAUSE = 0.01  # seconds between two looks whether the disk has it all


def install(place: str, target: str, entries: List[Entry]) -> Generator[None, None, None]:
    """Files come from `place`, by their number in the list. What they replace gives way; the record
    of own saves comes last. Once more after a crash it goes on."""
    os.makedirs(target, mode=0o700, exist_ok=True)
    library = [
        one
        for one in entries
        if one.path.startswith(checkpoint_folder.LIBRARY + "/" + checkpoint_folder.STEP)
    ]
    if not all(checkpoint_folder.is_same(target, one) for one in library):
        _install_step(place, target, library[0].path.rpartition("/")[0], entries)
    arrival = _Target(target)
    for one in entries:
        if one.mark == FOLDER:
            _make_folder(arrival.path(one), one)
            yield
    last = checkpoint_folder.OWN + "/" + checkpoint_folder.RECORD
    for number, one in sorted(enumerate(entries), key=lambda item: item[1].path == last):
        if one.is_file:
            _move(os.path.join(place, str(number)), arrival.path(one))
        elif one.mark.startswith(LINK):
            _make_link(arrival.path(one), one)
            inside(target, one.path)
        yield
    _prune(target, entries)
    for one in sorted(entries, reverse=True):  # what a folder holds before its own time
        _dress(target, one)
        yield


def check_space(folder: str, needed: int) -> None:
    """Raises SpoolError where so many bytes have no room."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if needed > 0 and free - SPARE < needed:
        raise SpoolError(
            "no room in {}: {} MB are needed, {} MB are free".format(
                folder, needed >> 20, free >> 20
            ),
            "free space there, or give the server another folder: `checkpoints` in config.toml",
            "busy",
        )


def inside(folder: str, path: str) -> str:
    """The full path. Raises SpoolError where a link on the way leads out of the folder."""
    full = os.path.join(folder, trees.local_name(path))
    root = os.path.realpath(folder)
    if not os.path.realpath(full).startswith(root + os.sep):
        raise SpoolError("{!r} leads out of {}".format(path, folder))
    return full


class _Target:
    """The folder of a job that a set arrives in. Folders on the way to its files are made and
    looked at once."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._ready: Set[str] = set()

    def path(self, one: Entry) -> str:
        """The full path of an entry whose folder is there, and below the target. Raises
        SpoolError."""
        parent = os.path.dirname(one.path)
        if parent and parent not in self._ready:
            os.makedirs(inside(self.folder, parent), mode=0o700, exist_ok=True)
            self._ready.add(parent)
        return os.path.join(self.folder, trees.local_name(one.path))


def _make_folder(path: str, one: Entry) -> None:
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            os.chmod(path, one.mode | 0o700)
            return
        os.unlink(path)
    os.mkdir(path, 0o700)


def _move(source: str, path: str) -> None:
    if not os.path.lexists(source):
        return  # it was there already, or went with its step
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    os.replace(source, path)


def _make_link(path: str, one: Entry) -> None:
    end = trees.local_name(one.mark[len(LINK) :])
    if os.path.islink(path) and os.readlink(path) == end:
        return
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    os.symlink(end, path)


def _dress(target: str, one: Entry) -> None:
    """Its permissions and its time."""
    path = os.path.join(target, trees.local_name(one.path))
    if not one.mark.startswith(LINK):
        os.chmod(path, one.mode)
    os.utime(path, ns=(one.changed, one.changed), follow_symlinks=False)


def _prune(target: str, entries: List[Entry]) -> None:
    """What else a job had there is of an earlier time, or of an attempt that was given up. So are
    checkpoints of the library that the loader would prefer."""
    known = {one.path for one in entries}
    waiting = [trees.shared_name(name) for name in os.listdir(target)]
    waiting = [
        name
        for name in waiting
        if name in known or not checkpoint_folder.is_kept_apart(target, name)
    ]
    while waiting:
        path = waiting.pop()
        full = os.path.join(target, trees.local_name(path))
        is_folder = os.path.isdir(full) and not os.path.islink(full)
        if path not in known and not any(name.startswith(path + "/") for name in known):
            shutil.rmtree(full) if is_folder else os.unlink(full)
        elif is_folder:
            waiting += ["{}/{}".format(path, trees.shared_name(name)) for name in os.listdir(full)]
    kept = [
        path.split("/")[1]
        for path in known
        if path.startswith(checkpoint_folder.LIBRARY + "/" + checkpoint_folder.STEP)
    ]
    for name in checkpoint_folder.steps(target):
        if kept and checkpoint_folder.step_of(name) > checkpoint_folder.step_of(kept[0]):
            remove(os.path.join(target, checkpoint_folder.LIBRARY, name))


def _install_step(place: str, target: str, step: str, entries: List[Entry]) -> None:
    """Its folder is put together beside it, then renamed."""
    final = os.path.join(target, step)
    folder, name = os.path.split(final)
    temporary = os.path.join(folder, ".{}.staged.tmp".format(name))
    os.makedirs(inside(target, os.path.dirname(step)), mode=0o700, exist_ok=True)
    os.makedirs(temporary, mode=0o700, exist_ok=True)
    for number, one in enumerate(entries):
        if one.path.rpartition("/")[0] != step:
            continue
        source, path = (
            os.path.join(place, str(number)),
            os.path.join(temporary, os.path.basename(one.path)),
        )
        if os.path.exists(source):
            os.replace(source, path)
        elif not os.path.exists(path):
            shutil.copy2(os.path.join(target, one.path), path)  # it was here already
    sync(temporary)
    remove(final)
    os.rename(temporary, final)
    sync(folder)


def remove(path: str) -> None:
    """Renamed first, so that half of it never looks like the whole."""
    if not os.path.lexists(path):
        return
    folder, name = os.path.split(path)
    doomed = os.path.join(folder, ".{}.{}.old.tmp".format(name.lstrip("."), os.getpid()))
    with contextlib.suppress(OSError):
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(path, doomed)
        shutil.rmtree(doomed)


# -- durability ------------------------------------------------------------------------------------


def settle(folder: str, large: List[str]) -> Generator[None, None, None]:
    """All that was written to the file system of `folder` is on its disk, the `large` files by
    name. A process of its own waits for that. Raises OSError."""
    agent = os.getpid()
    child = os.fork()
    if child == 0:
        _settle_and_exit(folder, large, agent)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(PAUSE)
        yield
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else errno.EIO
    if code:
        raise OSError(code, os.strerror(code), folder)


def _settle_and_exit(folder: str, large: List[str], agent: int) -> None:
    code = errno.EIO
    try:
        procs.keep_only(set())
        procs.die_with_parent(agent)
        for path in large:
            sync(path)
        _sync_all(folder)
        code = 0
    except OSError as error:
        code = error.errno or code
    finally:
        os._exit(code)


def sync(path: str) -> None:
    """One file, or the names in one folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_all(folder: str) -> None:
    """A whole file system: many small files are on the disk in one go, where one by one each waits
    for it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "syncfs"):
            os.sync()
        elif library.syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)
    finally:
        os.close(descriptor)
