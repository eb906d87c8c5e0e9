"""One reader for everything that others write: jobs, other users, servers, disks and other versions
of gpq.

It limits size and depth, and never waits: it opens no FIFO or device, and follows no link at the
end of a path. `Damaged` names a file that cannot be accepted and says why. If this process lacks a
resource, that stays an OSError, because it passes.
"""

import errno
import functools
import itertools
import json
import os
import stat
from typing import Any, Dict, List, Optional, Tuple, Type, Union, get_type_hints

MOST_BYTES = 1 << 24  # more than the longest line on the wire
MOST_DEPTH = 64
MOST_KEPT = 9  # damaged files with one name
MOST_DIGITS = 400  # of a number, because Python takes long to read longer ones
MOST = 1 << 53  # of any number. Beyond it JSON and floats are not exact
# The least and the most of what a field counts, times in seconds. Other numbers are between -MOST
# and MOST.
BOUNDS: Dict[str, Tuple[float, float]] = {
    "pid": (1, 1 << 22),
    "code": (0, 255),
    "signal": (0, 64),
    "rank": (0, 1 << 20),
    **dict.fromkeys(("step", "seq", "report_offset", "memory_mib", "used_mib"), (0, MOST)),
    **dict.fromkeys(("start_time", "stamp"), (0, 1e12)),  # since the boot
    **dict.fromkeys(("began", "ended"), (-1e12, 1e12)),  # below 0: before it
    **dict.fromkeys(("started_at", "ended_at", "since"), (0, 2.5e11)),  # until the year 9892
    **dict.fromkeys(("age", "next_probe"), (0, 1e9)),
}
MOST_LENGTH = 1 << 20  # characters of a text, or items of a list. A client's request is no larger
# The most of what a field of a server's answer has: items of a list, characters of a text. Of a
# field that is not here, MOST_LENGTH. docs/internals/bounds.md is made of this.
LENGTHS: Dict[str, int] = {
    **dict.fromkeys(("devices", "ranks"), 2048),  # a server offers at most 1024 slots
    "attempts": 4096,  # 1024 that live, and those that ended in the last seconds
    "processes": 64,  # of a device
    "limits": 256,
    **dict.fromkeys(("network", "yields"), 64),
    "beside": 1000,
    "damage": 64,
    "jobs": 100000,
    "code": 50000,
    **dict.fromkeys(("early", "coming", "forgotten"), 10000),
    "data": 2 << 20,  # of a log, in base64
    **dict.fromkeys(("error", "hint", "reason", "fix", "notice", "note", "cause"), 1 << 16),
    **dict.fromkeys(("excused", "evidence", "unlaunched", "shortfall"), 1 << 16),
    **dict.fromkeys(("host", "boot_id", "python", "library", "path", "spool", "storage"), 4096),
    **dict.fromkeys(("digest", "machine", "address", "driver", "user", "name", "command"), 4096),
    **dict.fromkeys(("id", "type", "phase", "state", "kind", "mode", "asked"), 256),
}
FLAGS = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
# This process lacks something, or the problem passes: descriptors, memory, a file server that was
# away.
SHORTAGES = (
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ESTALE,
    errno.ETIMEDOUT,
)  # fmt: skip
KINDS = (
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISFIFO, "it is a FIFO"),
    (stat.S_ISLNK, "it is a link"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)


class Damaged(ValueError):
    """A file that exists but does not have the expected content."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__("{}: {}".format(path, reason))
        self.path = path
        self.why = reason


def open_plain(path: str, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file. Raises FileNotFoundError, Damaged, or OSError for a
    shortage."""
    try:
        mode = os.lstat(path).st_mode  # opening a device may make it act
        if not stat.S_ISREG(mode):
            raise Damaged(path, kind(mode))
        descriptor = os.open(path, flags | FLAGS)
    except OSError as error:
        if error.errno in (errno.ENOENT, *SHORTAGES):
            raise
        raise Damaged(path, os.strerror(error.errno or 0)) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):  # another file took its place
        os.close(descriptor)
        raise Damaged(path, kind(mode))
    return descriptor


def kind(mode: int) -> str:
    return next((words for is_one, words in KINDS if is_one(mode)), "it is not a regular file")


def read_bytes(path: str, limit: int = MOST_BYTES) -> Optional[bytes]:
    """Return the content of a regular file, None if there is none. Raises Damaged, or OSError for a
    shortage."""
    try:
        descriptor = open_plain(path)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        try:
            size = os.fstat(descriptor).st_size
            content = stream.read(limit + 1) if size <= limit else b""
        except OSError as error:
            if error.errno in SHORTAGES:
                raise
            raise Damaged(path, os.strerror(error.errno or 0)) from error
    if size > limit or len(content) > limit:
        hint = "it has {} bytes, and the limit is {}".format(max(size, len(content)), limit)
        raise Damaged(path, hint)
    return content


