"""The mark of a process in /proc/PID/environ, which shows what it was started with."""

import ctypes

from gpq_agent import wire

ENV_START, ENV_END = 47, 48  # fields 50 and 51 of /proc/PID/stat, counted after the name


def rename(mark: str) -> bool:
    """Write the mark of an attempt over that of the standby, where the kernel reads it. All forks
    have it from then on. False if that is not possible here."""
    name = wire.ENV_MARK.encode("ascii") + b"="
    try:
        with open("/proc/self/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
        begin, end = int(fields[ENV_START]), int(fields[ENV_END])
        if begin == 0 or len(mark) > len(wire.STANDBY_MARK):
            return False
        place = ctypes.string_at(begin, end - begin).find(name + wire.STANDBY_MARK.encode("ascii"))
        if place < 0:
            return False
        entry = (name + mark.encode("utf-8")).ljust(len(name) + len(wire.STANDBY_MARK), b"\0")
        ctypes.memmove(begin + place, entry, len(entry))
        with open("/proc/self/environ", "rb") as stream:
            return name + mark.encode("utf-8") in stream.read().split(b"\0")
    except (OSError, ValueError, IndexError):
        return False
