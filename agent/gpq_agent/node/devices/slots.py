"""CPU slots: a server without GPUs divides its cores into equal parts, and jobs get them as they
would get GPUs.

Two servers of one daemon may offer the same cores. So slots are locked between users only if the
configuration says so (`--lock-slots`). Then the same number of slots on the same cores are the same
slots for every user: the machine's identity says which they are, and their locks follow from it.
"""

import contextlib
import os
from typing import List

from gpq_agent import wire


def parse_cores(text: str) -> List[int]:
    """``0,2-4`` -> [0, 2, 3, 4], in this order. Raises ValueError for anything else, and for cores
    that this process may not use."""
    cores: List[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        cores.extend(range(int(first), int(last if dash else first) + 1))
    missing = sorted(set(cores) - os.sched_getaffinity(0))
    if missing:
        raise ValueError("core {} is not available here".format(", ".join(map(str, missing))))
    if not cores or len(set(cores)) != len(cores):
        raise ValueError("cores {}: one is named twice, or none is named".format(text))
    return sorted(cores)


def core_list(cores: List[int]) -> str:
    """[0, 2, 3, 4] -> ``0,2-4``, the inverse of `parse_cores`."""
    spans: List[List[int]] = []
    for core in sorted(cores):
        if spans and core == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], core]
        else:
            spans.append([core])
    return ",".join("-".join(map(str, span)) for span in spans)


def memory_mib() -> int:
    """Memory of the server, MiB. 0 if the kernel does not report it."""
    with contextlib.suppress(OSError), open("/proc/meminfo") as stream:
        for line in stream:
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) // 1024
    return 0


def machine(boot: str, count: int, owner: str) -> str:
    """The same for all who reach the same devices. A network namespace is a machine of its own,
    because containers of one machine have the same boot. `count` slots instead of GPUs are a
    thing of their own, which `owner` tells from others: `core_list` if they are locked, otherwise
    the id of the spool."""
    network = 0
    with contextlib.suppress(OSError):  # a kernel without namespaces
        network = os.stat("/proc/self/ns/net").st_ino
    name = "{}:{}".format(boot, network)
    return "{}:{}:{}".format(name, count, owner) if count > 0 else name


def slots(count: int, cores: List[int]) -> List[wire.DeviceInfo]:
    """`count` slots with equal, separate shares of the cores. If there are more slots than cores,
    slots share a core."""
    devices = []
    for index in range(count):
        share = cores[index * len(cores) // count : (index + 1) * len(cores) // count]
        devices.append(
            wire.DeviceInfo(
                id="slot-{}".format(index),
                index=index,
                kind="cpu",
                type="cpu",
                memory_mib=memory_mib() // count,
                state="ok",
                cores=share or [cores[index * len(cores) // count]],
            )
        )
    return devices