def read_object(path: str, limit: int = MOST_BYTES) -> Optional[Dict[str, Any]]:
    """Return the JSON object in a file, None if there is no file. Raises Damaged, or OSError for a
    shortage."""
    content = read_bytes(path, limit)
    if content is None:
        return None
    if not content.strip():
        raise Damaged(path, "it is empty")
    try:
        return parse(content)
    except ValueError as error:
        raise Damaged(path, str(error)) from error


def read_shape(kind: Type[Any], path: str, limit: int = MOST_BYTES) -> Optional[Dict[str, Any]]:
    """Like `read_object`, but check that the object has everything that the NamedTuple `kind` asks
    for."""
    content = read_object(path, limit)
    return None if content is None else check(kind, content, path)


def parse(content: bytes) -> Dict[str, Any]:
    """Return the JSON object in these bytes. Raises ValueError with a readable reason."""
    try:
        value = DECODER.decode(content.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError("it is not JSON: {}".format(error.msg)) from error
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    if _is_deep(value):
        raise ValueError("it is nested too deeply")
    return value


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError("it has a number of {} digits".format(len(text)))
    return int(text)


def _no_number(name: str) -> float:
    raise ValueError("{} is not a number".format(name))


DECODER = json.JSONDecoder(parse_int=_integer, parse_constant=_no_number)


def _is_deep(value: Any) -> bool:
    level: List[Any] = [value]
    for _ in range(MOST_DEPTH):
        next_level: List[Any] = []
        for item in level:
            children = item.values() if isinstance(item, dict) else item
            next_level += [child for child in children if isinstance(child, (dict, list))]
        if not next_level:
            return False
        level = next_level
    return True


def set_aside(path: str) -> str:
    """Rename a damaged file so that nobody reads it again. Return the new name, or "" if it must
    stay. A folder never stays, because no file can replace it."""
    is_folder = os.path.isdir(path) and not os.path.islink(path)
    for number in itertools.count(1) if is_folder else range(1, MOST_KEPT + 1):
        name = "{}.damaged{}".format(path, number if number > 1 else "")
        if not os.path.lexists(name):
            try:
                os.rename(path, name)
            except OSError:
                return ""
            return name
    return ""


def put_away(damage: Damaged) -> str:
    """Set the damaged file aside. Return a sentence about what happened to it."""
    copy = set_aside(damage.path)
    place = ", and gpq kept it as {}".format(os.path.basename(copy)) if copy else ""
    return "{} was damaged ({}){}".format(os.path.basename(damage.path), damage.why, place)


def check(kind: Type[Any], content: Dict[str, Any], path: str) -> Dict[str, Any]:
    """Return `content` unchanged if it has every field of the NamedTuple `kind` without a default,
    each valid. Other fields may come from a newer version. Raises Damaged."""
    for name in kind._fields:
        if name not in content and name not in kind._field_defaults:
            raise Damaged(path, "it has no {!r}".format(name))
    for name in misfits(kind, content):
        text = repr(content[name])
        text = text if len(text) <= 40 else text[:40] + "..."
        raise Damaged(path, "its {!r} is {}".format(name, text))
    return content


def misfits(kind: Any, content: Dict[str, Any]) -> List[str]:
    """Return the names of invalid fields: of another type than in the NamedTuple `kind`, or out of
    BOUNDS or LENGTHS."""
    return [
        name
        for name, hint in _hints(kind).items()
        if name in content
        and (
            excess(name, content[name])
            or not _fits(content[name], hint, *BOUNDS.get(name, (-MOST, MOST)))
        )
    ]


def excess(name: str, value: Any) -> str:
    """How the field `name` is longer than LENGTHS allow, "" if it is not."""
    most = LENGTHS.get(name, MOST_LENGTH)
    if not isinstance(value, (str, list, dict)) or len(value) <= most:
        return ""
    unit = "characters" if isinstance(value, str) else "items"
    return "{} has {} {}, and the most is {}".format(name, len(value), unit, most)


@functools.lru_cache(maxsize=None)
def _hints(kind: Any) -> Dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any, least: float, most: float) -> bool:
    if hint is Any:
        return True
    origin = getattr(hint, "__origin__", None)
    arguments: Tuple[Any, ...] = getattr(hint, "__args__", ())
    if origin is Union:
        return any(_fits(value, argument, least, most) for argument in arguments)
    if origin in (list, dict):
        if not isinstance(value, origin):
            return False
        items = value.values() if origin is dict else value
        return all(_fits(item, arguments[-1], least, most) for item in items)
    if hint in (int, float):
        kinds = int if hint is int else (int, float)
        # not a number is not between them
        return isinstance(value, kinds) and not isinstance(value, bool) and least <= value <= most
    return isinstance(value, hint)
