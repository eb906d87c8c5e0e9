"""The kernel's counter of out-of-memory kills in a process's control group, and when it changed."""

import contextlib
import os
import time
from typing import List, Tuple

# seconds. A large process takes a while to die, and an earlier kill hit another process
LATELY = 10.0
BETWEEN = 1.0  # minimum seconds between two looks
SYSTEM = "/proc/vmstat"  # counters of the whole machine, if no control group is readable


class Memory:
    """The counter of one process's group. Look at it now and then while the process lives."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._path = ""
        self._seen: List[Tuple[float, str, int]] = []
        self.look()

    def look(self) -> None:
        """Read the counter while the process lives. The process may have moved to another group."""
        now = time.monotonic()
        if self._seen and now - self._seen[-1][0] < BETWEEN:
            return
        self._path = next((path for path in _counters(self._pid) if _count(path) >= 0), self._path)
        self._seen.append((now, self._path, max(_count(self._path), 0)))
        old_samples = [sample for sample in self._seen if sample[0] <= now - LATELY]
        # `kill_evidence` compares with the newest of them
        self._seen = self._seen[max(len(old_samples) - 1, 0) :]

    def kill_evidence(self) -> str:
        """What shows that a process of the group was killed since `LATELY` before the last look, ""
        if nothing does."""
        earlier_count = next((count for _, path, count in self._seen if path == self._path), 0)
        count_now = _count(self._path)
        if count_now > earlier_count:
            return "oom_kill rose from {} to {} in {}".format(earlier_count, count_now, self._path)
        return ""


def _count(path: str) -> int:
    """-1 if there is no such counter."""
    with contextlib.suppress(OSError, ValueError), open(path) as stream:
        for line in stream:
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return -1


def _counters(pid: int) -> List[str]:
    """Files with an `oom_kill` line for the group of a process: version 2 first, then the memory
    controller of version 1, then the machine. Empty if the process is gone."""
    try:
        with open("/proc/{}/cgroup".format(pid)) as stream:
            lines = stream.read().splitlines()
    except OSError:
        return []
    paths = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            paths.append(os.path.join("/sys/fs/cgroup", path.lstrip("/"), "memory.events"))
        elif "memory" in controllers.split(","):
            paths.append(
                os.path.join("/sys/fs/cgroup/memory", path.lstrip("/"), "memory.oom_control")
            )
    return [*paths, SYSTEM]
