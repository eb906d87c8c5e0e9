"""The second guard of a lease: a process next to the shim. It ends the attempt if the shim does
not, because the shim was killed or hangs while nobody reaches this server.

It only watches until the shim's own time for that is over. Any of shim, guard and agent can end the
attempt. The agent does it by adopting the attempt (attempts.py).
"""

import contextlib
import os
import signal
import time
from typing import Optional

from gpq_agent import records, wire
from gpq_agent.node.host import procs
from gpq_agent.node.shim import shim
from gpq_agent.node.shim.exit_record import write_exit
from gpq_agent.node.shim.leases import Lease, boottime
from gpq_agent.node.shim.process_tree import Tree
from gpq_agent.node.shim.supervise import GROUPS_AFTER
from gpq_agent.node.spool import spool
from gpq_agent.node.spool.shapes import Identity

PERIOD = 0.05  # seconds between two looks while it ends processes
RECORDED_WITHIN = 2.0  # seconds in which a shim that still works records the end itself


def spawn(place: spool.Spool, order: wire.StartOrder) -> None:
    """Start the guard of an attempt with a lease, before its shim. Raises OSError."""
    folder = place.folder(wire.attempt_key(order.job, order.attempt))
    shim.detach(folder, set(), lambda: Guard(place, order).run())


class Guard:
    """The guard of one attempt."""

    def __init__(self, place: spool.Spool, order: wire.StartOrder) -> None:
        self.key = wire.attempt_key(order.job, order.attempt)
        self.folder = place.folder(self.key)
        self.order = order
        self.boot = procs.boot_id()
        self.lease = Lease(place, order, self.boot)
        self.tree = Tree(place.mark(self.key), None)

    def run(self) -> None:
        while not self._is_over():
            if self.lease.is_guards():
                self._end()
                return
            time.sleep(self.lease.patience())

    def _is_over(self) -> bool:
        """Is its end recorded, or did nothing ever start?"""
        return os.path.lexists(os.path.join(self.folder, wire.EXIT)) or not os.path.isdir(
            self.folder
        )

    def _shim(self) -> Optional[procs.Process]:
        """None if it is gone."""
        path = os.path.join(self.folder, wire.SHIM)
        with contextlib.suppress(OSError, ValueError):
            record = records.read_shape(Identity, path)
            if record is not None and procs.lives(record, self.boot):
                return procs.read(int(record["pid"]))
        return None

    def _end(self) -> None:
        begin = time.monotonic()
        self._empty(begin)
        self._wait_for_shim()
        shim = self._shim()
        if shim is not None:  # it hangs, and still holds its locks
            procs.send(shim, signal.SIGKILL)
        self._empty(begin)
        if not self._is_over():
            self._record("its shim did not respond" if shim is not None else "its shim was gone")

    def _empty(self, begin: float) -> None:
        """Kill until no process of the tree is left."""
        while True:
            shim = self._shim()
            self.tree.root = shim.pid if shim is not None else None
            if not self.tree.signal_once(signal.SIGKILL):
                return
            if time.monotonic() > begin + GROUPS_AFTER:
                self.tree.signal_groups(signal.SIGKILL)
            time.sleep(PERIOD)

    def _wait_for_shim(self) -> None:
        deadline = time.monotonic() + RECORDED_WITHIN
        while time.monotonic() < deadline and not self._is_over():
            shim = self._shim()
            if shim is None or shim.state in ("T", "t"):
                return
            time.sleep(PERIOD)

    def _record(self, reason: str) -> None:
        record = wire.ExitRecord(
            self.order.job, self.order.attempt, None, None, False, None, started_at=0.0,
            ended_at=time.time(), note="{} ({})".format(self.lease.note(), reason), fenced=True,
            stamp=boottime(), boot_id=self.boot,
        )  # fmt: skip
        write_exit(self.folder, record)
