"""Under `gpq check`: a copy of every file that the script is about to overwrite, rename or remove, so that it is put back.

Sees what goes through Python, and torch.save. Where a copy cannot be made the script's own call fails, before it does harm.
"""

import fcntl
import functools
import hashlib
import json
import os
import shutil
import threading
from typing import Any, Dict, List, Mapping, Set, Tuple

import torch

from gpq_agent import wire

from .errors import GpqTrainError

_NOT_FILES = ("/dev/", "/proc/", "/sys/")
_NO_FOLDER = -1  # what the events of Python's os functions have in the place of a directory descriptor


def guard(environ: Mapping[str, str], add_hook: Any) -> None:
    """From here on, in a process of `gpq check`. `add_hook`: sys.addaudithook."""
    text = environ.get(wire.ENV_CHECK)
    if not text:
        return
    keeper = Keeper(os.path.dirname(os.path.abspath(json.loads(text)["folder"])))
    add_hook(keeper.hear)
    plain = torch.save

    @functools.wraps(plain)
    def save(content: Any, where: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(where, (str, os.PathLike)):  # torch opens it past Python
            keeper.keep(os.fspath(where))
        return plain(content, where, *args, **kwargs)

    torch.save = torch.serialization.save = save  # type: ignore[assignment]


class Keeper:
    """Of one process. `home` is the folder of the check, where all of its processes keep what they find, once."""

    def __init__(self, home: str) -> None:
        self._home = os.path.realpath(home)
        self._folder = os.path.join(self._home, wire.CHECK_KEPT)
        self._known: Set[str] = set()
        self._own = threading.local()  # what this thread opens by itself to make a copy

    def hear(self, event: str, args: Tuple[Any, ...]) -> None:
        """An audit hook: something is about to happen."""
        if event not in _EVENTS or getattr(self._own, "busy", False):
            return
        for path in _EVENTS[event](args):
            self.keep(path, itself=event != "open")

    def keep(self, path: Any, *, itself: bool = False) -> None:
        """`itself`: a link, not what it points to. Raises GpqTrainError."""
        name = os.fsdecode(path)
        place = os.path.join(os.path.realpath(os.path.dirname(name) or "."), os.path.basename(name))
        if not itself or not os.path.islink(place):
            place = os.path.realpath(place)
        if place in self._known:
            return
        if place.startswith((self._home + os.sep, *_NOT_FILES)) or "__pycache__" in place:
            return
        self._own.busy = True
        try:
            inside = [place]
            if os.path.isdir(place) and not os.path.islink(place):
                inside = [os.path.join(root, each) for root, _, files in os.walk(place) for each in files]
            for each in inside:
                self._keep_one(each)
        except OSError as error:
            raise GpqTrainError(
                "gpq check cannot keep a copy of {}, which the script is about to change: {}".format(
                    place, error.strerror or error
                ),
                "run it in a copy of the folder, or let TMPDIR name a folder with more room",
            ) from None
        finally:
            self._own.busy = False
        self._known.add(place)

    def _keep_one(self, place: str) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        name = os.path.join(self._folder, hashlib.sha256(os.fsencode(place)).hexdigest())
        # Locked: another replica, or shape, must not write while this one copies.
        with open(os.path.join(self._folder, "lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.exists(name + ".json"):
                return
            found = {"path": place, "kind": "new", "target": ""}
            if os.path.islink(place):
                found.update(kind="link", target=os.readlink(place))
            elif os.path.isfile(place):
                shutil.copy2(place, name)
                found["kind"] = "file"
            elif os.path.lexists(place):
                return
            with open(name + ".part", "w") as stream:
                json.dump(found, stream)
            os.rename(name + ".part", name + ".json")


def _opened(args: Tuple[Any, ...]) -> List[Any]:
    path, _, flags = args
    writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC)
    return [path] if writes and isinstance(path, (str, bytes, os.PathLike)) else []


def _renamed(args: Tuple[Any, ...]) -> List[Any]:
    return [_within(args[0], args[2]), _within(args[1], args[3])]


def _removed(args: Tuple[Any, ...]) -> List[Any]:
    return [_within(args[0], args[1])]


def _cut(args: Tuple[Any, ...]) -> List[Any]:
    return [] if isinstance(args[0], int) else [args[0]]


def _connected(args: Tuple[Any, ...]) -> List[Any]:
    return [] if os.fsdecode(args[0]) in ("", ":memory:") else [args[0]]


def _within(path: Any, folder: int) -> Any:
    """A path that is relative to the folder of a descriptor, as shutil.rmtree names them."""
    if folder == _NO_FOLDER:
        return path
    return os.path.join(os.readlink("/proc/self/fd/{}".format(folder)), os.fsdecode(path))


_EVENTS: Dict[str, Any] = {
    "open": _opened,
    "os.rename": _renamed,
    "os.remove": _removed,
    "os.truncate": _cut,
    "sqlite3.connect": _connected,
}
