"""What the loop needs from outside: a world (time and machines) and a store. Protocols only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpq.core.accounting.usage import Record
from gpq.core.model.actions import Action
from gpq.core.model.events import Event
from gpq.core.model.jobs import Job
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds


class World(Protocol):
    """Time and machines. `LiveWorld` waits, `SimWorld` jumps."""

    def now(self) -> Seconds: ...

    def wait(self, until: Seconds) -> Sequence[Event] | None:
        """Events since the last call; returns at the first one or at `until`. None: nothing will
        ever come again."""

    def perform(self, action: Action) -> None:
        """Never blocks, never raises: what comes of it comes back as events."""

    def wake(self) -> None:
        """End the `wait` that is going on, or the next one, at once. From any thread."""

    def publish(self, snapshot: Snapshot) -> None:
        """The newest committed snapshot: against it the world tells what a node lacks or has too
        much."""


class Store(Protocol):
    """Durable memory. One writer."""

    def load(self) -> Snapshot:
        """The state as of the last commit: live jobs, priors and the next id; nodes and config are
        not remembered."""

    def commit(
        self, events: Sequence[Event], snapshot: Snapshot, ended: Sequence[Job] = ()
    ) -> None:
        """All or nothing, durable on return. `ended` are the jobs that left `snapshot.jobs` with
        these events.

        Raises Refused when the disk is full: nothing was written, and the caller may try again
        later. Raises StoreFailed when the state can no longer be kept: the caller must end without
        acknowledging anything.
        """


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which of the jobs that ended: all that match everything that is given."""

    ids: Sequence[JobId] = ()  # these and those with these names
    names: Sequence[str] = ()
    user: str = ""
    states: Sequence[str] = ()
    since: Seconds | None = None  # ended then or later
    until: Seconds | None = None  # ended before
    limit: int | None = None


class History(Protocol):
    """What is remembered beyond the snapshot, read on demand. Safe to call from any thread."""

    def history(
        self,
        *,
        ids: Sequence[JobId] | None = None,
        names: Sequence[str] | None = None,
        user: str = "",
        states: Sequence[str] = (),
        limit: int | None = None,
    ) -> list[Job]:
        """Jobs that ended and match all that is given, the latest to end first."""

    def events(
        self, *, job: JobId | None = None, kinds: Sequence[type] = (), limit: int | None = None
    ) -> list[Event]:
        """The journal, oldest first; with `limit` its latest ones only."""

    def records(self, query: Wanted) -> list[Record]:
        """Of jobs that ended, the latest to end first. Other readers have their turns meanwhile."""

    def count(self, query: Wanted) -> int:
        """How many match, whatever `limit` says."""

    def journal(self, kinds: Sequence[type], since: Seconds = 0.0) -> Iterator[Event]:
        """The journal from `since` on, oldest first, read as it is asked for."""

    def ended_count(self) -> int:
        """How many jobs have ended."""
