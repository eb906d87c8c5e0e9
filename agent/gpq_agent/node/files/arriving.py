"""Move a complete set of files to its place. A checkpoint of the library is complete or absent.
Everything else that a job keeps there is then the same as where it came from."""

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

SPARE = 64 << 20  # bytes of the disk to leave free
PAUSE = 0.01  # seconds between two checks whether the disk has everything


def install(place: str, target: str, entries: List[Entry]) -> Generator[None, None, None]:
    """Install files from `place`, which are named by their number in the list. They replace what is
    there. The record of own saves comes last. After a crash another call continues."""
    os.makedirs(target, mode=0o700, exist_ok=True)
    library = [
        entry
        for entry in entries
        if entry.path.startswith(checkpoint_folder.LIBRARY + "/" + checkpoint_folder.STEP)
    ]
    if not all(checkpoint_folder.is_same(target, entry) for entry in library):
        _install_step(place, target, library[0].path.rpartition("/")[0], entries)
    arrival = _Target(target)
    for entry in entries:
        if entry.mark == FOLDER:
            _make_folder(arrival.path(entry), entry)
            yield
    record_path = checkpoint_folder.OWN + "/" + checkpoint_folder.RECORD
    for number, entry in sorted(enumerate(entries), key=lambda item: item[1].path == record_path):
        if entry.is_file:
            _move(os.path.join(place, str(number)), arrival.path(entry))
        elif entry.mark.startswith(LINK):
            _make_link(arrival.path(entry), entry)
            inside(target, entry.path)
        yield
    _prune(target, entries)
    # the content of a folder before the folder's own time
    for entry in sorted(entries, reverse=True):
        _dress(target, entry)
        yield


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


class _Target:
    """The folder of a job in which a set arrives. Makes and checks the folders on the way to its
    files once."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._ready: Set[str] = set()

    def path(self, entry: Entry) -> str:
        """The full path of an entry, whose folder now exists below the target. Raises
        SpoolError."""
        parent = os.path.dirname(entry.path)
        if parent and parent not in self._ready:
            os.makedirs(inside(self.folder, parent), mode=0o700, exist_ok=True)
            self._ready.add(parent)
        return os.path.join(self.folder, trees.local_name(entry.path))


def _make_folder(path: str, entry: Entry) -> None:
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            os.chmod(path, entry.mode | 0o700)
            return
        os.unlink(path)
    os.mkdir(path, 0o700)


def _move(source: str, path: str) -> None:
    if not os.path.lexists(source):
        return  # it was there already, or moved with its step
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    os.replace(source, path)


def _make_link(path: str, entry: Entry) -> None:
    end = trees.local_name(entry.mark[len(LINK) :])
    if os.path.islink(path) and os.readlink(path) == end:
        return
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    os.symlink(end, path)


def _dress(target: str, entry: Entry) -> None:
    """Set its permissions and its time."""
    path = os.path.join(target, trees.local_name(entry.path))
    if not entry.mark.startswith(LINK):
        os.chmod(path, entry.mode)
    os.utime(path, ns=(entry.changed, entry.changed), follow_symlinks=False)


def _prune(target: str, entries: List[Entry]) -> None:
    """Remove everything else. It is from an earlier time or from an attempt that was given up. That
    includes checkpoints of the library that the loader would prefer."""
    paths = {entry.path for entry in entries}
    queue = [trees.shared_name(name) for name in os.listdir(target)]
    queue = [
        name for name in queue if name in paths or not checkpoint_folder.is_kept_apart(target, name)
    ]
    while queue:
        path = queue.pop()
        full_path = os.path.join(target, trees.local_name(path))
        is_folder = os.path.isdir(full_path) and not os.path.islink(full_path)
        if path not in paths and not any(name.startswith(path + "/") for name in paths):
            shutil.rmtree(full_path) if is_folder else os.unlink(full_path)
        elif is_folder:
            queue += [
                "{}/{}".format(path, trees.shared_name(name)) for name in os.listdir(full_path)
            ]
    library_steps = [
        path.split("/")[1]
        for path in paths
        if path.startswith(checkpoint_folder.LIBRARY + "/" + checkpoint_folder.STEP)
    ]
    for name in checkpoint_folder.steps(target):
        if library_steps and checkpoint_folder.step_of(name) > checkpoint_folder.step_of(
            library_steps[0]
        ):
            remove(os.path.join(target, checkpoint_folder.LIBRARY, name))


def _install_step(place: str, target: str, step: str, entries: List[Entry]) -> None:
    """Assemble its folder next to it, then rename it."""
    final = os.path.join(target, step)
    folder, name = os.path.split(final)
    temporary = os.path.join(folder, ".{}.staged.tmp".format(name))
    os.makedirs(inside(target, os.path.dirname(step)), mode=0o700, exist_ok=True)
    os.makedirs(temporary, mode=0o700, exist_ok=True)
    for number, entry in enumerate(entries):
        if entry.path.rpartition("/")[0] != step:
            continue
        source, path = (
            os.path.join(place, str(number)),
            os.path.join(temporary, os.path.basename(entry.path)),
        )
        if os.path.exists(source):
            os.replace(source, path)
        elif not os.path.exists(path):
            shutil.copy2(os.path.join(target, entry.path), path)  # it was here already
    sync(temporary)
    remove(final)
    os.rename(temporary, final)
    sync(folder)


def remove(path: str) -> None:
    """Rename first, so that half of it never looks complete."""
    if not os.path.lexists(path):
        return
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, ".{}.{}.old.tmp".format(name.lstrip("."), os.getpid()))
    with contextlib.suppress(OSError):
        shutil.rmtree(temporary, ignore_errors=True)
        os.rename(path, temporary)
        shutil.rmtree(temporary)


# -- durability ------------------------------------------------------------------------------------


def settle(folder: str, large: List[str]) -> Generator[None, None, None]:
    """Wait until everything written to the file system of `folder` is on its disk. `large` names
    the large files. A separate process waits. Raises OSError."""
    agent = os.getpid()
    child = os.fork()
    if child == 0:
        _settle_and_exit(folder, large, agent)
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
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
    """Sync one file, or the names in one folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_all(folder: str) -> None:
    """Sync the whole file system: it writes many small files at once, while syncing one by one
    waits for each."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "syncfs"):
            os.sync()
        elif library.syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)
    finally:
        os.close(descriptor)
