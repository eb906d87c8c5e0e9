"""The folder of an attempt, which its job may write to. Whatever the job makes of it, gpq needs a
folder there."""

import os
import stat

from gpq_agent import records


def mend(folder: str) -> str:
    """Make it a folder that gpq can use again. Return what was wrong, "" if nothing was or if it is
    not there. Raises OSError."""
    try:
        mode = os.lstat(folder).st_mode
    except FileNotFoundError:
        return ""
    if not stat.S_ISDIR(mode):
        what = "it is a file" if stat.S_ISREG(mode) else records.kind(mode)
        words = records.put_away(records.Damaged(folder, what))
        if os.path.lexists(folder):
            os.unlink(folder)
        os.mkdir(folder, 0o700)
        return words
    if mode & stat.S_IRWXU == stat.S_IRWXU:
        return ""
    os.chmod(folder, 0o700)
    return "its folder {} had mode {:03o}".format(folder, mode & 0o777)
