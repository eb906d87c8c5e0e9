"""Files on their way to this server: taken in, verified by SHA-256, then renamed into place.

<checkpoints>/.staging/42/SET.PID/    the files of job 42, as they come. SET is the digest of their
                                      listing and of this machine's boot, PID the process that takes
                                      them. A file with its size and time of change is whole, and
                                      does not come again after a cut
<checkpoints>/.staging/code-HASH/PID/ the code of a snapshot, as it is unpacked
"""

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import tarfile
import time
from typing import Any, BinaryIO, Callable, Dict, List, Set

from gpq_agent import wire
from gpq_agent.node.files.sending import PIECE, Pace, Seal, read_line, write_line
from gpq_agent.node.files.staging import check_space, inside, remove
from gpq_agent.node.host import procs
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool import checkpoint_folder, trees
from gpq_agent.node.spool.checkpoint_folder import CODE, CODE_PREFIX, LIBRARY, OWN, STAGING, STEP
from gpq_agent.node.spool.spool import Spool
from gpq_agent.node.spool.trees import FOLDER, Entry

REPORT = 0.2  # seconds between two reports of progress
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class Receiver:
    """Takes files from `source` and tells the daemon through `sink` how far it is. `admit` raises
    SpoolError if another daemon has taken over."""

    def __init__(
        self, spool: Spool, source: BinaryIO, sink: BinaryIO, pace: Pace, admit: Callable[[], None]
    ) -> None:
        self._spool = spool
        self._folder = spool.checkpoints
        self._source = source
        self._sink = sink
        self._pace = pace
        self._admit = admit
        self._buffer = memoryview(bytearray(PIECE))
        self._reported = 0.0
        self._done = self._total = 0  # bytes
        self._room = 0  # bytes to take before it looks at the disk again
        self._state = hashlib.sha256()  # of an archive

    # -- the files of a job ------------------------------------------------------------------------

    def take_job(self, job: int) -> None:
        """Raises EOFError, SpoolError, OSError and ValueError."""
        listing = self._line()["files"]
        entries = trees.parse(listing)
        if not entries:
            raise ValueError("an empty listing")
        target = os.path.join(self._folder, str(job))
        place = os.path.join(self._folder, STAGING, str(job))
        tree = self._begin(place, listing)
        present = _present(target, entries) | _present(tree, entries)
        for folder in sorted({os.path.dirname(entry.path) for entry in entries}):
            os.makedirs(os.path.join(tree, trees.local_name(folder)), mode=0o700, exist_ok=True)
        missing = [
            number
            for number, entry in enumerate(entries)
            if entry.is_file and number not in present
        ]
        check_space(self._folder, sum(entries[number].stored for number in missing))
        self._total = sum(entry.size for entry in entries)
        self._done = self._total - sum(entries[number].size for number in missing)
        self._tell({"missing": missing, "done": self._done, "total": self._total})
        for number in missing:
            self._take_file(tree, entries[number])
        self._tell({"done": self._done, "total": self._total})
        for number in sorted(present):
            _keep_file(tree, target, entries[number])
        _finish(tree, [entry for entry in entries if not entry.is_file])
        _sync_disk(self._folder)
        with self._spool.lock():
            self._admit()
            _replace(target, tree, entries)
        remove(place)
        self._tell({"ok": True})

    def _begin(self, place: str, listing: List[Any]) -> str:
        """The folder where the files arrive, with those that came before a cut. It takes the folder
        of an earlier process away, which then fails if it still lives. A power cut may lose what
        was written, so what came before the last boot does not count."""
        text = json.dumps([listing, procs.boot_id()])
        prefix = hashlib.sha256(text.encode("ascii")).hexdigest()[:16] + "."
        tree = os.path.join(place, prefix + str(os.getpid()))
        os.makedirs(place, mode=0o700, exist_ok=True)
        with self._spool.lock():  # not while that process replaces the target
            for name in os.listdir(place):
                if name.startswith(prefix) and not os.path.exists(tree):
                    os.rename(os.path.join(place, name), tree)
        for name in os.listdir(place):
            if name != os.path.basename(tree):
                remove(os.path.join(place, name))
        return tree

    def _take_file(self, tree: str, entry: Entry) -> None:
        path = os.path.join(tree, trees.local_name(entry.path))
        seal, end, done = Seal(), 0, self._done
        try:
            descriptor = os.open(path, NEW_FILE, 0o600)
        except FileExistsError:  # a part of it came earlier
            os.unlink(path)
            descriptor = os.open(path, NEW_FILE, 0o600)
        try:
            line: Dict[str, Any] = {}
            while "sha256" not in line:
                line = self._line()
                offset, size = int(line.get("at", end)), int(line.get("size", 0))
                end = offset + size
                if not 0 <= size <= PIECE or not 0 <= offset <= end <= entry.size:
                    raise ValueError("{!r} has no such piece".format(entry.path))
                self._take_piece(descriptor, offset, size, seal)
                self._report(done + end)
            if line["sha256"] != seal.hex():
                words = "{} did not arrive as it was sent".format(trees.display_name(entry.path))
                raise SpoolError(words, "gpq sends it again", "busy")
            if end != entry.size:
                os.ftruncate(descriptor, entry.size)  # it ends with a hole
            os.fchmod(descriptor, entry.mode)
            os.utime(descriptor, ns=(entry.changed, entry.changed))
        finally:
            os.close(descriptor)
        self._report(done + entry.size)

    def _take_piece(self, descriptor: int, offset: int, size: int, seal: Seal) -> None:
        data = self._buffer[:size]
        if self._source.readinto(data) != size:  # type: ignore[attr-defined]
            raise EOFError
        self._room -= size
        if self._room < 0:  # the listing may promise holes
            check_space(self._folder, size)
            self._room = PIECE
        seal.add(offset, data)
        while data:
            written = os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written
        self._pace.spend(size)

    def _line(self) -> Dict[str, Any]:
        """Raises SpoolError if the sender failed."""
        line = read_line(self._source)
        if "error" in line:
            raise SpoolError(str(line["error"]), str(line.get("hint", "")), "busy")
        return line

    def _report(self, done: int) -> None:
        """Tell the daemon how far it is, but not too often."""
        self._done = done
        if time.monotonic() > self._reported + REPORT:
            self._reported = time.monotonic()
            self._tell({"done": self._done, "total": self._total})

    def _tell(self, line: Dict[str, Any]) -> None:
        write_line(self._sink, line)
        self._sink.flush()

    # -- the code of a snapshot --------------------------------------------------------------------

    def take_code(self, digest: str) -> None:
        """The archive whose SHA-256 is `digest`. Raises SpoolError and OSError."""
        target = os.path.join(self._folder, CODE, digest)
        place = os.path.join(self._folder, STAGING, CODE_PREFIX + digest)
        temporary = os.path.join(place, str(os.getpid()))
        remove(temporary)
        os.makedirs(temporary, mode=0o700)
        try:
            unpack(self, temporary)
            while self.read(PIECE):
                pass
            if self._state.hexdigest() != digest:
                words = "the code did not arrive as it was sent"
                raise SpoolError(words, "gpq sends it again", "busy")
            os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
            if not os.path.isdir(target):  # otherwise another transfer was faster
                os.rename(temporary, target)
        finally:
            remove(place)
        self._tell({"ok": True})

    def read(self, size: int) -> bytes:
        """So many bytes of the archive."""
        data = self._source.read(size)
        self._state.update(data)
        self._report(self._done + len(data))
        self._pace.spend(len(data))
        return data


