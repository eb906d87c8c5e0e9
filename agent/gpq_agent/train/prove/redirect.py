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
import sys
import types
from _io import open as plain_open
from typing import Any, Callable, Dict, Mapping, Tuple

from gpq_agent import wire
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.prove.file_calls import DESCRIPTOR, WRITING, FileCalls, is_no_path
from gpq_agent.train.prove.layers import Layers, mode_of

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
# Modules that use Python's own functions.
OURS = (__name__, FileCalls.__module__, Layers.__module__, mode_of.__module__)
PLAIN = ("posix", "_io", *OURS)
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
        replacements: Dict[Any, Any] = {
            plain_open: Call(plain_open, "io", self._calls.stream, layers)
        }
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
                call = functools.partial(self._of_torch, plain, place)
                replacements[plain] = functools.wraps(plain)(call)
        return replacements

    def _of_torch(self, plain: Any, place: int, *args: Any, **kwargs: Any) -> Any:
        """Call a function of torch that gets the path of what it reads or writes."""
        argument = args[place] if args[place:] else kwargs.get("f")
        if isinstance(argument, (str, os.PathLike)):
            layers = self._layers
            path = layers.write(argument, content=False) if place else layers.read(argument)
            if args[place:]:
                args = (*args[:place], path, *args[place + 1 :])
            else:
                kwargs["f"] = path
        return plain(*args, **kwargs)

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
                        function.__defaults__ = tuple(
                            instead.get(default, default) if type(default) in FUNCTIONS else default
                            for default in function.__defaults__
                        )
    openers = getattr(sys.modules.get("numpy.lib._datasource"), "_file_openers", None)
    table = getattr(openers, "_file_openers", {})  # for savetxt and loadtxt of numpy
    table.update((key, instead[plain_open]) for key, value in table.items() if value is plain_open)
