"""Files as a checked script sees them: its own writes on top of the user's files.

One set per shape, for all of its processes. The user's files are only read. What the script writes
to `/a/b` is in `<folder>/written/a/b`. A file `<folder>/removed/a/b` hides the user's `/a/b`, and
everything below it, permanently. The scratch folder of the check, /dev, /proc and /sys stay as they
are.
"""

import errno
import os
import posix  # has the original functions of `os`
import shutil
import stat
from _io import open as plain_open
from typing import Any, Dict, List, NamedTuple, Optional

from gpq_agent import wire
from gpq_agent.train.errors import GpqTrainError

KERNEL = ("/dev", "/proc", "/sys")
MOST_LINKS = 40


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
            with plain_open(part, "wb") as target_stream:
                if content:
                    with plain_open(source, "rb") as stream:
                        shutil.copyfileobj(stream, target_stream, 1 << 20)
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


class Place(NamedTuple):
    """Where a path leads. `name`: absolute, and no folder in it is a link."""

    name: str
    free: bool = False  # in no layer
    written: bool = False  # the script wrote something there
    marked: bool = False  # there are marks there or below
    removed: bool = False  # the user's file there is hidden


class Layers:
    def __init__(self, scratch: str, folder: str) -> None:
        """`folder` is within `scratch`. Neither has links."""
        self._scratch, self._folder = scratch, folder
        self._upper = os.path.join(folder, wire.CHECK_WRITTEN)
        self._marks = folder + "/removed"
        make_folders(self._upper)
        make_folders(self._marks)

    # -- where a path leads ------------------------------------------------------------------------

    def find(self, path: Any, follow: bool = True) -> Place:
        """`follow`: if it is a link, go to its target."""
        text = self.outside(os.fsdecode(path))
        if not text:
            return Place("", free=True)
        parts, links = _parts(text), 0
        if not text.startswith("/"):
            parts += _parts(self.folder())
        way = [Place("", marked=True, written=True)]
        while parts:
            part = parts.pop()
            if part == "..":
                if way[1:]:
                    way.pop()
                continue
            place = self._step(way[-1], part)
            if place.name in KERNEL:
                return Place("/".join([place.name, *reversed(parts)]), free=True)
            target = link_target(self.real(place)) if parts or follow else None
            if target is None:
                way.append(place)
                continue
            links += 1
            if links > MOST_LINKS:
                raise failure(errno.ELOOP, path)
            if target.startswith("/"):
                del way[1:]
            parts += _parts(target)
        return way[-1]

    def folder(self) -> str:
        """The current folder."""
        return self.outside(posix.getcwd())

    def outside(self, path: str) -> str:
        """The script's name of a path among its writes. Any other path as it is."""
        if path == self._upper or path.startswith(self._upper + "/"):
            return path[len(self._upper) :] or "/"
        return path

    def is_free(self, path: Any, follow: bool) -> bool:
        """Whether it may be written in place."""
        text = os.fsdecode(path)
        is_within = text.startswith(self._scratch + "/") and "/../" not in text
        return is_within or self.find(text, follow).free

    def _step(self, folder: Place, part: str) -> Place:
        name = "{}/{}".format(folder.name, part)
        if folder.free or name == self._scratch:
            return Place(name, free=True)
        written = folder.written and mode_of(self._upper + name) is not None
        mark = mode_of(self._marks + name) if folder.marked else None
        marked = stat.S_ISDIR(mark or 0)
        removed = folder.removed or (mark is not None and not marked)
        return Place(name, False, written, marked, removed)

    def real(self, place: Place) -> str:
        """Where its bytes are or would be."""
        if place.free:
            return place.name
        return self._upper + place.name if place.written or place.removed else place.name or "/"

    # -- reading -----------------------------------------------------------------------------------

    def read(self, path: Any, follow: bool = True) -> str:
        """The path to read it from."""
        return self.real(self.find(path, follow))

    def entries(self, path: Any) -> "List[os.DirEntry[str]]":
        """The names in a folder: the script's, and the user's that are not hidden."""
        return list(self._entries(self.find(path)).values())

    def _entries(self, place: Place) -> "Dict[str, os.DirEntry[str]]":
        if not place.written or place.free:
            entries = scan(self.real(place))
        else:
            above = scan(self._upper + place.name)
            below = not place.removed and is_folder(place.name or "/")
            entries = {**(scan(place.name or "/") if below else {}), **above}
        if place.marked and not place.free:
            for name, mark in scan(self._marks + place.name).items():
                below = name in entries and self.outside(entries[name].path) == entries[name].path
                if below and mark.is_file():
                    del entries[name]
        return entries

    # -- writing -----------------------------------------------------------------------------------

    def write(self, path: Any, follow: bool = True, content: bool = True) -> str:
        """The path to write it to. Copies the current content unless `content` will replace it
        anyway."""
        place = self.find(path, follow)
        is_below = not (place.free or place.written or place.removed)
        if is_below and mode_of(place.name) is not None:
            need(place.name, os.W_OK)
        return self._raise(place, content)

    def change(self, path: Any, follow: bool = True) -> str:
        """The path at which to change its rights and times."""
        return self._raise(self.find(path, follow))

    def make(self, path: Any, _: bool = False) -> str:
        """The path at which to create something that must not exist, not even as a link."""
        place = self.find(path, follow=False)
        if mode_of(self.real(place)) is not None:
            raise failure(errno.EEXIST, path)
        return self._raise(place, itself=False)

    def link(self, source: Any, target: Any) -> None:
        posix.link(self.change(source, follow=False), self.make(target))

    def enter(self, path: Any) -> None:
        """Replaces os.chdir. Programs that start there find the user's files there."""
        place = self.find(path)
        below = not place.removed and is_folder(place.name)
        posix.chdir(place.name if below else self.real(place))

    def remove(self, path: Any, folder: bool = False) -> None:
        """Replaces os.remove and os.rmdir."""
        place = self.find(path, follow=False)
        real = self.real(place)
        if stat.S_ISDIR(posix.lstat(real).st_mode) != folder:
            raise failure(errno.ENOTDIR if folder else errno.EISDIR, path)
        if folder and self._entries(place):
            raise failure(errno.ENOTEMPTY, path)
        self._may_change(place)
        self._mark(place)
        if place.free or place.written:
            (posix.rmdir if folder else posix.remove)(real)

    def rename(self, source: Any, target: Any) -> None:
        old, new = self.find(source, follow=False), self.find(target, follow=False)
        mode, target_mode = posix.lstat(self.real(old)).st_mode, mode_of(self.real(new))
        if old.name == new.name:
            return
        folder = stat.S_ISDIR(mode)
        self._may_change(old)
        if target_mode is not None and stat.S_ISDIR(target_mode) != folder:
            raise failure(errno.ENOTDIR if folder else errno.EISDIR, source)
        if folder and target_mode is not None and self._entries(new):
            raise failure(errno.ENOTEMPTY, source)
        place = self._raise_all(old) if folder else self._raise(old)
        self._mark(old)
        posix.rename(place, self._raise(new, content=False, itself=False))
        if folder:
            self._mark(new)

    def _raise(self, place: Place, content: bool = True, itself: bool = True) -> str:
        """Its path among the script's writes. Creates its folder, and with `itself` also the
        path."""
        upper = self._upper + place.name
        if place.free or (place.written and itself):
            return self.real(place)
        self._may_change(place)
        self._raise_folder(os.path.dirname(place.name))
        if itself and not place.removed:
            self._copy(place.name, content)
        return upper

    def _raise_folder(self, name: str) -> None:
        """A path without links in it."""
        place = self.find(name or "/")
        posix.lstat(self.real(place) + "/.")  # otherwise it says why not
        if not place.written:
            self._raise_folder(os.path.dirname(name))
            self._copy(name)

    def _raise_all(self, place: Place) -> str:
        """A folder and everything below it."""
        real = self._raise(place)
        for name, entry in () if place.free else self._entries(place).items():
            inside = self._step(place, name)
            if entry.is_dir(follow_symlinks=False):
                self._raise_all(inside)
            else:
                self._raise(inside)
        return real

    def _copy(self, name: str, content: bool = False) -> None:
        """Copy to the script's writes, as far as it exists."""
        try:
            copy(name, self._upper + name, self._unique(), content)
        except FileNotFoundError:
            pass
        except PermissionError:
            raise
        except OSError as error:
            problem = "gpq check cannot copy {} before the script changes it: {}"
            hint = "set TMPDIR to a folder with more space"
            raise GpqTrainError(problem.format(name, error.strerror), hint) from None

    def _mark(self, place: Place) -> None:
        """From now on the user's file there is hidden."""
        if place.free or place.removed or mode_of(place.name) is None:
            return
        mark = self._marks + place.name
        try:
            make_folders(os.path.dirname(mark))
            if is_folder(mark):  # remove marks below, which are no longer needed
                posix.rename(mark, self._unique())
            posix.close(posix.open(mark, os.O_WRONLY | os.O_CREAT, 0o600))
        except NotADirectoryError:
            pass  # a mark above says the same

    def _may_change(self, place: Place) -> None:
        """Refuses what the user may not do either."""
        folder = os.path.dirname(place.name) or "/"
        if not place.free and not place.removed and is_folder(folder):
            need(folder, os.W_OK | os.X_OK)

    def _unique(self) -> str:
        return "{}/{}".format(self._folder, os.urandom(8).hex())


def _parts(path: str) -> List[str]:
    """The last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
