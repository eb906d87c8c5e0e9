"""What the control group of this process tells: how many of its processes the kernel has killed for want of memory."""

import os
from typing import List


def oom_kills() -> int:
    """Counted since the group was made; 0 where no control group with a memory controller can be read."""
    for path in _counters():
        try:
            with open(path) as stream:
                for line in stream:
                    name, _, value = line.partition(" ")
                    if name == "oom_kill":
                        return int(value)
        except (OSError, ValueError):
            continue
    return 0


def _counters() -> List[str]:
    """Files with an `oom_kill` line for our own group: version 2 first, then version 1's memory controller."""
    try:
        with open("/proc/self/cgroup") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found.append(os.path.join("/sys/fs/cgroup", path.lstrip("/"), "memory.events"))
        elif "memory" in controllers.split(","):
            found.append(os.path.join("/sys/fs/cgroup/memory", path.lstrip("/"), "memory.oom_control"))
    return found
