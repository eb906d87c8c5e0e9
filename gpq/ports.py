"""What the loop needs from outside: a world (time and machines) and a store. Protocols only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpq.core.actions import Action
from gpq.core.events import Event
from gpq.core.models import Seconds, Snapshot


class World(Protocol):
    """Time and machines. `LiveWorld` waits, `SimWorld` jumps."""

    def now(self) -> Seconds: ...

    def wait(self, until: Seconds) -> Sequence[Event] | None:
        """Events since the last call; returns at the first one or at `until`. None: nothing will ever come again."""

    def perform(self, action: Action) -> None:
        """Never blocks, never raises: what comes of it comes back as events."""


class Store(Protocol):
    """Durable memory. One writer."""

    def load(self) -> Snapshot:
        """The state as of the last commit: live jobs and the next id; nodes and config are not remembered."""

    def commit(self, events: Sequence[Event], snapshot: Snapshot) -> None:
        """All or nothing, durable on return. Raises GpqError when the disk refuses; then nothing was written."""
