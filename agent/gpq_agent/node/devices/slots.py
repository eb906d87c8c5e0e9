"""CPU slots: a server without GPUs divides its cores into equal parts, and jobs get them as they
would get GPUs."""

import contextlib
import os
from typing import List

from gpq_agent import wire


def parse_cores(text: str) -> List[int]:
    """``0,2-4`` -> [0, 2, 3, 4]. Raises ValueError for anything else, and for cores that this
    process may not use."""
    cores: List[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        cores.extend(range(int(first), int(last if dash else first) + 1))
    missing = sorted(set(cores) - os.sched_getaffinity(0))
    if missing:
        raise ValueError("core {} is not available here".format(", ".join(map(str, missing))))
    if not cores or len(set(cores)) != len(cores):
        raise ValueError("cores {}: one is named twice, or none is named".format(text))
    return cores


def own_cores() -> List[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def memory_mib() -> int:
    """Memory of the server, MiB. 0 if the kernel does not report it."""
    with contextlib.suppress(OSError), open("/proc/meminfo") as stream:
        for line in stream:
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) // 1024
    return 0


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
