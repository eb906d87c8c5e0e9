"""What a process has besides its variables: umask, niceness, limits, cores. The agent gives itself
everything that it may have. A job gets what its submission recorded, as far as this server allows
it."""

import contextlib
import os
import resource
from typing import Any, Dict, List, Tuple

from gpq_agent import wire

UNLIMITED = resource.RLIM_INFINITY
RESOURCES = {
    name[len("RLIMIT_") :].lower(): getattr(resource, name)
    for name in dir(resource)
    if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"  # another name for NOFILE
}
NAMES = {
    "as": "address space", "core": "core dumps", "cpu": "CPU seconds", "data": "data segment",
    "fsize": "size of files", "memlock": "locked memory", "msgqueue": "message queues",
    "nice": "raised priority", "nofile": "open files", "nproc": "processes",
    "rss": "resident memory", "rtprio": "real-time priority", "rttime": "real-time runs",
    "sigpending": "pending signals", "stack": "stack",
}  # fmt: skip
# Soft limits that stay unchanged: core dumps would contain environments, and each thread has a
# stack of that size.
NOT_RAISED = ("core", "stack")
NR_OPEN = "/proc/sys/fs/nr_open"  # nobody may have more open files
MOST_CORES = 1 << 13
LEAST_NICE, MOST_NICE = -20, 19
MENDS = (
    "raise it there, or on the daemon's machine run `gpq daemon stop` and start the daemon from a"
    " shell that has it"
)


def own() -> wire.Attributes:
    """The attributes of this process, which has one thread."""
    umask = os.umask(0o077)
    os.umask(umask)
    limits = {name: list(resource.getrlimit(number)) for name, number in RESOURCES.items()}
    return wire.Attributes(umask, os.getpriority(os.PRIO_PROCESS, 0), limits)


def settle() -> None:
    """Give this process everything that it may have, whatever its shell or login had. Its hard
    limits are then what this server allows jobs."""
    os.umask(0o077)
    most = dict.fromkeys(RESOURCES, UNLIMITED)
    with contextlib.suppress(OSError, ValueError), open(NR_OPEN) as stream:
        most["nofile"] = int(stream.read())
    for name, number in RESOURCES.items():
        soft, hard = resource.getrlimit(number)
        for limit in (most[name], hard):
            with contextlib.suppress(OSError, ValueError):  # only root can raise hard limits
                resource.setrlimit(number, (soft if name in NOT_RAISED else limit, limit))
                break
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(MOST_CORES))  # the kernel takes those that it allows


def grant(request: wire.Attributes, default: wire.Attributes) -> Tuple[wire.Attributes, List[str]]:
    """What a child of this process can have of `request`, after `settle`, and what it cannot: "open
    files 256 instead of 4096". Limits that the request does not name come from `default`, the
    server's own."""
    shortfalls: List[str] = []
    nice = max(request.nice, _least_nice())
    if nice != request.nice:
        shortfalls.append("niceness {} instead of {}".format(nice, request.nice))
    limits = {}
    for name, number in RESOURCES.items():
        pair = request.limits.get(name, default.limits.get(name, [UNLIMITED, UNLIMITED]))
        hard_limit = resource.getrlimit(number)[1]
        soft, hard = [_least(value, hard_limit) for value in pair]
        limits[name] = [soft, hard]
        label = NAMES.get(name, name)
        if soft != pair[0]:
            words = "{} {} instead of {}"
            shortfalls.append(words.format(label, _show(soft), _show(pair[0])))
        elif hard != pair[1]:
            words = "{} at most {} instead of {}"
            shortfalls.append(words.format(label, _show(hard), _show(pair[1])))
    return wire.Attributes(request.umask, nice, limits), shortfalls


def _least(value: int, most: int) -> int:
    if UNLIMITED in (value, most):
        return max(value, most)  # the other value, because UNLIMITED is below all others
    return min(value, most)


def _show(value: int) -> str:
    return "unlimited" if value == UNLIMITED else str(value)


def _least_nice() -> int:
    """The lowest niceness: root may have any, others may only keep theirs or raise it, unless
    RLIMIT_NICE allows less."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, LEAST_NICE)
    except OSError:
        return min(niceness, 20 - resource.getrlimit(resource.RLIMIT_NICE)[0])
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    return LEAST_NICE


def apply(target: wire.Attributes) -> List[str]:
    """Apply the attributes to this process. Return what failed, which `grant` cannot foresee."""
    failures: List[str] = []
    os.umask(target.umask)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, target.nice)
    except OSError as error:
        failures.append("cannot set niceness {}: {}".format(target.nice, error.strerror))
    for name, (soft, hard) in target.limits.items():
        # `grant` has left out the limits that are unknown here
        try:
            resource.setrlimit(RESOURCES[name], (soft, hard))
        except (OSError, ValueError) as error:
            failures.append(
                "cannot limit {} to {}: {}".format(NAMES.get(name, name), _show(soft), error)
            )
    return failures


def of(value: Dict[str, Any]) -> wire.Attributes:
    """Convert a dictionary that `is_right`. One from a newer gpq may contain more."""
    return wire.Attributes(**{name: value[name] for name in wire.Attributes._fields})


def is_right(value: Any) -> bool:
    """Is it a wire.Attributes as a dictionary, or None?"""

    def whole(number: Any, least: int, most: int) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and least <= number <= most

    def pair(limit: Any) -> bool:
        return (
            isinstance(limit, list)
            and len(limit) == 2
            and all(whole(bound, UNLIMITED, (1 << 63) - 1) for bound in limit)
            and _least(*limit) == limit[0]
        )

    if value is None:
        return True
    return (
        isinstance(value, dict)
        and value.keys() >= set(wire.Attributes._fields)
        and whole(value["umask"], 0, 0o777)
        and whole(value["nice"], LEAST_NICE, MOST_NICE)
        and isinstance(value["limits"], dict)
        and all(isinstance(name, str) and pair(limit) for name, limit in value["limits"].items())
    )
