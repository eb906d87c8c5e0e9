"""`python interpreter.py DESCRIPTOR`: imports what every training needs, says so on the socket, and
waits. It has run nothing of the user's by then, and has used no GPU.

A request makes it the first process of an attempt. Where it might differ from a new interpreter, it
becomes one by exec, so a start goes the usual way at worst.
"""

import functools
import gc
import multiprocessing
import os
import signal
import socket
import sys
from typing import Any, Dict, List, NoReturn, Tuple

del sys.path[0]  # this folder. A script must not find these modules
import torch  # noqa: E402
import torch._dynamo  # noqa: E402  # the first optimizer or DistributedDataParallel would import it
import torch.distributed  # noqa: E402
import torch.nn.parallel  # noqa: E402
import torch.utils.data  # noqa: E402

import gpq_agent.train  # noqa: E402, F401
from gpq_agent import wire  # noqa: E402
from gpq_agent.node.shim import launch, replicas  # noqa: E402
from gpq_agent.node.standby import passing, script  # noqa: E402


class Replica(Exception):
    """Raised in the process of a replica, to leave the code that started it."""


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    imported = script.imported_files()
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
    problem = script.hidden_by(os.path.dirname(os.path.realpath(argv[1])))
    if problem or (order.ranks and len(os.listdir("/proc/self/task")) > 1):
        # A fork would have none of the threads.
        os._exit(launch.execute(argv, env, order.ranks, output))
    os.close(output)
    _interpreter_signals()
    script.adopt(env)
    if order.ranks:
        _replicas(order.ranks)
    script.watch(argv)
    script.run(argv)


def _wait(
    channel: socket.socket, imported: script.Imported
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
            problem = _problem(imported)
            passing.send(channel, {"fit": not problem, "problem": problem})
            continue
        if not script.rename(request["env"][wire.ENV_MARK]):
            os._exit(0)
        channel.close()
        return wire.StartOrder(**request["order"]), request["env"], request["cores"], gpus


def _problem(imported: script.Imported) -> str:
    """Why it no longer equals a new interpreter, or ""."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "a GPU is in use"
    return script.changed_file(imported)


def _interpreter_signals() -> None:
    """As Python sets them when it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def _replicas(ranks: List[int]) -> None:
    """Fork one replica for each rank. Returns in each of them. The first process waits for them and
    ends."""
    failures = os.path.join(os.environ[wire.ENV_RUN_DIR], wire.FAILURES)
    try:
        code = replicas.supervise(failures, ranks, functools.partial(_fork))
    except Replica:
        return
    _end(code)


def _fork(rank: int, local_rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    replicas.become(rank, local_rank)
    multiprocessing.current_process().authkey = os.urandom(32)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:  # `random` does this itself, and torch has a fixed seed
        numpy.random.seed()
    raise Replica


def _end(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