# -- the tree of a job -----------------------------------------------------------------------------


def _present(folder: str, entries: List[Entry]) -> Set[int]:
    """Places in the list of the files that the folder has. No link leads there."""
    if not os.path.isdir(folder) or not os.listdir(folder):
        return set()
    plain_by_path = {"": not os.path.islink(folder)}
    return {
        number
        for number, entry in enumerate(entries)
        if entry.is_file
        and trees.is_same(folder, entry)
        and _is_plain(folder, os.path.dirname(entry.path), plain_by_path)
    }


def _is_plain(folder: str, path: str, plain_by_path: Dict[str, bool]) -> bool:
    """Does no link lead to the folder with this path? Remembers it in `plain_by_path`."""
    way: List[str] = []
    while path not in plain_by_path:
        way.append(path)
        path = os.path.dirname(path)
    is_plain = plain_by_path[path]
    for step in reversed(way):
        full_path = os.path.join(folder, trees.local_name(step))
        is_plain = plain_by_path[step] = is_plain and not os.path.islink(full_path)
    return is_plain


def _keep_file(tree: str, target: str, entry: Entry) -> None:
    """Give the tree a file that the target has."""
    name = trees.local_name(entry.path)
    path = os.path.join(tree, name)
    if not trees.is_same(tree, entry):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        try:
            os.link(os.path.join(target, name), path, follow_symlinks=False)
        except OSError:  # a file system without links
            shutil.copy2(os.path.join(target, name), path, follow_symlinks=False)
    os.chmod(path, entry.mode)


