"""The second copy of the database. It replaces the last one only if every row in it is sound."""

from __future__ import annotations

import contextlib
import os
import sqlite3

from gpq.errors import GpqError
from gpq.store import disk, rows, takeover
from gpq.store.opening import PUT_META, connect, explain

_JOBS = "SELECT id, state, user, name, ended_at, checksum, body FROM jobs"
_EVENTS = "SELECT kind, checksum, body FROM events"


def path_of(database: str) -> str:
    return database + ".backup"


def write(database: str) -> None:
    """Copy the database at this path next to it, as a whole, and put the copy in the place of the
    last one. Raises GpqError, and the last copy then stays."""
    target = path_of(database)
    new_path = target + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new_path)
    try:
        with contextlib.closing(connect(database)) as source:
            source.execute("VACUUM INTO ?", (new_path,))
        with contextlib.closing(sqlite3.connect(new_path, isolation_level=None)) as copy:
            _check(copy)
            copy.execute(PUT_META, (takeover.COPY, "1"))
        os.replace(new_path, target)
    except rows.Damaged as error:
        raise disk.damage_error(database, str(error), is_served=True) from None
    except sqlite3.Error as error:
        raise explain(error, database, is_served=True) from error
    except OSError as error:
        raise GpqError(f"cannot write {target}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(new_path)


def _check(copy: sqlite3.Connection) -> None:
    """Raises rows.Damaged. Priors are not checked, because a damaged one costs only itself."""
    for row in copy.execute(_JOBS):
        rows.check_job_row(row)
    for columns in copy.execute(_EVENTS):
        rows.check_event(*columns)
    meta = dict(copy.execute("SELECT key, value FROM meta").fetchall())
    try:
        rows.state_of(meta, {}, {})
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise rows.Damaged(f"table meta: {error}") from None
