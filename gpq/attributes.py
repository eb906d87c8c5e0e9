"""What this process has beside its variables, of the shell that started it: umask, niceness,
limits, cores."""

import contextlib
import os
import resource
from typing import NamedTuple

UNLIMITED = resource.RLIM_INFINITY  # -1
RESOURCES = {
    name.removeprefix("RLIMIT_").lower(): getattr(resource, name)
    for name in dir(resource)
    if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"  # another name of NOFILE
}
# Of a machine rather than of a shell: made from its memory, or set for its network.
OF_MACHINES = ("memlock", "msgqueue", "nproc", "sigpending")


NOT_RAISED = ("core", "stack")  # each thread has a stack of that size
MOST_CORES = 1 << 13


class Attributes(NamedTuple):
    """`limits`: [soft, hard] by name, -1 is unlimited, and so is what has no name there."""

    umask: int
    nice: int
    limits: dict[str, list[int]]


def own() -> Attributes:
    """Of this process."""
    limits = {name: list(resource.getrlimit(number)) for name, number in RESOURCES.items()}
    limits = {name: pair for name, pair in limits.items() if pair != [UNLIMITED, UNLIMITED]}
    return Attributes(_umask(), os.getpriority(os.PRIO_PROCESS, 0), limits)


def widen() -> None:
    """Let this process have all that it may: soft limits as high as the hard ones, all cores, no
    niceness."""
    for name, number in RESOURCES.items():
        if name not in NOT_RAISED:
            hard = resource.getrlimit(number)[1]
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(number, (hard, hard))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(MOST_CORES))  # of which the kernel takes those that it allows


def _umask() -> int:
    """Not by `os.umask`, which would change it under other threads, where the kernel (4.7) tells
    it."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as stream:
        for line in stream:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
