"""Names of users and processes, times and sizes in the agent's sentences. Decides nothing."""

import contextlib
import os
import time
from typing import Set

from gpq_agent.wire import user_name

DAY = 86400.0


def moment(seconds: float) -> str:
    """``14:02``, or ``2026-11-20 14:02`` if it is more than 20 hours ago, by this server's wall
    clock."""
    recent = time.time() - seconds < DAY * 20 / 24
    return time.strftime("%H:%M" if recent else "%Y-%m-%d %H:%M", time.localtime(seconds))


def size(mib: int) -> str:
    """``11 GiB``, ``1.5 GiB``, ``300 MiB``."""
    if mib < 1024:
        return "{} MiB".format(mib)
    return "{:.0f} GiB".format(mib / 1024.0) if mib >= 10240 else "{:.1f} GiB".format(mib / 1024.0)


def user_of(pid: int) -> str:
    """The owner of a process, "" if it is gone."""
    with contextlib.suppress(OSError):
        return user_name(os.stat("/proc/{}".format(pid)).st_uid)
    return ""


def present() -> Set[int]:
    """The ids of all users who have a process on this server, as far as this user may see them."""
    uids = {os.geteuid()}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it is gone
            uids.add(os.stat("/proc/" + name).st_uid)
    return uids
