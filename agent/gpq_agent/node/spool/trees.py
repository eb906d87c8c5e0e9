"""Trees of files, so that another server can recreate them as they are: names of any bytes, links
inside the tree, empty folders, permissions, times of change, holes. Owners, ACLs and extended
attributes stay behind, and two names of one file become two files.

`Immovable` names what another server cannot recreate.
"""

import errno
import os
import re
import stat
from typing import Any, Iterator, List, NamedTuple, Optional

MOST_ENTRIES = 200_000
MOST_BYTES = 32 << 20  # of the names in a listing, as JSON
MOST_PATH = 3500  # bytes, so that it can be opened below the checkpoint folder of any server
FILE, FOLDER, LINK = "f", "/", "l"  # first letters of marks
BITS = 0o1777  # the bits of a mode that are kept
OWNERS = stat.S_IRUSR | stat.S_IWUSR | stat.S_IXUSR


class Entry(NamedTuple):
    """One name in a tree. `mark`: "f" for a file, "/" for a folder, "l" and the target for a
    link."""

    path: str  # below the tree's folder, see `shared_name`
    size: int  # bytes, 0 if it is not a file
    mark: str
    mode: int = 0o600
    changed: int = 0  # time of change, ns since the epoch
    stored: int = 0  # bytes on the disk, fewer than `size` if it has holes

    @property
    def is_file(self) -> bool:
        return self.mark == FILE


class Immovable(Exception):
    """A tree that another server cannot recreate. The message names the obstacle."""


# -- names -----------------------------------------------------------------------------------------


def shared_name(name: str) -> str:
    """The same name on every server, whatever its locale, for every line and terminal: UTF-8. An
    invalid byte is NUL, which no name has, and two digits."""
    if name.isascii():
        return name
    text = os.fsencode(name).decode("utf-8", "surrogateescape")
    return re.sub("[\udc80-\udcff]", lambda half: "\0{:02x}".format(ord(half[0]) - 0xDC00), text)


def local_name(name: str) -> str:
    """The opposite. Raises ValueError for an invalid name."""
    if name.isascii() and "\0" not in name:
        return name
    text = re.sub("\0([89a-f][0-9a-f])", lambda byte: chr(0xDC00 + int(byte[1], 16)), name)
    local = os.fsdecode(text.encode("utf-8", "surrogateescape"))
    if shared_name(local) != name:
        raise ValueError("{!r} is not a name".format(name))
    return local


def display_name(name: str) -> str:
    """For users: one line, whatever the name contains. The middle of a long one is left out."""
    short = name if len(name) <= 200 else "{}...{}".format(name[:100], name[-100:])
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in short.replace("\0", "\\x")
    )


# -- listing ---------------------------------------------------------------------------------------


def below(folder: str, path: str) -> Iterator[Entry]:
    """An entry of `folder` and everything below it, folders before their content. Raises
    Immovable."""
    stack = [path]
    while stack:
        top = entry(folder, stack.pop())
        if top is None:
            continue
        yield top
        if top.mark == FOLDER:
            names = sorted(os.listdir(os.path.join(folder, local_name(top.path))), reverse=True)
            stack += ["{}/{}".format(top.path, shared_name(name)) for name in names]


def entry(folder: str, path: str) -> Optional[Entry]:
    """The entry at `path` below `folder`, None for nothing. Raises Immovable, or OSError if the
    disk does not answer."""
    full_path = os.path.join(folder, local_name(path))
    if len(os.fsencode(local_name(path))) > MOST_PATH:
        raise Immovable("{} is a path of over {} bytes".format(display_name(path), MOST_PATH))
    try:
        status = os.lstat(full_path)
        if stat.S_ISLNK(status.st_mode):
            return Entry(path, 0, LINK + _target(folder, full_path, path), BITS, status.st_mtime_ns)
        if stat.S_ISDIR(status.st_mode):
            if status.st_mode & OWNERS != OWNERS:
                words = "{} is a folder that its owner may not read and write"
                raise Immovable(words.format(display_name(path)))
            return Entry(path, 0, FOLDER, status.st_mode & BITS, status.st_mtime_ns)
        if not stat.S_ISREG(status.st_mode):
            raise Immovable("{} is not a file, a folder or a link".format(display_name(path)))
        if status.st_mode & (stat.S_ISUID | stat.S_ISGID):
            raise Immovable("{} runs as another user (setuid or setgid)".format(display_name(path)))
        if not os.access(full_path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), full_path)
        mode, stored = status.st_mode & BITS, min(status.st_size, status.st_blocks * 512)
        return Entry(path, status.st_size, FILE, mode, status.st_mtime_ns, stored)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        words = "{} cannot be read: {}"
        raise Immovable(words.format(display_name(path), error.strerror)) from error


