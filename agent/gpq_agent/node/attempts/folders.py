"""The folder of an attempt, made before its shim starts."""

import contextlib
import fcntl
import os

from gpq_agent import wire
from gpq_agent.node.shim import start_order
from gpq_agent.node.spool import spool


def create(folder: str, order: wire.StartOrder) -> int:
    """Make the attempt's directory with everything that a shim needs. Return its lock, held.
    order.json comes last, because it makes the attempt real."""
    lock = -1
    try:
        with contextlib.suppress(FileExistsError):
            # an agent left it when it ended before it wrote the order
            os.mkdir(folder, 0o700)
        spool.reserve(os.path.join(folder, wire.EXIT))
        spool.reserve(os.path.join(folder, wire.STOP), count=2)
        spool.reserve(os.path.join(folder, wire.CONTROL))
        if order.control is not None:
            wire.write_json(os.path.join(folder, wire.CONTROL), order.control)
        lock = os.open(os.path.join(folder, spool.LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        wire.write_json(os.path.join(folder, wire.ORDER), order._asdict())
        return lock
    except OSError as error:
        if lock >= 0:
            os.close(lock)
        remove_unborn(folder)
        raise start_order.unwritable(error) from error


def remove_unborn(folder: str) -> None:
    """Undo `create` for an attempt that has no order yet."""
    try:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        pass  # without an order the directory means nothing
