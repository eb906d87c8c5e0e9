"""Copies the state soon after a start, every hour, and at the end."""

from __future__ import annotations

import logging
import os
import time

from gpq.errors import GpqError
from gpq.store.sqlite import SqliteStore, path_of

EVERY_SECONDS = 3600.0
FIRST_SECONDS = 60.0  # if the last one is older than that, or there is none
AGAIN_SECONDS = 600.0  # after one that failed
# a starting daemon makes another backup if the last one is older than this,
FRESH_SECONDS = 300.0
START_SECONDS = 3.0  # after this long: whoever waited for the daemon comes first

log = logging.getLogger("gpq.daemon")


class Backups:
    """Of the database of `store`, however often the daemon was started in the last hour."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._fault = ""
        self._wait(START_SECONDS, FRESH_SECONDS)

    def seconds_until_due(self) -> float:
        return max(self._due_at - time.monotonic(), 0.0)

    def write(self) -> None:
        try:
            self._store.backup()
            self._fault = ""
            self._wait(FIRST_SECONDS, EVERY_SECONDS)
        except GpqError as error:
            hint = f" ({error.hint})" if error.hint else ""
            self._fault = f"gpq cannot back up its state: {error.message}{hint}"
            log.warning("%s", self._fault)
            self._wait(AGAIN_SECONDS, EVERY_SECONDS)

    def warnings(self) -> list[str]:
        """Why the last attempt failed, for users. From any thread."""
        fault = self._fault
        return [fault] if fault else []

    def _wait(self, least: float, most: float) -> None:
        path = path_of(self._store.path)
        self._due_at = time.monotonic() + seconds_until_backup(path, least, most)


def seconds_until_backup(path: str, least: float, most: float) -> float:
    """From `least` to `most`, until the last backup is as old as `most`."""
    try:
        age = time.time() - os.path.getmtime(path)
    except OSError:  # there is none
        return least
    return min(max(most - age, least), most)
