"""Opens and creates the database file. Refuses a file that is not a database, is damaged, or
belongs to something else."""

from __future__ import annotations

import contextlib
import os
import sqlite3

from gpq.errors import GpqError, Refused
from gpq.store import disk
from gpq.store.migrations import APPLICATION_ID, migrate

BUSY_SECONDS = 60.0  # wait this long for another process that reads or backs up the database
# gpq does not read a larger database in full at the start, but checks its rows when it reads them
CHECK_BYTES = 256 << 20

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
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(PUT_META, [("epoch", "0"), ("next_id", "1")])
        connection.execute("COMMIT")
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