def _target(folder: str, full_path: str, path: str) -> str:
    """The target of a link. Raises Immovable if it is outside the folder, or would be elsewhere."""
    target = os.readlink(full_path)
    try:
        os.stat(full_path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Immovable("{} is a link in a loop".format(display_name(path))) from error
    root = os.path.realpath(folder)
    end = os.path.realpath(full_path)
    if os.path.isabs(target) or not (end + os.sep).startswith(root + os.sep):
        words = (
            "{} is a link to {}: only a relative link inside the checkpoint folder works on"
            " another server"
        )
        raise Immovable(words.format(display_name(path), display_name(shared_name(target))))
    return shared_name(target)


def is_same(folder: str, expected: Entry) -> bool:
    """Is a file with this size and time of change there?"""
    try:
        status = os.lstat(os.path.join(folder, local_name(expected.path)))
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and (status.st_size, status.st_mtime_ns) == (
        expected.size,
        expected.changed,
    )


# -- over the wire ---------------------------------------------------------------------------------


def as_json(entries: List[Entry]) -> List[List[Any]]:
    return [list(entry) for entry in entries]


def parse(message: Any) -> List[Entry]:
    """Parse a listing from the wire. Raises ValueError for one that leads outside its folder."""
    if not isinstance(message, list) or len(message) > MOST_ENTRIES:
        raise ValueError("a listing must be a list of entries")
    entries = [_parse_entry(entry) for entry in message]
    kinds = {entry.path: entry for entry in entries}
    if len(kinds) != len(entries):
        raise ValueError("a path is listed twice")
    for entry in entries:
        for parent in parents(entry.path):
            if parent in kinds and kinds[parent].mark != FOLDER:
                raise ValueError("{!r} is below something that is not a folder".format(entry.path))
    return entries


def _parse_entry(message: Any) -> Entry:
    entry = Entry(*message)
    if not isinstance(entry.path, str) or not isinstance(entry.mark, str) or not entry.mark:
        raise ValueError("{!r} has no path or no mark".format(message))
    local_name(entry.path), local_name(entry.mark)
    if any(part in ("", ".", "..") for part in entry.path.split("/")):
        raise ValueError("{!r} is not a path below a folder".format(entry.path))
    if not all(
        isinstance(number, int) and number >= 0 for number in (entry.size, entry.mode, entry.stored)
    ):
        raise ValueError("{!r} has no size".format(entry.path))
    if (
        not isinstance(entry.changed, int)
        or entry.mode & ~BITS
        or (entry.size and not entry.is_file)
    ):
        raise ValueError("{!r} cannot be recreated".format(entry.path))
    if entry.mark not in (FILE, FOLDER) and not re.match(LINK + "[^/]", entry.mark):
        raise ValueError("{!r} may not travel".format(entry.path))
    return entry


def parents(path: str) -> List[str]:
    """``["a", "a/b"]`` for ``a/b/c``."""
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


# -- content ---------------------------------------------------------------------------------------


def data_at(descriptor: int, offset: int, size: int) -> int:
    """Where the first data at or after `offset` starts, `size` if there is none. Everything before
    is a hole."""
    try:
        return min(os.lseek(descriptor, offset, os.SEEK_DATA), size)
    except OSError as error:
        # otherwise the file system does not support holes
        return size if error.errno == errno.ENXIO else offset
