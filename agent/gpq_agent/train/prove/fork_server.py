"""An interpreter that has imported torch, from which `gpq check` forks the replicas of a script.

It reports on a socket, one line of JSON each, and reads a line there for each replica. If the
script could notice that it is forked, the server refuses, and `gpq check` works without it. It
never uses a GPU, because CUDA does not work in a fork of a process that has used it.
"""

import builtins
import contextlib
import gc
import importlib.machinery
import io
import json
import multiprocessing
import os
import select
import signal
import socket
import sys
import types
import warnings
from typing import Any, Dict, List, NoReturn, Optional

import torch
import torch._dynamo  # the script's first optimizer would import it

from gpq_agent.train.prove.redirect import guard

POLL_SECONDS = 0.02  # seconds between two looks for a replica that has ended
GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dxg")


class Server:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._replicas: List[int] = []  # process ids of running replicas

    def serve(self) -> Dict[str, Any]:
        """Returns in a replica, with its request. The server ends with its client."""
        self.say("ready")
        lines = self._channel.makefile("rb")
        while True:
            timeout = POLL_SECONDS if self._replicas else None
            if select.select([self._channel], [], [], timeout)[0]:
                line = lines.readline()
                if not line:
                    self._end()
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # idle threads of libraries are not a danger
                    replica = os.fork()
                if not replica:
                    os.setsid()
                    self.say("forked", os.getpid())  # before the script starts
                    lines.close()
                    self._channel.close()
                    request: Dict[str, Any] = json.loads(line)
                    return request
                self._replicas.append(replica)
            for replica in list(self._replicas):
                ended, status = os.waitpid(replica, os.WNOHANG)
                if ended:
                    self._replicas.remove(replica)
                    is_killed = os.WIFSIGNALED(status)
                    code = -os.WTERMSIG(status) if is_killed else os.WEXITSTATUS(status)
                    self.say("ended", replica, code)

    def _end(self) -> NoReturn:
        for replica in self._replicas:
            os.kill(replica, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):  # it was not a session leader yet
                os.killpg(replica, signal.SIGKILL)
        os._exit(0)

    def say(self, *words: Any) -> None:
        try:
            self._channel.sendall(json.dumps(words).encode() + b"\n")
        except OSError:
            self._end()


def unfit(folder: str) -> str:
    """Why forks of this process would differ from new interpreters, or "". `folder`: the
    script's."""
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__dict__", {}).get("__file__") or ""
        if os.path.dirname(place) in (folder, os.path.join(folder, name)):
            return "torch imports {} from the folder of the script".format(name)
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + descriptor)
        except OSError:  # the descriptor of the listing itself
            continue
        if target.startswith(GPUS):
            return "a GPU is in use before the script starts"
    return ""


def become(script: str, request: Dict[str, Any]) -> Dict[str, Any]:
    """Make this process like a new interpreter that runs the script. Returns the script's names."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    os.environ.update(request["environ"])
    sys.argv[:] = [script, *request["arguments"]]
    if hasattr(sys, "orig_argv"):  # Python 3.10 and newer
        sys.orig_argv[:] = [sys.executable, *sys.argv]
    multiprocessing.current_process().authkey = os.urandom(32)
    torch.default_generator.seed()
    if "numpy" in sys.modules:  # `random` does this itself
        sys.modules["numpy"].random.seed()
    guard(os.environ, sys.addaudithook)
    main = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", script)
    main.__dict__.update(__builtins__=builtins, __cached__=None, __file__=script, __loader__=loader)
    sys.modules["__main__"] = main
    return main.__dict__


def run(script: str, names: Dict[str, Any]) -> None:
    """Run the script to its end. An error is printed and ends the process, as if this function did
    not exist."""
    failure: Optional[Exception] = None
    try:
        with io.open_code(script) as stream:
            code = compile(stream.read(), script, "exec", dont_inherit=True)
        exec(code, names)
    except Exception as error:
        failure = error
    if failure is not None:
        trace = failure.__traceback__.tb_next if failure.__traceback__ else None
        failure.__traceback__ = trace
        sys.last_type, sys.last_value, sys.last_traceback = type(failure), failure, trace
        sys.excepthook(type(failure), failure, trace)
        sys.exit(1)


def main() -> None:
    """Entry point of an interpreter with these arguments: the script, and the descriptor of the
    socket."""
    script, descriptor = sys.argv[1:3]
    server = Server(socket.socket(fileno=int(descriptor)))
    why = unfit(os.path.dirname(os.path.realpath(script)))
    if why:
        server.say("refused", why)
        os._exit(0)
    gc.collect()
    gc.freeze()  # a collection in a replica would copy the whole heap
    run(script, become(script, server.serve()))
