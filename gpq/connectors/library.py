"""The folder that holds only gpq_agent. It is on the PYTHONPATH of scripts under gpq, and of users
who run a script without gpq."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import gpq_agent

from gpq.errors import GpqError
from gpq.folders import make_private


def library(home: str, *, renew: bool) -> str:
    """The folder in the state directory `home`, created if it is missing. Where gpq is installed,
    its neighbours would hide a script's own packages. `renew` makes it point to this gpq, even if
    another one is still there. Raises GpqError."""
    folder = os.path.join(home, "lib")
    link = os.path.join(folder, "gpq_agent")
    package = str(Path(gpq_agent.__file__).resolve().parent)
    temporary = f"{link}.{os.getpid()}"
    if not renew and os.path.isfile(os.path.join(link, "wire.py")):
        return folder
    make_private(folder)
    try:
        if not os.path.islink(link) or os.readlink(link) != package:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            os.symlink(package, temporary)
            os.replace(temporary, link)
    except OSError as error:
        raise GpqError(
            f"cannot write {folder}: {error.strerror}", "make it writable, or set GPQ_HOME"
        ) from error
    return folder
