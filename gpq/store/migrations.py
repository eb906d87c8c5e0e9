"""The versions of the database: one function each, run in one transaction together with the record
that it ran."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable

from gpq.errors import Refused

APPLICATION_ID = 0x67707131  # "gpq1": tells our databases from others


def m001_jobs_events_meta(connection: sqlite3.Connection) -> None:
    """Current state of every job, the journal, and a few numbers."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE jobs (id INTEGER PRIMARY KEY, state TEXT NOT NULL, user TEXT NOT NULL, name"
        " TEXT NOT NULL, ended_at REAL, checksum INTEGER NOT NULL, body TEXT NOT NULL)"
    )
    connection.execute("CREATE INDEX jobs_live ON jobs (id) WHERE ended_at IS NULL")
    connection.execute("CREATE INDEX jobs_ended ON jobs (ended_at, id) WHERE ended_at IS NOT NULL")
    connection.execute("CREATE INDEX jobs_name ON jobs (name) WHERE name <> ''")
    connection.execute(
        "CREATE TABLE events (seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, job"
        " INTEGER, version INTEGER NOT NULL, checksum INTEGER NOT NULL, body TEXT NOT NULL)"
    )
    connection.execute("CREATE INDEX events_job ON events (job, seq)")
    connection.execute("CREATE INDEX events_kind ON events (kind, seq)")


def m002_priors(connection: sqlite3.Connection) -> None:
    """What earlier jobs of each program measured."""
    connection.execute(
        "CREATE TABLE priors (key TEXT PRIMARY KEY, checksum INTEGER NOT NULL, body TEXT NOT NULL,"
        " updated_at REAL NOT NULL)"
    )


def m003_identity(connection: sqlite3.Connection) -> None:
    """An id for this database: epochs are compared within one database, and agents remember its
    id."""
    connection.execute("INSERT INTO meta (key, value) VALUES ('id', ?)", (uuid.uuid4().hex[:16],))


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    m001_jobs_events_meta,
    m002_priors,
    m003_identity,
)


def version_of(connection: sqlite3.Connection) -> int:
    """The version of this database, 0 for an empty one."""
    tables = {
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    if "migrations" not in tables:
        if tables:
            raise Refused(
                "this database is not gpq's: it has other tables",
                "set GPQ_HOME to another folder",
            )
        return 0
    (version,) = connection.execute("SELECT max(version) FROM migrations").fetchone()
    return int(version or 0)


def migrate(connection: sqlite3.Connection, *, upto: int = len(MIGRATIONS)) -> None:
    """Bring the database to version `upto`. Raises Refused if it is newer than this program."""
    version = version_of(connection)
    if version > len(MIGRATIONS):
        raise Refused(
            f"the state was written by a newer gpq (version {version}, this one knows"
            f" {len(MIGRATIONS)})",
            "use that gpq, or set GPQ_HOME to another folder. gpq changed nothing",
        )
    for number, step in enumerate(MIGRATIONS[version:upto], version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            if number == 1:
                connection.execute(
                    "CREATE TABLE migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL)"
                )
            step(connection)
            connection.execute(
                "INSERT INTO migrations (version, name) VALUES (?, ?)", (number, step.__name__)
            )
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