def _finish(tree: str, entries: List[Entry]) -> None:
    """Add folders, links and their times to the files. The content of a folder comes before it."""
    for entry in sorted(entries, reverse=True):
        path = os.path.join(tree, trees.local_name(entry.path))
        if entry.mark == FOLDER:
            os.makedirs(path, mode=0o700, exist_ok=True)
            os.chmod(path, entry.mode)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # of an earlier try
            os.symlink(trees.local_name(entry.mark[1:]), path)
        os.utime(path, ns=(entry.changed, entry.changed), follow_symlinks=False)
    for entry in entries:
        inside(tree, entry.path)


def _replace(target: str, tree: str, entries: List[Entry]) -> None:
    """Put the tree in the place of the target. Older checkpoints of the library and what else it
    manages stay, but no step that the loader would prefer: that is from an attempt that was given
    up."""
    paths = {entry.path for entry in entries}
    steps = [path.split("/")[1] for path in paths if path.startswith(LIBRARY + "/" + STEP)]
    for name in (LIBRARY, OWN):
        if name in paths or not checkpoint_folder.is_kept_apart(target, name):
            continue
        os.makedirs(os.path.join(tree, name), mode=0o700, exist_ok=True)
        for child in os.listdir(os.path.join(target, name)):
            is_later = child.startswith(STEP) and any(
                checkpoint_folder.step_of(child) > checkpoint_folder.step_of(step) for step in steps
            )
            if not is_later and not os.path.lexists(os.path.join(tree, name, child)):
                os.rename(os.path.join(target, name, child), os.path.join(tree, name, child))
    with contextlib.suppress(FileNotFoundError):
        os.rename(target, os.path.join(os.path.dirname(tree), "old"))
    os.rename(tree, target)
    wire.sync(os.path.dirname(target))


# -- code ------------------------------------------------------------------------------------------


def unpack(source: Any, folder: str) -> None:
    """Unpack a tar archive of regular files, folders and links that stay inside, all owned by this
    user. `source` has `read`. Raises SpoolError and OSError."""
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=PIECE) as archive:
            for member in archive:
                _extract(archive, member, folder)
    except (tarfile.TarError, FileExistsError) as error:
        raise SpoolError("cannot unpack the code: {}".format(error)) from error


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
    with os.fdopen(os.open(path, NEW_FILE, mode), "wb") as stream:
        os.fchmod(stream.fileno(), mode)
        shutil.copyfileobj(source, stream, PIECE)


# -- durability ------------------------------------------------------------------------------------


def _sync_disk(folder: str) -> None:
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
