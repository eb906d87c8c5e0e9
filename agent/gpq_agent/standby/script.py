"""Runs a script in this process as `python SCRIPT` does."""

import builtins
import importlib.machinery
import io
import os
import sys
import types
from typing import Dict, List


def adopt(env: Dict[str, str]) -> None:
    """Replace all variables of this process but those that Python and the imports have set."""
    with open("/proc/self/environ", "rb") as stream:
        first = dict(os.fsdecode(entry).partition("=")[::2] for entry in stream.read().split(b"\0"))
    for name, value in list(os.environ.items()):
        if name not in env and first.get(name) == value:
            del os.environ[name]
    os.environ.update(env)


def run(argv: List[str]) -> None:
    """Run `python SCRIPT ARGUMENT...` to its end. An error ends the process, as if nothing of this
    were there."""
    path = os.path.abspath(argv[1]) if sys.version_info >= (3, 9) else argv[1]
    sys.argv[:] = argv[1:]
    if hasattr(sys, "orig_argv"):  # Python 3.10 and newer
        sys.orig_argv[:] = argv
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    names = _main_module(path)
    failure = None
    try:
        with io.open_code(path) as stream:
            code = compile(stream.read(), path, "exec", dont_inherit=True)
        exec(code, names)
    except Exception as error:
        failure = error
    if failure is not None:
        trace = failure.__traceback__.tb_next if failure.__traceback__ else None
        failure = failure.with_traceback(trace)
        sys.last_type, sys.last_value, sys.last_traceback = type(failure), failure, trace
        sys.excepthook(type(failure), failure, trace)
        sys.exit(1)


def _main_module(path: str) -> Dict[str, object]:
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __annotations__={}, __builtins__=builtins, __cached__=None, __file__=path, __loader__=loader
    )
    sys.modules["__main__"] = main
    return main.__dict__
