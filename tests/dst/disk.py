"""The head node's disk, and a store on it that may fail at every step of a commit.

`Disk` is what survives a kill. `DiskStore` is one daemon's access to it, fenced by its epoch like SqliteStore.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpq.core.model.events import Event
from gpq.core.model.jobs import Job
from gpq.core.model.snapshot import Snapshot
from gpq.errors import Refused, StoreFailed
from gpq.store import rows
from tests.dst.judge import Judge
from tests.dst.schedule import Violation
from tests.support.memory_store import MemoryStore


class Killed(BaseException):
    """The daemon gets a kill -9 here. No `except Exception` may catch it."""


class Disk:
    """What was committed. With `full`, it refuses every commit."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.memory = MemoryStore()
        self.epoch = 0
        self.full = False
        self.tokens: dict[int, str] = {}  # by id: the token of the submission

    def write(self, events: Sequence[Event], snapshot: Snapshot, ended: Sequence[Job]) -> None:
        try:
            self.memory.commit(events, snapshot, ended)
        except ValueError as error:  # the writer knew less than the disk
            raise Violation(f"I1: {error}") from None
        self.tokens.update({job.id: job.spec.argv[0] for job in (*snapshot.jobs.values(), *ended)})
        self.judge.durable(self)
        self.judge.committed(tuple(events), snapshot, tuple(ended))


class DiskStore:
    """`strike`: where the next commit fails: "" for nowhere, "before" or "after" it is durable."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        disk.epoch += 1
        self.epoch = disk.epoch
        self.strike = ""
        disk.judge.durable(disk)

    def load(self) -> Snapshot:
        """As a new process reads it: decoded from its text."""
        state = self.disk.memory.load()
        return replace(state, jobs={name: rows.decode(rows.encode(job), Job) for name, job in state.jobs.items()})

    def commit(self, events: Sequence[Event], snapshot: Snapshot, ended: Sequence[Job] = ()) -> None:
        strike, self.strike = self.strike, ""
        if strike == "before":
            raise Killed
        self.check_epoch()
        if self.disk.full:
            raise Refused("the disk is full")
        self.disk.write(events, snapshot, ended)
        if strike == "after":
            raise Killed

    def holds(self) -> bool:
        """Is this the daemon that opened the disk last?"""
        return self.disk.epoch == self.epoch

    def check_epoch(self) -> None:
        if not self.holds():
            raise StoreFailed("another daemon has taken over this state: this one stops")
