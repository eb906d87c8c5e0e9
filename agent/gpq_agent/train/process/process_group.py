"""The process group of the replicas: where they meet, how a collective ends, and how the group
closes."""

import atexit
import contextlib
import os
import sys
import threading
import time
from collections import deque
from datetime import timedelta
from typing import Any, Deque, Iterator, Optional, Set, Tuple
from urllib.parse import parse_qs, urlparse

import torch
import torch.distributed as dist

from gpq_agent import wire
from gpq_agent.train.internals import rendezvous_handlers
from gpq_agent.train.process.environment import Environment
from gpq_agent.train.process.shutdown import is_leaving

LOOPBACK = "127.0.0.1"
# Until the first step another replica may still be importing or building its model. NCCL's default
# is far shorter.
GROUP_TIMEOUT = timedelta(minutes=30)
KEPT = 64  # collectives after which a thread of gloo has long dropped what it held
REST_SECONDS = 10.0  # Threads that spin forever delay the end no longer than this
_kept: Deque[dist.Work] = deque(maxlen=KEPT)


def meet_in_files() -> None:
    """From here on, `env://` means a file of the attempt's folder wherever the agent named one,
    which nobody else can open. Elsewhere it is torch's own, which listens on a port of every
    interface and does not ask who connects. A script that opens its group itself meets in the file,
    too."""
    handlers = rendezvous_handlers()
    over_network = handlers["env"]

    def by_environment(url: str, **options: Any) -> Iterator[Tuple[Any, int, int]]:
        environ = os.environ
        # The script or torchrun may start a group with an address or a store of its own.
        is_other = environ.get("MASTER_ADDR") != LOOPBACK
        is_other = is_other or environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if is_other or wire.ENV_MEETING not in environ:
            yield from over_network(url, **options)
            return
        words = parse_qs(urlparse(url).query)
        rank = int(words.get("rank", [environ["RANK"]])[0])
        replicas = int(words.get("world_size", [environ["WORLD_SIZE"]])[0])
        # One file for each port that a script may set.
        path = "{}.{}".format(environ[wire.ENV_MEETING], environ["MASTER_PORT"])
        store = dist.FileStore(path, replicas)  # type: ignore[attr-defined]
        yield store, rank, replicas

    handlers["env"] = by_environment


def open_group(environment: Environment, device: torch.device) -> None:
    """Open the default process group if torchrun started this process and nothing else has opened
    it, and close it at exit."""
    if not environment.launched or dist.is_initialized():
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend=backend, timeout=GROUP_TIMEOUT)
    # NCCL complains otherwise, and threads of gloo may outlive the interpreter.
    atexit.register(close_group)


def finish(work: Optional[dist.Work]) -> None:
    """Wait for a collective that was started with `async_op=True`, and keep its tensors for a
    while. None: it had nothing to do. For small ones, because their memory stays in use.

    The thread of gloo that ran a collective drops its tensors some time after the end. If it drops
    them last, it makes an interpreter state for itself, under a lock of Python. A process that is
    forked at that moment stands still for ever, in Python before 3.8.20, 3.9.20, 3.10.15, 3.11.10
    and 3.12 (CPython issue 112275). Workers of a DataLoader are forked right after such
    collectives.
    """
    if work is not None:
        work.wait()
        _kept.append(work)


def close_group() -> None:
    """At exit: close the default process group, unless an error or a stop ends this replica. In
    that case the others wait for it in a collective. NCCL would wait for them here, and the
    launcher for this replica's end."""
    if dist.is_initialized() and not hasattr(sys, "last_type") and not is_leaving():
        dist.destroy_process_group()


def let_threads_rest(patience: float = REST_SECONDS) -> None:
    """At exit: wait, for a limited time, until only Python's own threads have work. The workers of
    gloo release tensors and callbacks some time after a collective has returned, and need the
    interpreter for it. One that runs while the interpreter shuts down aborts the process, so a
    complete training would end with SIGABRT. Linux only, because elsewhere nothing shows which
    threads run."""
    deadline = time.monotonic() + patience
    idle_checks = 0
    while idle_checks < 2 and time.monotonic() < deadline:
        time.sleep(0.001)  # a thread that waits for the interpreter gets it here
        idle_checks = 0 if _runs_threads() else idle_checks + 1


def _runs_threads() -> bool:
    """Is a thread that Python did not start running, or waiting for a core?"""
    python_threads = {str(thread.native_id) for thread in threading.enumerate()}
    names: Set[str] = set()
    with contextlib.suppress(OSError):
        names.update(os.listdir("/proc/self/task"))
    for name in names - python_threads - {str(os.getpid())}:
        path = "/proc/self/task/{}/stat".format(name)
        with contextlib.suppress(OSError, IndexError):  # it is gone
            with open(path, encoding="utf-8", errors="replace") as stream:
                state = stream.read().rpartition(")")[2].split()[0]  # as in proc(5)
            if state in ("R", "D"):
                return True
    return False
