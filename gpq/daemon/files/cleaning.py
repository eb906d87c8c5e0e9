"""Removes jobs that ended long ago from the database. Their files follow (garbage_collection).

A job that a live one comes after stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gpq.control import event_text
from gpq.control.controller import Controller
from gpq.core.model.events import JobsRemoved
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.ports import History, Wanted

DAY: Seconds = 86400.0
PAGE = 1000  # jobs in one transaction, so that other requests get their turns
log = logging.getLogger(__name__)


class Cleaning:
    """From any thread. `follow` is called after a removal, so that the files go at once."""

    def __init__(self, controller: Controller, past: History) -> None:
        self._controller = controller
        self._past = past
        self.follow: Callable[[], None] = lambda: None

    def old(self, before: Seconds) -> list[JobId]:
        """The jobs that may go: they ended before that moment, and the journal says nothing of them
        since. A server may report an old end only now."""
        return self._old(self._controller.snapshot, before)

    def expire(self, keep: str) -> None:
        """Remove the jobs that ended longer ago than `keep`, such as 90d. "": none. Raises
        GpqError."""
        if keep:
            self.remove(self._controller.world.now() - int(keep.removesuffix("d")) * DAY)

    def remove(self, before: Seconds) -> int:
        """Remove them, and return how many they were. Raises GpqError."""
        count = 0
        while page := self._controller.ask(lambda snapshot: self._remove(snapshot, before)):
            count += page
        if count:
            log.info("removed %d jobs that ended before %s", count, event_text.stamp(before))
            self.follow()
        return count

    def _old(self, snapshot: Snapshot, before: Seconds, limit: int | None = None) -> list[JobId]:
        needed = {need.job for job in snapshot.jobs.values() for need in job.spec.after}
        most = None if limit is None else limit + len(needed)
        ids = self._past.ids(Wanted(until=before, quiet_since=before, limit=most))
        return [name for name in ids if name not in needed and name not in snapshot.jobs][:limit]

    def _remove(self, snapshot: Snapshot, before: Seconds) -> tuple[list[JobsRemoved], int]:
        page = self._old(snapshot, before, PAGE)
        removal = [JobsRemoved(snapshot.now, tuple(page))] if page else []
        return removal, len(page)
