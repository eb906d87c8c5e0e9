"""The table of priors: what earlier jobs measured. A damaged row costs only its own content, and
gpq starts without it."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Mapping

from gpq.core.model.profile import Prior
from gpq.core.model.units import Seconds
from gpq.store import rows

PUT = (
    "INSERT INTO priors (key, checksum, body, updated_at) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO"
    " UPDATE SET checksum = excluded.checksum, body = excluded.body, updated_at ="
    " excluded.updated_at"
)
DROP = "DELETE FROM priors WHERE key = ?"
# As bytes: otherwise a damaged text would be an error of the whole query.
_READ = (
    "SELECT rowid, CAST(key AS BLOB), checksum, CAST(body AS BLOB), updated_at FROM priors ORDER BY"
    " updated_at, rowid"
)

Row = tuple[object, ...]

log = logging.getLogger(__name__)


def changes(
    before: Mapping[str, Prior], after: Mapping[str, Prior], now: Seconds
) -> tuple[list[Row], list[Row]]:
    """Rows for PUT and for DROP that turn the first into the second."""
    if before is after:
        return [], []
    put = [_row(key, prior, now) for key, prior in after.items() if before.get(key) is not prior]
    return put, [(key,) for key in before if key not in after]


def _row(key: str, prior: Prior, now: Seconds) -> Row:
    body, at = rows.encode(prior), float(now)
    return key, rows.checksum(key, at, body), body, at


def read(reader: sqlite3.Connection, writer: sqlite3.Connection) -> dict[str, Prior]:
    """All sound priors, oldest first. The others are removed, with a line in the log."""
    priors: dict[str, Prior] = {}
    damaged: list[Row] = []
    for number, *columns in reader.execute(_READ).fetchall():
        entry = _sound(*columns)
        if entry is None:
            damaged.append((number,))
        else:
            priors[entry[0]] = entry[1]
    with contextlib.suppress(sqlite3.Error):  # they can wait for the next start
        writer.executemany("DELETE FROM priors WHERE rowid = ?", damaged)
    return priors


def _sound(*columns: object) -> tuple[str, Prior] | None:
    try:
        return _decode(*columns)
    except rows.Damaged as error:
        log.warning("dropped damaged data that earlier jobs of a program measured: %s", error)
        return None


def _decode(key: object, checksum: object, body: object, at: object) -> tuple[str, Prior]:
    """Key and prior. Raises Damaged."""
    if not isinstance(key, bytes) or not isinstance(body, bytes):
        raise rows.Damaged("a row has no text")
    try:
        name, text = key.decode(), body.decode()
    except UnicodeDecodeError as error:
        raise rows.Damaged(str(error)) from None
    if rows.checksum(name, at, text) != checksum:
        raise rows.Damaged(f"{name!r} has a wrong checksum")
    return name, rows.decode(text, Prior)
