"""Where this replica runs: reads torchrun's and gpq's environment, binds cores or a GPU, opens the process group.

Refuses nothing: with an empty environment it describes one replica that nobody manages.
"""

import contextlib
import os
import sys
import threading
import time
from datetime import timedelta
from typing import List, Mapping, NamedTuple, Optional

import torch
import torch.distributed as dist

from gpq_agent import wire

from .leaving import is_leaving

# Until the first step a peer may still be importing or building its model; NCCL's own default is far shorter.
GROUP_TIMEOUT = timedelta(minutes=30)
REST_SECONDS = 10.0  # threads that spin for ever do not hold up the end for longer
_THREADS = "/proc/self/task"


class Environment(NamedTuple):
    """Facts that do not change while the process lives. `attempt` is 0 and the folders None without gpq."""

    rank: int = 0
    replicas: int = 1
    local_rank: int = 0
    nodes: int = 1
    launched: bool = False  # by torchrun, so a process group can be opened
    attempt: int = 0
    run_dir: Optional[str] = None
    checkpoint_dir: Optional[str] = None
    resumed: bool = False
    cores: Optional[List[int]] = None


def read_environment(environ: Mapping[str, str]) -> Environment:
    """The Environment that these variables describe; variables that are absent mean "not managed"."""
    launched = "RANK" in environ and "WORLD_SIZE" in environ and "MASTER_ADDR" in environ
    local_rank = int(environ.get("LOCAL_RANK", "0")) if launched else 0
    cores = None
    groups = [group for group in environ.get(wire.ENV_CORES, "").split(";") if group]
    if local_rank < len(groups):
        cores = [int(core) for core in groups[local_rank].split(",") if core]
    return Environment(
        rank=int(environ["RANK"]) if launched else 0,
        replicas=int(environ["WORLD_SIZE"]) if launched else 1,
        local_rank=local_rank,
        nodes=max(int(environ.get("GROUP_WORLD_SIZE", "1")), 1) if launched else 1,
        launched=launched,
        attempt=int(environ.get(wire.ENV_ATTEMPT, "0")),
        run_dir=environ.get(wire.ENV_RUN_DIR) or None,
        checkpoint_dir=environ.get(wire.ENV_CHECKPOINT_DIR) or None,
        resumed=environ.get(wire.ENV_RESUME) == "1",
        cores=cores,
    )


def bind_cores(cores: Optional[List[int]]) -> str:
    """Keep this process on its slot's cores, one torch thread each. Returns a notice if refused, else ""."""
    if not cores:
        return ""
    torch.set_num_threads(len(cores))
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        return "cannot keep this replica on cores {}: {}".format(cores, error)
    return ""


def open_device(environment: Environment) -> torch.device:
    """The GPU of this local rank, made current, or the CPU. A slot with cores of its own is a CPU slot."""
    if environment.cores is None and torch.cuda.is_available():
        index = environment.local_rank % torch.cuda.device_count()
        torch.cuda.set_device(index)
        return torch.device("cuda", index)
    return torch.device("cpu")


def open_group(environment: Environment, device: torch.device) -> bool:
    """Open the default process group if torchrun started us and nobody else has. True when this call opened it."""
    if not environment.launched or dist.is_initialized():
        return False
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend=backend, timeout=GROUP_TIMEOUT)
    return True


def close_group() -> None:
    """At exit: close the default process group, unless an error or a stop ends this replica.

    The others then wait for it in a collective; NCCL would wait for them here, and the launcher for this replica's end.
    """
    if dist.is_initialized() and not hasattr(sys, "last_type") and not is_leaving():
        dist.destroy_process_group()


def let_threads_rest(patience: float = REST_SECONDS) -> None:
    """At exit: wait, at most so many seconds, until no thread but Python's own has anything to do.

    The workers of gloo let go of tensors and callbacks some time after a collective has returned, and need the interpreter
    for it. One that comes when the interpreter is being torn down aborts the process: a training that is complete would end
    with SIGABRT. Linux only: elsewhere nothing tells which threads run.
    """
    deadline = time.monotonic() + patience
    calm = 0
    while calm < 2 and time.monotonic() < deadline:
        time.sleep(0.001)  # whoever waits for the interpreter gets it here
        calm = 0 if _running_threads() else calm + 1


def _running_threads() -> bool:
    """Is one of those that Python has not started on a core, or waiting for one?"""
    own = {str(thread.native_id) for thread in threading.enumerate()} | {str(os.getpid())}
    with contextlib.suppress(OSError):
        return any(_state_of(name) in ("R", "D") for name in os.listdir(_THREADS) if name not in own)
    return False


def _state_of(thread: str) -> str:
    """As proc(5) has it; "" for one that is gone."""
    try:
        with open("{}/{}/stat".format(_THREADS, thread), encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def seconds_since_launch() -> float:
    """Seconds since the launcher (or, without one, this process) was executed; 0.0 where /proc does not tell."""
    pid = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()
    try:
        with open("/proc/{}/stat".format(pid), encoding="utf-8", errors="replace") as stream:
            # The command may hold spaces and brackets: fields count from the last ")". Start time is field 22 of 52.
            ticks = int(stream.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
