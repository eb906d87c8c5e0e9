"""Under `gpq check`: what the script writes goes to a folder of its shape, and is read from there.
No file of the user is ever written.

It replaces Python's own functions, and those of torch and sqlite3 that open files past Python. It
refuses what Python does past these. Linux refuses C code and other programs, see landlock.py. They
read the user's files, not the script's writes.
"""

import functools
import json
import os
import posix  # has the original functions of `os`
import shutil
import stat
import sys
import threading
import types
from _io import open as plain_open
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Mapping, Optional, Tuple
from urllib.parse import quote, unquote

from gpq_agent import wire
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.prove.layers import Layers, mode_of

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
Folder = Optional[int]  # a descriptor that a path is relative to
DESCRIPTOR = "/proc/self/fd/{}"
BESIDE = ("-wal", "-journal")  # files of a database that hold what is not in it yet
# Grouped by what they do with their first path. Those that act on a link itself are separate.
READ, READ_LINK = ("stat", "access", "getxattr", "listxattr", "statvfs"), ("lstat", "readlink")
CHANGE, CHANGE_LINK = ("utime", "chmod", "chown", "setxattr", "removexattr"), ("lchown",)
MAKE = ("mkdir", "mkfifo", "mknod")
OWN = (
    "open", "listdir", "scandir", "chdir", "getcwdb", "symlink", "link", "rename", "replace",
    "remove", "unlink", "rmdir",
)  # fmt: skip
# Functions of torch that open a file past Python. Their argument `f` is its name.
OF_TORCH = {
    ("torch", "load"): 0, ("torch", "save"): 1, ("torch.jit", "load"): 0, ("torch.jit", "save"): 1,
}  # fmt: skip
SQLITE = "sqlite3.connect"
# Events of Python that change files, and their arguments that are paths.
EVENTS = {
    "open": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,),
    "os.link": (1,), "os.symlink": (1,), "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,),
    "os.utime": (0,), "os.setxattr": (0,), "os.removexattr": (0,), SQLITE: (0,),
}  # fmt: skip
PLAIN = ("posix", "_io", __name__, Layers.__module__)  # these keep Python's own functions
KEEPERS = ("pathlib", "glob", "tempfile")  # modules that keep some in their classes
Instead = Callable[..., Any]
FUNCTIONS = (types.BuiltinFunctionType, types.FunctionType)


def guard(environ: Mapping[str, str], add_hook: Callable[[Any], None]) -> None:
    """From here on in a process of `gpq check`. `add_hook`: sys.addaudithook."""
    text = environ.get(wire.ENV_CHECK)
    if not text:
        return
    shape = os.path.realpath(json.loads(text)["folder"])
    redirect = Redirect(Layers(os.path.dirname(shape), os.path.join(shape, wire.CHECK_FILES)))
    sys.dont_write_bytecode = True
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # rmtree then names whole paths
    _replace(redirect.instead())
    add_hook(redirect.hear)


