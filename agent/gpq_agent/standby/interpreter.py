"""`python interpreter.py DESCRIPTOR`: imports what every training needs, says so on the socket, and
waits. It has run nothing of the user's by then, and has used no GPU.

A request makes it the first process of an attempt. Where it might differ from a new interpreter, it
becomes one by exec, so a start goes the usual way at worst: if the imported modules are not those
that a new interpreter would import, or if the script sets a variable before `gpq.init` that was
read during an import. Then the agent makes no more standbys for that script.
"""

import builtins
import ctypes
import gc
import importlib.machinery
import multiprocessing
import os
import signal
import socket
import sys
import types
from typing import Any, Dict, List, Tuple

del sys.path[0]  # this folder. A script must not find these modules
import torch  # noqa: E402
import torch._dynamo  # noqa: E402  # the first optimizer or DistributedDataParallel would import it
import torch.distributed  # noqa: E402
import torch.nn.parallel  # noqa: E402
import torch.utils.data  # noqa: E402

import gpq_agent.train  # noqa: E402, F401
from gpq_agent import wire  # noqa: E402
from gpq_agent.node.shim import launch, replicas  # noqa: E402
from gpq_agent.node.standby import passing  # noqa: E402
from gpq_agent.train.prove import fork_server  # noqa: E402

CHANGES = ("os.putenv", "os.unsetenv")  # audit events of Python
STARTS_AGAIN = (
    "gpq: the script changes {}, which torch reads when it is imported. It starts again in a new"
    " interpreter\n"
)

ENV_START, ENV_END = 47, 48  # fields 50 and 51 of /proc/PID/stat, counted after the name

Facts = Tuple[int, int, int]
Imported = Dict[str, Facts]


class Replica(Exception):
    """Raised in the process of a replica, to leave the code that started it."""


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    imported = imported_files()
    gc.collect()
    gc.freeze()  # a collection in a replica would copy the memory of all modules
    passing.send(channel, {"ready": os.getpid()})
    order, env, cores, gpus = _wait(channel, imported)
    for descriptor in gpus:
        os.set_inheritable(descriptor, True)  # as those of a job that was started by exec
    output = launch.open_log(os.path.join(env[wire.ENV_RUN_DIR], wire.LOG))
    try:
        argv, env = launch.prepare(order, env, cores, output)
    except launch.NotLaunched as end:
        os._exit(end.code)
    problem = hidden_by(os.path.dirname(os.path.realpath(argv[1])))
    if problem or (order.ranks and len(os.listdir("/proc/self/task")) > 1):
        # A fork would have none of the threads.
        os._exit(launch.execute(argv, env, order.ranks))
    os.close(output)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python starts
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    adopt(env)
    if order.ranks:
        _replicas(order.ranks)
    watch(argv)
    run(argv)


def _wait(
    channel: socket.socket, imported: Imported
) -> Tuple[wire.StartOrder, Dict[str, str], List[int], List[int]]:
    """(order, environment, cores, descriptors of GPU locks) of the attempt that it is to be. Ends
    the process if there will be none."""
    while True:
        try:
            request, gpus = passing.receive(channel)
        except (OSError, ValueError):
            request = None
        if request is None:
            os._exit(0)
        if "probe" in request:
            problem = changed_file(imported)
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                problem = "a GPU is in use"
            passing.send(channel, {"fit": not problem, "problem": problem})
            continue
        if not rename(request["env"][wire.ENV_MARK]):
            os._exit(0)
        channel.close()
        return wire.StartOrder(**request["order"]), request["env"], request["cores"], gpus


def _replicas(ranks: List[int]) -> None:
    """Fork one replica for each rank. Returns in each of them. The first process waits for them and
    ends."""

    def fork(rank: int, local_rank: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        replicas.become(rank, local_rank)
        multiprocessing.current_process().authkey = os.urandom(32)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:  # `random` does this itself, and torch has a fixed seed
            numpy.random.seed()
        raise Replica

    failures = os.path.join(os.environ[wire.ENV_RUN_DIR], wire.FAILURES)
    try:
        code = replicas.supervise(failures, ranks, fork)
    except Replica:
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


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
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __annotations__={}, __builtins__=builtins, __cached__=None, __file__=path, __loader__=loader
    )
    sys.modules["__main__"] = main
    fork_server.run(path, main.__dict__)


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
            name = os.fsdecode(arguments[0])
            wire.write_json(os.path.join(env[wire.ENV_RUN_DIR], wire.COLD), {"variable": name})
            os.write(2, STARTS_AGAIN.format(name).encode())
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            # What the script has printed and not flushed is lost, and printed again.
            os.execvpe(argv[0], argv, env)

    sys.addaudithook(hook)


def imported_files() -> Imported:
    """The files and search folders behind the imported modules, as they are now."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    paths = [path for path in files if isinstance(path, str)]
    folders = [path for path in sys.path if os.path.isdir(path)]
    return {path: _facts(path) for path in [sys.executable, *folders, *paths]}


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


def _facts(path: str) -> Facts:
    try:
        facts = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (facts.st_ino, facts.st_size, facts.st_mtime_ns)


if __name__ == "__main__":
    main()
