"""Runs a script in this process as `python SCRIPT` does.

A standby has imported what reads variables while it is imported. If the script sets such a variable
before `gpq.init`, it starts again in a new interpreter, and the agent makes no more standbys for
it. Nor does it run a script if the imported modules are not those that a new interpreter would
import.
"""

import builtins
import ctypes
import importlib.machinery
import io
import os
import signal
import sys
import types
from typing import Dict, List, NoReturn, Tuple

from gpq_agent import wire

CHANGES = ("os.putenv", "os.unsetenv")  # audit events of Python
STARTS_AGAIN = (
    "gpq: the script changes {}, which torch reads when it is imported. It starts again in a new"
    " interpreter\n"
)

ENV_START, ENV_END = 47, 48  # fields 50 and 51 of /proc/PID/stat, counted after the name

Facts = Tuple[int, int, int]
Imported = Dict[str, Facts]


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


def rename(mark: str) -> bool:
    """Write the mark of an attempt over that of the standby, where the kernel reads it. All forks
    have it from then on. False if that is not possible here."""
    name = wire.ENV_MARK.encode("ascii") + b"="
    try:
        with open("/proc/self/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
        begin, end = int(fields[ENV_START]), int(fields[ENV_END])
        if begin == 0 or len(mark) > len(wire.STANDBY_MARK):
            return False
        place = ctypes.string_at(begin, end - begin).find(name + wire.STANDBY_MARK.encode("ascii"))
        if place < 0:
            return False
        entry = (name + mark.encode("utf-8")).ljust(len(name) + len(wire.STANDBY_MARK), b"\0")
        ctypes.memmove(begin + place, entry, len(entry))
        with open("/proc/self/environ", "rb") as stream:
            return name + mark.encode("utf-8") in stream.read().split(b"\0")
    except (OSError, ValueError, IndexError):
        return False


def watch(argv: List[str]) -> None:
    """Watch the variables until `gpq.init`. `argv`: the script's command."""
    env, cwd = dict(os.environ), os.getcwd()
    is_over = False

    def hook(event: str, arguments: tuple) -> None:  # type: ignore[type-arg]
        nonlocal is_over
        if is_over:
            return
        is_over = event == wire.AUDIT_INIT
        if event in CHANGES and os.fsdecode(arguments[0]).startswith(wire.READ_AT_IMPORT):
            is_over = True
            os.chdir(cwd)
            _start_again(os.fsdecode(arguments[0]), argv, env)

    sys.addaudithook(hook)


def _start_again(name: str, argv: List[str], env: "dict[str, str]") -> NoReturn:
    """What the script has printed and not flushed is lost, and printed again."""
    wire.write_json(os.path.join(env[wire.ENV_RUN_DIR], wire.COLD), {"variable": name})
    os.write(2, STARTS_AGAIN.format(name).encode())
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(argv[0], argv, env)


def imported_files() -> Imported:
    """The files and search folders behind the imported modules, as they are now."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    paths = [path for path in files if isinstance(path, str)]
    return {path: _facts(path) for path in [sys.executable, *_folders(), *paths]}


def changed_file(before: Imported) -> str:
    """What was changed, installed or removed since, or ""."""
    for path, facts in before.items():
        if _facts(path) != facts:
            return "{} has changed".format(path)
    return ""


def hidden_by(folder: str) -> str:
    """A file of the script's folder that a new interpreter would import instead, or ""."""
    try:
        names = {entry.name.partition(".")[0] for entry in os.scandir(folder)}
    except OSError:
        return "{} cannot be read".format(folder)
    hidden = sorted((names & sys.modules.keys()) - {"__main__", *sys.builtin_module_names})
    return "{} is in the folder of the script".format(hidden[0]) if hidden else ""


def _folders() -> List[str]:
    return [path for path in sys.path if os.path.isdir(path)]


def _facts(path: str) -> Facts:
    try:
        facts = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (facts.st_ino, facts.st_size, facts.st_mtime_ns)