class FileCalls:
    """`is_opening`: is an opener of the script opening a file in this thread?"""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._own = threading.local()

    def by_name(self) -> Dict[str, Callable[..., Any]]:
        layers = self._layers
        calls: Dict[str, Callable[..., Any]] = {name: getattr(self, name) for name in OWN}
        calls["getcwd"] = layers.folder
        for names, place, follow in (
            (READ, layers.read, True),
            (READ_LINK, layers.read, False),
            (("truncate",), layers.write, True),
            (CHANGE, layers.change, True),
            (CHANGE_LINK, layers.change, False),
            (MAKE, layers.make, False),
        ):
            for name in names:
                calls[name] = functools.partial(_call, place, getattr(posix, name), follow)
        return calls

    @property
    def is_opening(self) -> bool:
        return getattr(self._own, "opening", False)

    def stream(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Replaces open() of builtins and io."""
        if isinstance(file, int):
            return plain_open(file, mode, *args, **kwargs)
        if args[5:] or kwargs.get("opener") is not None:
            previous, self._own.opening = self.is_opening, True
            try:
                return plain_open(file, mode, *args, **kwargs)
            finally:
                self._own.opening = previous
        if "x" in mode:
            path = self._layers.make(file)
        elif set("wa+") & set(mode):
            path = self._layers.write(file, content="w" not in mode)
        else:
            path = self._layers.read(file)
        stream = plain_open(path, mode, *args, **kwargs)
        raw: Any = getattr(stream, "buffer", stream)
        getattr(raw, "raw", raw).name = os.fspath(file)
        return stream

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: Folder = None) -> int:
        path, follow = _absolute(path, dir_fd), not flags & os.O_NOFOLLOW
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            real = self._layers.change(path)
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            real = self._layers.make(path)
        elif flags & WRITING:
            real = self._layers.write(path, follow, content=not flags & os.O_TRUNC)
        else:
            real = self._layers.read(path, follow)
        return posix.open(real, flags, mode)

    def connect(self, plain: Any) -> Callable[..., Any]:
        """sqlite3.connect on the layers. `plain` is the original."""

        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            is_uri = kwargs.get("uri", args[6] if args[6:] else False)
            text, end = os.fsdecode(database), ""
            if is_uri and text.startswith("file:"):
                text, mark, query = text[len("file:") :].partition("?")
                if text.startswith("//"):
                    text = "/" + text[2:].partition("/")[2]
                text, end = unquote(text), mark + query
            if is_no_path(text) or "mode=memory" in end:
                return plain(database, *args, **kwargs)
            if "mode=ro" in end or "immutable=" in end:
                path = self._layers.read(text)
            else:
                path = self._layers.write(text)
                for ending in BESIDE:
                    self._layers.change(text + ending)
            return plain("file:{}{}".format(quote(path), end) if end else path, *args, **kwargs)

        return connect

    def listdir(self, path: Any = None) -> List[Any]:
        names = [entry.name for entry in self._layers.entries(_folder(path))]
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def scandir(self, path: Any = None) -> "Entries":
        argument = ""
        if not isinstance(path, int):
            argument = os.fspath("." if path is None else path)
        entries = self._layers.entries(_folder(path))
        return Entries(Entry(entry, argument, self._layers) for entry in entries)

    def chdir(self, path: Any) -> None:
        if isinstance(path, int):
            posix.chdir(path)
        else:
            self._layers.enter(path)

    def getcwdb(self) -> bytes:
        return os.fsencode(self._layers.folder())

    def symlink(self, src: Any, dst: Any, *_: Any, dir_fd: Folder = None, **__: Any) -> None:
        posix.symlink(os.fsdecode(src), self._layers.make(_absolute(dst, dir_fd)))

    def link(
        self,
        src: Any,
        dst: Any,
        *,
        src_dir_fd: Folder = None,
        dst_dir_fd: Folder = None,
        follow_symlinks: bool = True,
    ) -> None:
        self._layers.link(_absolute(src, src_dir_fd), _absolute(dst, dst_dir_fd))

    def rename(
        self, src: Any, dst: Any, *, src_dir_fd: Folder = None, dst_dir_fd: Folder = None
    ) -> None:
        self._layers.rename(_absolute(src, src_dir_fd), _absolute(dst, dst_dir_fd))

    replace = rename

    def remove(self, path: Any, *, dir_fd: Folder = None) -> None:
        self._layers.remove(_absolute(path, dir_fd))

    unlink = remove

    def rmdir(self, path: Any, *, dir_fd: Folder = None) -> None:
        self._layers.remove(_absolute(path, dir_fd), folder=True)


class Entry:
    """Like os.DirEntry. `given`: the path of its folder, as the script wrote it."""

    def __init__(self, plain: "os.DirEntry[str]", argument: Any, layers: Layers) -> None:
        self._plain, self._layers = plain, layers
        self.name: Any = os.fsencode(plain.name) if isinstance(argument, bytes) else plain.name
        self.path: Any = os.path.join(argument, self.name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return "<DirEntry {!r}>".format(self.name)

    def inode(self) -> int:
        return self._plain.inode()

    def is_symlink(self) -> bool:
        return self._plain.is_symlink()

    def is_junction(self) -> bool:
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        if follow_symlinks and self.is_symlink():
            return posix.stat(self._layers.read(self._layers.outside(self._plain.path)))
        return self._plain.stat(follow_symlinks=False)

    def _is(self, kind: Callable[[int], bool], follow: bool) -> bool:
        if not self.is_symlink():  # the original knows without asking
            plain = self._plain.is_dir if kind is stat.S_ISDIR else self._plain.is_file
            return plain(follow_symlinks=False)
        try:
            return follow and kind(self.stat().st_mode)
        except OSError:
            return False


class Entries(Iterator[Entry], ContextManager["Entries"]):
    """Like the result of os.scandir."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._rest = entries

    def __next__(self) -> Entry:
        return next(self._rest)

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._rest = iter(())


def is_no_path(database: str) -> bool:
    """The path that sqlite3 is given. A URI was handled before."""
    return database in ("", ":memory:") or database.startswith("file:")


def _call(
    place: Callable[[Any, bool], str],
    plain: Any,
    follows: bool,
    path: Any,
    *args: Any,
    dir_fd: Folder = None,
    follow_symlinks: bool = True,
    **kwargs: Any,
) -> Any:
    """Call a function of os on the real place of its path."""
    if not follow_symlinks:
        kwargs["follow_symlinks"] = False
    if isinstance(path, int):
        return plain(path, *args, **kwargs)
    real = place(_absolute(path, dir_fd), follows and follow_symlinks)
    is_bytes = isinstance(os.fspath(path), bytes)
    return plain(os.fsencode(real) if is_bytes else real, *args, **kwargs)


def _absolute(path: Any, folder: Folder) -> Any:
    """A path relative to the folder of a descriptor."""
    if folder is None:
        return path
    return os.path.join(posix.readlink(DESCRIPTOR.format(folder)), os.fsdecode(path))


def _folder(path: Any) -> Any:
    """The argument of os.listdir."""
    if isinstance(path, int):
        return posix.readlink(DESCRIPTOR.format(path))
    return "." if path is None else path


class Call:
    """Replaces a built-in function: not a method of a class that holds it, and pickled by name."""

    def __init__(self, plain: Any, module: str, instead: Instead, layers: Layers) -> None:
        functools.update_wrapper(self, plain)
        self.__module__ = module
        self._instead, self._layers = instead, layers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._instead(*args, **kwargs)
        except OSError as error:
            if isinstance(error.filename, str):
                error.filename = self._layers.outside(error.filename)
            raise

    def __reduce__(self) -> str:
        return str(self.__name__)  # type: ignore[attr-defined]


class Redirect:
    """The redirection of one process."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._calls = FileCalls(layers)

    def instead(self) -> Dict[Any, Any]:
        """The replacement for each original."""
        layers = self._layers
        replacements: Dict[Any, Any] = {}
        replacements[plain_open] = Call(plain_open, "io", self._calls.stream, layers)
        for name, call in self._calls.by_name().items():
            plain = getattr(posix, name)
            replacements[plain] = Call(plain, "os", call, layers)
            for able in (os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
                if plain in able:
                    able.add(replacements[plain])
        try:
            import sqlite3
        except ImportError:  # a Python without it
            pass
        else:
            plain = sqlite3.connect
            replacements[plain] = Call(plain, "sqlite3", self._calls.connect(plain), layers)
        for (module, name), place in OF_TORCH.items():
            if module in sys.modules:
                plain = getattr(sys.modules[module], name)
                replacements[plain] = self._of_torch(plain, place)
        return replacements

    def _of_torch(self, plain: Any, place: int) -> Any:
        """A function of torch that gets the path of what it reads or writes."""

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            argument = args[place] if args[place:] else kwargs.get("f")
            if isinstance(argument, (str, os.PathLike)):
                layers = self._layers
                path = layers.write(argument, content=False) if place else layers.read(argument)
                if args[place:]:
                    args = (*args[:place], path, *args[place + 1 :])
                else:
                    kwargs["f"] = path
            return plain(*args, **kwargs)

        return call

    def hear(self, event: str, args: Tuple[Any, ...]) -> None:
        """An audit hook: something is about to happen."""
        if event not in EVENTS or self._calls.is_opening:
            return
        if event == "open":
            is_path = isinstance(args[0], (str, bytes, os.PathLike))
            if not (is_path and args[2] & WRITING):
                return
        for index in EVENTS[event]:
            path = args[index]
            if isinstance(path, int):
                path = posix.readlink(DESCRIPTOR.format(path))
                if mode_of(path) is None:  # a file in memory, or one without a name
                    continue
            if event == SQLITE and is_no_path(os.fsdecode(path)):
                continue
            follow = event == "open"
            if not self._layers.is_free(path, follow):
                name = self._layers.find(path, follow).name
                problem = "the script writes to {} in a way that gpq check cannot redirect ({})"
                hint = "write it with Python's open() or torch.save"
                raise GpqTrainError(problem.format(name, event), hint)


def _replace(instead: Dict[Any, Any]) -> None:
    """Replace in all modules that name them. Modules imported later find them in `os` and
    similar."""
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if name in PLAIN or not isinstance(names, dict):
            continue
        for key, value in list(names.items()):
            # By its type, because some objects warn when asked for their class.
            if type(value) in FUNCTIONS and value in instead:
                names[key] = instead[value]
            elif type(value) is type and name.partition(".")[0] in KEEPERS:
                # What a class holds, and the defaults of its methods.
                for member, item in list(vars(value).items()):
                    function = item.__func__ if isinstance(item, staticmethod) else item
                    if type(function) in FUNCTIONS and function in instead:
                        setattr(value, member, instead[function])
                    elif isinstance(function, types.FunctionType) and function.__defaults__:
                        defaults = list(function.__defaults__)
                        for place, default in enumerate(defaults):
                            if type(default) in FUNCTIONS:
                                defaults[place] = instead.get(default, default)
                        function.__defaults__ = tuple(defaults)
    openers = getattr(sys.modules.get("numpy.lib._datasource"), "_file_openers", None)
    table = getattr(openers, "_file_openers", {})  # for savetxt and loadtxt of numpy
    table.update((key, instead[plain_open]) for key, value in table.items() if value is plain_open)
