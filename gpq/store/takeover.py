"""A daemon takes over a database: its epoch, and what follows if the database is older than the
work done with it. Marks next to the database say that: numbers that must never go back, even if
somebody replaces the database with a copy.

marks.json      {"store": id of the database, "epoch": of its latest daemon, "ids", "attempts": the
                largest numbers that were used}

The file is written before a larger number is acknowledged, as a whole or not at all, and durably.
On a full disk it is overwritten in place.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import sqlite3
import time
from dataclasses import asdict, dataclass, replace

from gpq_agent import wire

from gpq.core.model.jobs import Job, JobState
from gpq.store import rows
from gpq.store.opening import PUT_META, transaction

# seconds for which jobs of a copy do not start: servers first report what has run there since
PATIENCE = 10.0
# a key of meta that only a backup has. If the database has it, somebody put the backup in its place
COPY = "copy"
ID_BLOCK = 100  # ids set aside at a time: one write of the file for a hundred submissions
ATTEMPT_BLOCK = 16
MARKS_BYTES = 256  # bytes of the file, so that it fits into its old blocks
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Marks:
    store: str
    epoch: int
    ids: int
    attempts: int

    def covers(self, *, ids: int, attempts: int) -> bool:
        return ids <= self.ids and attempts <= self.attempts


@dataclass(frozen=True, slots=True)
class Attempts:
    """What is needed of every job's row: the whole row is far more to read."""

    attempt: int = 0
    lost_attempts: tuple[int, int] = (0, 0)


def succeed(
    writer: sqlite3.Connection, marks: Marks | None, first_id: int
) -> tuple[Marks, str, str]:
    """Raise the epoch. Returns the new marks, which must be written before anybody learns the
    epoch, the secret of the database, from which those of attempts derive, and a note for the log,
    or "".

    If the database was restored from a copy, ids and attempts continue above those used since, and
    the lost ones are noted. They may run on servers, and gpq must not end them.

    This is one transaction, before the marks are written. A daemon killed in between leaves a
    database that is ahead of them.
    """
    with transaction(writer):
        meta = dict(writer.execute("SELECT key, value FROM meta").fetchall())
        store, epoch, is_copy = str(meta["id"]), int(meta["epoch"]), COPY in meta
        blank = Marks(store, 0, 0, 0)
        last_epoch = marks.epoch if marks is not None and marks.store == store else 0
        is_restored = is_copy or last_epoch > epoch
        # marks of another database count as well: its attempts may still run on servers
        is_behind = marks is not None and (is_restored or marks.store != store)
        base_marks = marks or blank
        floor = base_marks if is_behind else blank
        (last,) = writer.execute("SELECT coalesce(max(id), 0) FROM jobs").fetchone()
        next_id = max(int(meta["next_id"]), last + 1)
        begin = max(next_id, first_id, floor.ids + 1)
        if begin > next_id:  # the ids in between were lost
            lost_ids = [*json.loads(meta.get("lost_ids", "[]")), [next_id, begin - 1]]
            writer.executemany(
                PUT_META, [("lost_ids", json.dumps(lost_ids)), ("next_id", str(begin))]
            )
        attempts = _leap(writer, floor.attempts)
        epoch = 1 + max(epoch, last_epoch)
        secret = meta.get("secret") or secrets.token_hex()
        writer.executemany(PUT_META, [("epoch", str(epoch)), ("secret", secret)])
        writer.execute("DELETE FROM meta WHERE key = ?", (COPY,))
        new_marks = Marks(
            store,
            epoch,
            next_ceiling(base_marks.ids, begin, ID_BLOCK),
            next_ceiling(base_marks.attempts, max(attempts, floor.attempts) + 1, ATTEMPT_BLOCK),
        )
        note = ""
        if is_restored:
            note = (
                f"the database was restored from a copy: new jobs begin with {begin}. gpq leaves"
                " jobs alone that started after the copy"
            )
        return new_marks, secret, note


def _leap(writer: sqlite3.Connection, ceiling: int) -> int:
    """Later attempts of the live jobs get numbers above `ceiling`. Returns the greatest known
    number."""
    greatest = 0
    query = (
        "SELECT id, state, user, name, ended_at, checksum, body FROM jobs WHERE ended_at IS NULL"
        " ORDER BY id"
    )
    for *columns, checksum, body in writer.execute(query).fetchall():
        if rows.checksum(*columns, body) != checksum:
            continue  # applied as it is read
        attempts = rows.decode(str(body), Attempts)
        greatest = max(greatest, attempts.attempt, attempts.lost_attempts[1])
        if ceiling > max(attempts.attempt, attempts.lost_attempts[1]):
            job = rows.decode(str(body), Job)
            first, not_before = job.attempt + 1, job.not_before
            if any(job.lost_attempts):
                first = min(job.lost_attempts[0], first)
            if job.state is JobState.PENDING:
                not_before = max(not_before, time.time() + PATIENCE)
            new_body = rows.encode(
                replace(job, lost_attempts=(first, ceiling), not_before=not_before)
            )
            row = (rows.checksum(*columns, new_body), new_body, columns[0])
            writer.execute("UPDATE jobs SET checksum = ?, body = ? WHERE id = ?", row)
    return greatest


def next_ceiling(ceiling: int, number: int, block: int) -> int:
    """The least ceiling to write, never lower than before."""
    return ceiling if number <= ceiling else number - 1 + block


def read_marks(path: str) -> tuple[Marks | None, str]:
    """(the marks, why there are none)."""
    try:
        with open(path, encoding="utf-8") as stream:
            fields = json.loads(stream.read(4 * MARKS_BYTES))
        marks = Marks(*(fields[name] for name in ("store", "epoch", "ids", "attempts")))
    except FileNotFoundError:
        return None, "is missing"
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError):
        return None, "is damaged"
    numbers = (marks.epoch, marks.ids, marks.attempts)
    if type(marks.store) is not str or any(
        type(number) is not int or not 0 <= number < 1 << 53 for number in numbers
    ):
        return None, "is damaged"
    return marks, ""


def write_marks(path: str, marks: Marks) -> None:
    """Raises OSError. The old content then stays or is damaged."""
    if os.path.islink(path):  # not ours
        os.unlink(path)
    fields = {**asdict(marks), "pad": ""}
    fields["pad"] = " " * max(0, MARKS_BYTES - len(wire.encode(fields)))
    try:
        wire.write_json(path, fields)
    except OSError as error:
        if error.errno not in FULL or not _write_over(path, wire.encode(fields)):
            raise


def _write_over(path: str, line: bytes) -> bool:
    """Into the existing blocks of the file, less than a sector. False if it has none."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_size != len(line):
            return False
        os.pwrite(descriptor, line, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True
