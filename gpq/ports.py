"""What the loop and its requests need from outside: a world (time and machines), a store, its
history, and who asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpq.core.accounting.usage import Record
from gpq.core.model.actions import Action
from gpq.core.model.events import Event
from gpq.core.model.jobs import Job
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds


class World(Protocol):
    """Time and machines. `LiveWorld` waits. That of the tests jumps."""

    def now(self) -> Seconds: ...

    def wait(self, until: Seconds) -> Sequence[Event] | None:
        """Events since the last call. Returns at the first one or at `until`. None means that
        nothing will ever come again."""

    def perform(self, action: Action) -> None:
        """Never blocks and never raises. Its results come back as events."""

    def wake(self) -> None:
        """End the current `wait`, or the next one, at once. Any thread may call it."""

    def publish(self, snapshot: Snapshot) -> None:
        """The newest committed snapshot. The world compares it with each server to find what is
        missing or superfluous there."""


class Store(Protocol):
    """Durable memory with one writer."""

    def load(self) -> Snapshot:
        """The state at the last commit: live jobs, priors and the next id. It does not contain
        servers or settings."""

    def commit(
        self, events: Sequence[Event], snapshot: Snapshot, ended: Sequence[Job] = ()
    ) -> None:
        """All or nothing, and durable when it returns. `ended` are the jobs that left
        `snapshot.jobs` with these events.

        Raises Refused if the disk is full. Nothing was written then, and the caller may try again
        later. Raises StoreFailed if the store can no longer keep the state. The caller must then
        end without acknowledging anything.
        """


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs that ended: those that match every given condition."""

    ids: Sequence[JobId] = ()  # these and those with these names
    names: Sequence[str] = ()
    user: str = ""
    states: Sequence[str] = ()
    since: Seconds | None = None  # ended then or later
    until: Seconds | None = None  # ended before
    limit: int | None = None
    quiet_since: Seconds | None = None  # no event of them since, so that gpq knew their end by then


class History(Protocol):
    """What gpq remembers beyond the snapshot, read on demand. Any thread may call it."""

    def history(
        self,
        *,
        ids: Sequence[JobId] | None = None,
        names: Sequence[str] | None = None,
        user: str = "",
        states: Sequence[str] = (),
        limit: int | None = None,
    ) -> list[Job]:
        """Ended jobs that match every condition, the latest end first."""

    def events(
        self, *, job: JobId | None = None, kinds: Sequence[type] = (), limit: int | None = None
    ) -> list[Event]:
        """The journal, oldest first. With `limit` only the latest events."""

    def records(self, query: Wanted) -> list[Record]:
        """Ended jobs, the latest end first. Other readers get their turns in between."""

    def ids(self, query: Wanted) -> list[JobId]:
        """As `records`, but only their ids, so that nothing else is read."""

    def has_removed(self) -> bool:
        """Was any job removed for good?"""

    def removed_ids(self, ids: Sequence[JobId]) -> list[JobId]:
        """Those of `ids` that ended long ago and were removed for good, rising."""

    def count(self, query: Wanted) -> int:
        """How many match, regardless of `limit`."""

    def journal(self, kinds: Sequence[type], since: Seconds = 0.0) -> Iterator[Event]:
        """The journal from `since` on, oldest first, read as the caller asks for it."""

    def ended_count(self) -> int:
        """How many jobs have ended."""


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, as the kernel says. `crowded` tells whether others of the same user
    wait for a turn. `socket`: the path of that by which they came."""

    uid: int
    pid: int
    user: str
    crowded: Callable[[], bool]
    socket: str = ""


# (node, job, attempt, offset, limit) -> {"data": base64, "offset", "size"}. Raises NodeSilent when
# the node is
Tail = Callable[[NodeId, JobId, int, int, int], Mapping[str, Any]]
