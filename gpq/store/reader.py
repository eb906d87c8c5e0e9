"""Reads all jobs of a database that another process may be writing, for reports and simulations.
Changes nothing in it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpq.core.model.events import Held, Launched, Released
from gpq.core.model.jobs import Job
from gpq.core.model.units import JobId, Seconds
from gpq.errors import NotFound, Refused
from gpq.store import disk, rows
from gpq.store.opening import BUSY_SECONDS, MIGRATIONS, check_mark, explain, version_of

_JOBS = "SELECT id, state, user, name, ended_at, checksum, body FROM jobs ORDER BY id"
_HOLDS_AND_LAUNCHES = (
    "SELECT kind, checksum, body FROM events WHERE kind IN ('Held', 'Released', 'Launched') ORDER"
    " BY seq"
)


@dataclass(frozen=True, slots=True)
class Told:
    """What the journal says of jobs beyond their last state: how long each was held before its
    first launch, and which types of GPUs it had."""

    hold_seconds: dict[JobId, Seconds] = field(default_factory=dict)
    gpu_types: dict[JobId, set[str]] = field(default_factory=dict)


def read_jobs(path: str) -> list[Job]:
    """Every job, ended or not, by id. Raises NotFound if there is no database, and Refused if it is
    damaged or newer than this program."""
    with _open(path) as connection:
        return [rows.of_job_row(row, Job) for row in connection.execute(_JOBS)]


def read_told(path: str) -> Told:
    """Raises as `read_jobs` does."""
    facts, hold_starts, launched = Told(), dict[JobId, Seconds](), set[JobId]()
    with _open(path) as connection:
        for kind, checksum, body in connection.execute(_HOLDS_AND_LAUNCHES):
            if rows.checksum(kind, body) != checksum:
                raise rows.Damaged(f"an event {kind} has a wrong checksum")
            event = rows.decode_event(kind, body)
            match event:
                case Held():
                    hold_starts[event.job] = event.at
                case Released():
                    begin = hold_starts.pop(event.job, event.at)
                    if event.job not in launched:
                        facts.hold_seconds[event.job] = facts.hold_seconds.get(
                            event.job, 0.0
                        ) + max(event.at - begin, 0.0)
                case Launched():
                    launched.add(event.job)
                    facts.gpu_types.setdefault(event.job, set()).add(event.placement.gpu_type)
    return facts


@contextlib.contextmanager
def _open(path: str) -> Iterator[sqlite3.Connection]:
    """Read-only. Damage found while it is open becomes an error for the user."""
    if not os.path.exists(path):
        raise NotFound(
            f"there is no history at {path}", "gpq writes it when you submit the first job"
        )
    check_mark(path)
    try:
        connection = sqlite3.connect(
            Path(path).absolute().as_uri() + "?mode=ro", uri=True, timeout=BUSY_SECONDS
        )
        with contextlib.closing(connection):
            if version_of(connection) > len(MIGRATIONS):
                raise Refused(f"{path} was written by a newer gpq", "use that version of gpq")
            yield connection
    except sqlite3.Error as error:
        raise explain(error, path) from error
    except rows.Damaged as error:
        raise disk.damage_error(path, str(error)) from None
