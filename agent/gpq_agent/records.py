"""One reader for what others write: jobs, other users, servers, disks, other versions of gpq.

Bounded in bytes and depth, and never waiting: no FIFO or device is opened, no link at the end of a
path is followed. What cannot be taken is `Damaged`, which names the file and says why. A shortage
of this process stays an OSError: it passes.
"""

import errno
import json
import os
import stat
from typing import Any, Dict, List, Optional, Tuple, Type, Union, get_type_hints

MOST_BYTES = 1 << 24  # more than a line on the wire may have
MOST_DEPTH = 64
MOST_KEPT = 9  # damaged files of one name
MOST_DIGITS = 400  # of a number: longer ones take Python long to read
FLAGS = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
# What lacks is ours, or passes by itself: descriptors, memory, a server of files that was away.
SHORTAGES = (
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EINTR,
    errno.ESTALE,
    errno.ETIMEDOUT,
)
KINDS = (
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISFIFO, "it is a FIFO"),
    (stat.S_ISLNK, "it is a link"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)


class Damaged(ValueError):
    """A file that is there and cannot be taken for what it should be."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__("{}: {}".format(path, reason))
        self.path = path
        self.why = reason


def open_plain(path: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a plain file. Raises FileNotFoundError, Damaged, or OSError for a
    shortage."""
    try:
        mode = os.lstat(path).st_mode  # a device may act upon being opened
        if not stat.S_ISREG(mode):
            raise Damaged(path, _kind(mode))
        descriptor = os.open(path, flags | FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        raise Damaged(path, os.strerror(error.errno or 0)) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):  # another one since
        os.close(descriptor)
        raise Damaged(path, _kind(mode))
    return descriptor


def _kind(mode: int) -> str:
    return next((words for is_one, words in KINDS if is_one(mode)), "it is not a regular file")


def read_bytes(path: str, limit: int = MOST_BYTES) -> Optional[bytes]:
    """All of a plain file, None where there is none. Raises Damaged, or OSError for a shortage."""
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
        raise Damaged(
            path, "it has {} bytes, and the limit is {}".format(max(size, len(content)), limit)
        )
    return content


def read_object(path: str, limit: int = MOST_BYTES) -> Optional[Dict[str, Any]]:
    """The JSON object in a file, None where there is no file. Raises Damaged, or OSError for a
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


def read_shape(kind: Type[Any], path: str) -> Optional[Dict[str, Any]]:
    """As `read_object`, and all that the NamedTuple `kind` asks is in it."""
    content = read_object(path)
    return None if content is None else check(kind, content, path)


def parse(content: bytes) -> Dict[str, Any]:
    """The JSON object in these bytes. Raises ValueError, in words."""
    try:
        value = json.loads(content.decode("utf-8"), parse_int=_integer, parse_constant=_no_number)
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


def _is_deep(value: Any) -> bool:
    level: List[Any] = [value]
    for _ in range(MOST_DEPTH):
        next_level: List[Any] = []
        for item in level:
            next_level += [child for child in _below(item) if isinstance(child, (dict, list))]
        if not next_level:
            return False
        level = next_level
    return True


def _below(item: Any) -> Any:
    return item.values() if isinstance(item, dict) else item


def set_aside(path: str) -> str:
    """Give a damaged file another name, so that nobody meets it again. Returns that, or "" where it
    must stay."""
    for number in range(1, MOST_KEPT + 1):
        name = "{}.damaged{}".format(path, number if number > 1 else "")
        if not os.path.lexists(name):
            try:
                os.rename(path, name)
            except OSError:
                return ""
            return name
    return ""


def put_away(damage: Damaged) -> str:
    """Set the damaged file aside. What has become of it, in words."""
    copy = set_aside(damage.path)
    place = ", and gpq kept it as {}".format(os.path.basename(copy)) if copy else ""
    return "{} was damaged ({}){}".format(os.path.basename(damage.path), damage.why, place)


def check(kind: Type[Any], content: Dict[str, Any], path: str) -> Dict[str, Any]:
    """`content` as it is, where all fields of the NamedTuple `kind` are in it, or have defaults,
    and are of their types. Others are a newer version's. Raises Damaged."""
    for name, hint in get_type_hints(kind).items():
        if name not in content:
            if name in kind._field_defaults:
                continue
            raise Damaged(path, "it has no {!r}".format(name))
        if not _fits(content[name], hint):
            raise Damaged(path, "its {!r} is {}".format(name, _shown(content[name])))
    return content


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    origin = getattr(hint, "__origin__", None)
    arguments: Tuple[Any, ...] = getattr(hint, "__args__", ())
    if origin is Union:
        return any(_fits(value, argument) for argument in arguments)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, arguments[1]) for item in value.values())
    if hint is float:
        return (
            isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
        )
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "..."
