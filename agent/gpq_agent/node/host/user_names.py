"""How people, their processes, moments and sizes are named in the sentences that the agent tells.
Decides nothing."""

import os
import pwd
import time

DAY = 86400.0


def user_name(uid: int) -> str:
    """Login name, or the number of somebody whom this node does not know by name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def moment(seconds: float) -> str:
    """``14:02``, or ``2026-11-20 14:02`` where it is more than 20 hours ago: of this node's wall
    clock."""
    recent = time.time() - seconds < DAY * 20 / 24
    return time.strftime("%H:%M" if recent else "%Y-%m-%d %H:%M", time.localtime(seconds))


def size(mib: int) -> str:
    """``11 GiB``, ``1.5 GiB``, ``300 MiB``."""
    if mib < 1024:
        return "{} MiB".format(mib)
    return "{:.0f} GiB".format(mib / 1024.0) if mib >= 10240 else "{:.1f} GiB".format(mib / 1024.0)


def user_of(pid: int) -> str:
    """Whose process it is, "" when it is gone."""
    try:
        return user_name(os.stat("/proc/{}".format(pid)).st_uid)
    except OSError:
        return ""
