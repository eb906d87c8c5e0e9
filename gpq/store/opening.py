"""Opens, creates and migrates the database file. Refuses a file that is not a database, is damaged,
or belongs to something else. Each version of the database is one function, run in one transaction
together with the record that it ran."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator

from gpq.errors import GpqError, Refused
from gpq.store import disk

APPLICATION_ID = 0x67707131  # "gpq1": tells our databases from others
BUSY_SECONDS = 60.0  # wait this long for another process that reads or backs up the database
# gpq does not read a larger database in full at the start, but checks its rows when it reads them
CHECK_BYTES = 32 << 20
PUT_META = (
    "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value ="
    " excluded.value"
)


def connect(path: str) -> sqlite3.Connection:
    """A connection that syncs its log at every commit. Writer and reader differ only in
    `query_only`."""
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # KiB: history is read in passing and not kept
        connection.execute("PRAGMA cache_size = -2048")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything is written, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise


def create(path: str) -> None:
    """A new database appears as a whole or not at all, so an empty file in its place is always
    damage."""
    new_path = path + ".new"
    for leftover in (new_path, new_path + "-wal", new_path + "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(leftover)
    with contextlib.closing(connect(new_path)) as connection:
        os.chmod(new_path, 0o600)
        migrate(connection)
        with transaction(connection):
            connection.executemany(PUT_META, [("epoch", "0"), ("next_id", "1")])
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.rename(new_path, path)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_mark(path: str) -> None:
    """Raises Refused for a file that is not ours. It reads the header itself, because opening the
    file in SQLite may change it."""
    with open(path, "rb") as stream:
        header = stream.read(100)
    if not header:
        raise disk.damage_error(path, "it is empty")
    if len(header) < 100 or header[:16] != b"SQLite format 3\0":
        raise disk.damage_error(path, "it is not a database")
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise disk.damage_error(path, "it is not one of gpq's databases")


def check_pages(connection: sqlite3.Connection, path: str) -> None:
    """Raises Refused for a database with inconsistent pages."""
    if os.path.getsize(path) <= CHECK_BYTES:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise disk.damage_error(path, verdict.splitlines()[-1])


def explain(error: sqlite3.Error, path: str, *, is_served: bool = False) -> GpqError:
    """An error of SQLite while opening or reading, as one line for the user. `is_served`: by a
    daemon that runs."""
    if disk.is_full(error, os.path.dirname(path)):
        return disk.full(path)
    if damage := disk.damage_in(error):
        return disk.damage_error(path, damage, is_served=is_served)
    return Refused(
        f"the database {path} cannot be used: {error}",
        "see the daemon's log. gpq did not change the file",
    )


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


def m004_long_past(connection: sqlite3.Connection) -> None:
    """Packed bodies (gpq.store.packing), and indexes that list ended jobs without their bodies and
    find the journal of a time. Older rows stay as they are."""
    connection.execute(
        "CREATE TABLE dictionaries (id INTEGER PRIMARY KEY, key TEXT NOT NULL, body BLOB NOT NULL)"
    )
    connection.execute("DROP INDEX jobs_ended")
    connection.execute(
        "CREATE INDEX jobs_past ON jobs (ended_at, id, user, state, name) WHERE ended_at IS NOT"
        " NULL"
    )
    connection.execute("DROP INDEX events_kind")
    connection.execute("CREATE INDEX events_at ON events (at)")


def m005_removed(connection: sqlite3.Connection) -> None:
    """The ids of jobs that were removed with everything about them. Servers remove their files."""
    connection.execute("CREATE TABLE removed (id INTEGER PRIMARY KEY)")


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    m001_jobs_events_meta,
    m002_priors,
    m003_identity,
    m004_long_past,
    m005_removed,
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
                "this database is not gpq's: it has other tables", "set GPQ_HOME to another folder"
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
        with transaction(connection):
            if number == 1:
                connection.execute(
                    "CREATE TABLE migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL)"
                )
            step(connection)
            connection.execute(
                "INSERT INTO migrations (version, name) VALUES (?, ?)", (number, step.__name__)
            )
