"""Reads all jobs of a database that another process may be writing: for reports and simulations. Changes nothing in it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from gpq.core.models import Job
from gpq.errors import NotFound, Refused
from gpq.store import disk, rows
from gpq.store.migrations import MIGRATIONS, version_of
from gpq.store.opening import BUSY_SECONDS, check_mark, explained

_COLUMNS = "id, state, user, name, ended_at, checksum, body"


def read_jobs(path: str) -> list[Job]:
    """Every job there is, ended or not, by id. Raises NotFound where there is no database, Refused where it is damaged
    or newer than this program."""
    if not os.path.exists(path):
        raise NotFound(f"there is no history at {path}", "it is written when the first job is submitted")
    check_mark(path)
    try:
        connection = sqlite3.connect(Path(path).absolute().as_uri() + "?mode=ro", uri=True, timeout=BUSY_SECONDS)
        with contextlib.closing(connection):
            if version_of(connection) > len(MIGRATIONS):
                raise Refused(f"{path} was written by a newer gpq", "use that gpq")
            found = connection.execute(f"SELECT {_COLUMNS} FROM jobs ORDER BY id").fetchall()
    except sqlite3.Error as error:
        raise explained(error, path) from error
    try:
        return [_job(row) for row in found]
    except rows.Damaged as error:
        raise disk.damaged(path, str(error)) from None


def _job(row: tuple[object, ...]) -> Job:
    *columns, checksum, body = row
    if rows.checksum(*columns, body) != checksum:
        raise rows.Damaged(f"job {row[0]} has another checksum")
    return rows.decode(str(body), Job)
