"""The folders and files of attempts in the spool, and what their training processes wrote there.
Damaged files are set aside."""

import contextlib
import fcntl
import itertools
import os
import struct
import time
from typing import Any, Dict, List, Optional

from gpq_agent import records, wire
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim import start_order
from gpq_agent.node.spool import shapes, spool
from gpq_agent.node.spool.shapes import MOST_BYTES, SHAPES
from gpq_agent.node.spool.spool import Spool

MOST_DAMAGE, LONGEST_DAMAGE = 20, 500  # lines of one attempt, and characters of each
MOST_ENTRIES = 4096  # looked at in the folder, where a job may put any number


class AttemptFiles:
    """The files of all attempts of `place`, by the attempt's key."""

    def __init__(self, place: Spool) -> None:
        self.spool = place
        self._orders: Dict[str, wire.StartOrder] = {}
        self._damage: Dict[str, List[str]] = {}  # sentences about files that were set aside

    def path(self, key: str, name: str) -> str:
        """The path of a file of the attempt."""
        return os.path.join(self.spool.folder(key), name)

    def read(self, key: str, name: str) -> Optional[Dict[str, Any]]:
        """Read a file of the attempt. None if there is none, or if it is damaged. A damaged file is
        set aside."""
        path = self.path(key, name)
        try:
            shape = SHAPES.get(name)
            if shape is None:
                return records.read_object(path)
            return records.read_shape(shape, path, MOST_BYTES)
        except records.Damaged as damage:
            self.note(key, records.put_away(damage))
        return self._bare_order(key)._asdict() if name == wire.ORDER else None

    def order(self, key: str) -> Optional[wire.StartOrder]:
        """The order of an attempt, None if there is no such attempt."""
        if key not in self._orders:
            content = self.read(key, wire.ORDER)
            if content is None:
                return None
            try:
                self._orders[key] = start_order.parse_order(content)
            except SpoolError as error:
                damage = records.Damaged(self.path(key, wire.ORDER), error.message)
                self.note(key, records.put_away(damage))
                self._orders[key] = self._bare_order(key)
        return self._orders[key]

    def _bare_order(self, key: str) -> wire.StartOrder:
        """Replace an order that cannot be read, because the attempt must not look as if it never
        existed. Its locks and the daemon know which devices it has."""
        job, attempt = wire.parse_attempt_key(key)
        order = wire.StartOrder(job, attempt, ["?"], "/", {}, ["?"], "black-box")
        with contextlib.suppress(OSError):  # otherwise this happens again
            wire.write_json(self.path(key, wire.ORDER), order._asdict())
        return order

    def mend(self, key: str) -> None:
        """Make its folder usable again if the job, or somebody else, made something else of it.
        Raises OSError."""
        words = shapes.mend_folder(self.spool.folder(key))
        if words:
            self._restore(key, words)

    def restore(self, key: str) -> None:
        """The attempt lives, but somebody removed its folder, or everything in it, perhaps the job
        itself. Make the folder again so that gpq can stop it."""
        folder = self.spool.folder(key)
        with contextlib.suppress(OSError):
            os.mkdir(folder, 0o700)
        self._restore(key, "its folder {} was removed".format(folder))

    def _restore(self, key: str, words: str) -> None:
        self.note(key, words)
        order = self._orders.get(key)
        if order is None:
            self._orders[key] = self._bare_order(key)
        else:
            wire.write_json(self.path(key, wire.ORDER), order._asdict())

    def damage(self, key: str) -> List[str]:
        """What was damaged among the attempt's files, one line each."""
        return list(self._damage.get(key, []))

    def note(self, key: str, line: str) -> bool:
        """Add a line about damage. Is it new, and not one of too many?"""
        lines, line = self._damage.setdefault(key, []), line[:LONGEST_DAMAGE]
        if line in lines or len(lines) >= MOST_DAMAGE:
            return False
        lines.append(line)
        return True

    def forget(self, key: str) -> None:
        """Forget everything about the attempt."""
        self._orders.pop(key, None)
        self._damage.pop(key, None)


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
    with contextlib.suppress(OSError):  # without an order the directory means nothing
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def pulses(folder: str) -> List[wire.Pulse]:
    """Pulses by rank. Leaves out processes without gpq's library, and invalid values."""
    layout = struct.Struct(wire.PULSE)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    heartbeats = []
    try:
        with os.scandir(folder) as entries:
            some = itertools.islice(entries, MOST_ENTRIES)
            names = [entry.name for entry in some if entry.name.startswith(wire.RANK)]
    except OSError:
        return []
    for name in names:
        rank = name[len(wire.RANK) :]
        with contextlib.suppress(OSError, ValueError, struct.error):
            with os.fdopen(records.open_plain(os.path.join(folder, name)), "rb") as stream:
                _, step, phase, since = layout.unpack(stream.read(layout.size))
            if 0 <= phase < len(wire.PHASES) and 0 <= since <= now:
                pulse = wire.Pulse(int(rank), step, wire.PHASES[phase], round(now - since, 1))
                if not wire.misfits(wire.Pulse, pulse._asdict()):
                    heartbeats.append(pulse)
    return sorted(heartbeats)
