"""Leases and epochs on a server: which daemon may give orders, and how long a job may run without
contact. Rules: wire.py.

<spool>/epoch.<store>.json      the highest epoch of that store's daemons that ever said hello:
                                {"epoch"}
<spool>/lease.<store>.json      the latest acknowledged report: {"boot_id", "stamp"}, padded,
                                overwritten in place
"""

import contextlib
import os
import re
import time
from typing import Any, List, NamedTuple

from gpq_agent import records, wire
from gpq_agent.node.host import procs
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool.spool import Spool


class Epoch(NamedTuple):
    """The highest epoch of a store."""

    epoch: int


class Renewal(NamedTuple):
    """The latest acknowledged report."""

    boot_id: str
    stamp: float


STORE = re.compile(r"[0-9A-Za-z-]{1,64}")
LEASE_BYTES = 128  # file size. No renewal needs a new block, so a full disk ends no job
KILL_SHARE = 1.0 / 3.0  # of the margin: from TERM to KILL
GUARD_SHARE = 1.0 / 2.0  # of the margin: from TERM to the second guard
# Share of the margin. The shim looks at the clock at least this often, because a timer would sleep
# through a suspend.
LOOK_SHARE = 1.0 / 6.0
LONGEST_LOOK = 1.0  # seconds


def boottime() -> float:
    """Seconds since boot, including sleep. Nobody can set it, and it never goes back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _epoch_name(store: str) -> str:
    return "epoch.{}.json".format(store)


def _lease_path(place: Spool, store: str) -> str:
    return os.path.join(place.path, "lease.{}.json".format(store))


class DaemonEpoch:
    """The daemon at the other end of one connection. Before it says who it is, everything is
    allowed and nothing is renewed."""

    def __init__(self, place: Spool, boot: str) -> None:
        self.spool = place
        self.boot = boot
        self.store = ""
        self.epoch = 0
        self._newest = 0.0  # stamp of the latest report on this connection
        self._renewed = float("-inf")
        self._descriptor = -1

    def greet(self, store: Any, epoch: Any) -> None:
        """Raises SpoolError if a newer daemon has taken over."""
        if store is None or store == "":  # a daemon before 0.2
            return
        if (
            not isinstance(store, str)
            or not STORE.fullmatch(store)
            or not isinstance(epoch, int)
            or epoch < 1
        ):
            problem = "hello: invalid store {!r} or epoch {!r}".format(store, epoch)
            raise SpoolError(problem, "see wire.py")
        with self.spool.lock():
            self.store, self.epoch = store, epoch
            self.admit()
            recorded = self._recorded_epochs()
            if len(recorded) < 2 or min(recorded) < epoch:  # one of the files may have been damaged
                self.spool.write_both(_epoch_name(store), {"epoch": epoch})

    def admit(self) -> None:
        """Raises SpoolError once a newer daemon of the same store has said hello to any agent of
        this spool."""
        if self.store and self._highest() > self.epoch:
            words = "a newer daemon has taken over: epoch {}, this one has {}"
            hint = "if its database was restored from a copy, remove {}*".format(
                os.path.join(self.spool.path, _epoch_name(self.store))
            )
            raise SpoolError(words.format(self._highest(), self.epoch), hint, "stale")

    def _recorded_epochs(self) -> List[int]:
        """The epochs in the file and its copy, as far as they exist and are valid."""
        return [
            int(record["epoch"]) for record in self.spool.read_both(Epoch, _epoch_name(self.store))
        ]

    def _highest(self) -> int:
        return max(self._recorded_epochs(), default=0)

    def stamp(self) -> float:
        """The stamp of a report that is being made."""
        self._newest = boottime()
        return self._newest

    def heard(self, stamp: Any, least_lease: float) -> None:
        """The daemon acknowledges a report. `least_lease`: the shortest lease at stake, in seconds.
        0: there is none."""
        if not isinstance(stamp, (int, float)) or not self.store or least_lease <= 0:
            return
        if stamp > self._newest or stamp < self._renewed + least_lease / 20:
            # a stamp of another connection, or almost the same as the recorded one
            return
        self.ready(self.store)
        line = wire.encode({"boot_id": self.boot, "stamp": stamp})
        os.pwrite(self._descriptor, line.rstrip().ljust(LEASE_BYTES - 1) + b"\n", 0)
        self._renewed = stamp

    def ready(self, store: str) -> None:
        """Make sure that there is a file with room for renewals. Raises SpoolError or OSError."""
        if store != self.store:
            problem = "a lease needs a daemon that has said hello: {!r}".format(store)
            raise SpoolError(problem, "send `hello` first")
        path = _lease_path(self.spool, store)
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.lstat(path), os.fstat(self._descriptor)):
                    return
            # somebody replaced the file, and shims see the new one
            os.close(self._descriptor)
            self._descriptor = -1
        try:
            descriptor = records.open_plain(path, os.O_RDWR)
        except FileNotFoundError:
            descriptor = _new(path)
        except records.Damaged as damage:
            self.spool.put_away(damage)
            descriptor = _new(path)
        size = os.fstat(descriptor).st_size
        if size > LEASE_BYTES:
            os.ftruncate(descriptor, LEASE_BYTES)
        elif size < LEASE_BYTES:
            os.pwrite(descriptor, b"{}".ljust(LEASE_BYTES - 1) + b"\n", 0)
        self._descriptor = descriptor


def _new(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


class Lease:
    """The shim's side: when must this attempt end?"""

    def __init__(self, place: Spool, order: wire.StartOrder, boot: str) -> None:
        self.seconds = order.lease
        self.margin = order.lease_margin
        self._path = _lease_path(place, order.store)
        self._boot = boot
        self._stamp = (
            order.stamp if order.stamp is not None and order.boot_id == boot else boottime()
        )

    def until_kill(self) -> float:
        """Seconds left for TERM to work. 0 if the machine slept through the end, because the daemon
        may not wait."""
        return max(0.0, self._stamp + self.seconds + self.margin * KILL_SHARE - boottime())

    def patience(self) -> float:
        """Seconds until the next look, infinite without a lease."""
        if self.seconds > 0:
            return min(LONGEST_LOOK, max(0.02, self.margin * LOOK_SHARE))
        return float("inf")

    def is_over(self) -> bool:
        """Has nobody acknowledged a report for `seconds`?"""
        if self.seconds <= 0:
            return False
        now = boottime()
        if now < self._stamp + self.seconds / 2:  # too early to read the file
            return False
        with contextlib.suppress(OSError, ValueError):
            # not there yet, or half written. The next look finds it complete
            record = records.read_shape(Renewal, self._path)
            if record is not None and record["boot_id"] == self._boot:
                self._stamp = max(self._stamp, float(record["stamp"]))
        return now >= self._stamp + self.seconds

    def is_guards(self) -> bool:
        """Is the time over in which the shim should have ended the attempt?"""
        return (
            self.is_over() and boottime() >= self._stamp + self.seconds + self.margin * GUARD_SHARE
        )

    def note(self) -> str:
        """The note for the exit record."""
        return "ended by its lease: no contact for {}".format(duration(self.seconds))


def duration(seconds: float) -> str:
    """``10 m``, ``90 s``."""
    if seconds >= 60 and seconds % 60 == 0:
        return "{:.0f} m".format(seconds / 60)
    return "{:g} s".format(seconds)


def age(order: wire.StartOrder) -> float:
    """Seconds since the stamp of an order. Infinite if it is not from this boot."""
    now = boottime()
    if order.stamp is None or order.boot_id != procs.boot_id() or order.stamp > now:
        return float("inf")
    return now - order.stamp
