"""gpq's own folders on this machine: only their owner may change what is in them."""

from __future__ import annotations

import os

from gpq_agent import wire

from gpq import paths
from gpq.errors import Refused


def make_private(folder: str) -> None:
    """Make it with mode 0700, whatever the umask, and the state directory before what is in it.
    Raises Refused if another user could change what is there, or if it cannot be made."""
    try:
        if folder.startswith(paths.home() + "/"):
            wire.make_private(paths.home())
        wire.make_private(folder)
    except wire.NotPrivate as error:
        raise Refused(str(error), f"{error.hint}. GPQ_HOME chooses gpq's folder") from None
    except OSError as error:
        raise Refused(
            f"cannot write in the state directory {folder}: {error.strerror}",
            "make it writable, or set GPQ_HOME to a folder that is",
        ) from None


def make_passable(folder: str) -> None:
    """Like `make_private`, but with mode 0711: others may open what they know the name of, as far
    as its own mode lets them."""
    make_private(folder)
    os.chmod(folder, 0o711)


def not_through_links(path: str, flags: int) -> int:
    """For `open`: a file that only its owner may read."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
