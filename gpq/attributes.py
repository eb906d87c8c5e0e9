"""What this process inherits besides variables from the shell that started it: umask, niceness,
limits, cores."""

import contextlib
import os
import resource

UNLIMITED = resource.RLIM_INFINITY  # -1
RESOURCES = {
    name.removeprefix("RLIMIT_").lower(): getattr(resource, name)
    for name in dir(resource)
    if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"  # another name of NOFILE
}
# Limits that depend on a machine's memory or network, not on a shell.
OF_MACHINES = ("memlock", "msgqueue", "nproc", "sigpending")


NOT_RAISED = ("core", "stack")  # each thread has a stack of that size
MOST_CORES = 1 << 13


def own() -> tuple[int, int, dict[str, tuple[int, int]]]:
    """The attributes of this process: umask, niceness, and limits, (soft, hard) by name. -1, or no
    entry, means unlimited."""
    limits = {
        name: pair
        for name, number in RESOURCES.items()
        if (pair := resource.getrlimit(number)) != (UNLIMITED, UNLIMITED)
    }
    return _umask(), os.getpriority(os.PRIO_PROCESS, 0), limits


def widen() -> None:
    """Give this process all that it may have: soft limits as high as the hard ones, all cores, no
    niceness."""
    for name, number in RESOURCES.items():
        if name not in NOT_RAISED:
            hard = resource.getrlimit(number)[1]
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(number, (hard, hard))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(MOST_CORES))  # the kernel takes those that it allows


def _umask() -> int:
    """The umask. `os.umask` would change it under other threads, so this reads what the kernel
    (4.7) reports."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as stream:
        for line in stream:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
