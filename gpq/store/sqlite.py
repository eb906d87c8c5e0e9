"""The store that remembers: SQLite in WAL mode, synced before every return. One writer, which its
epoch tells from others.

It refuses what it cannot keep: a network file system, a newer or damaged database, a full disk, a
second writer.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from itertools import chain

from gpq.core.model.events import EPHEMERAL, Event, JobsRemoved, Submitted
from gpq.core.model.jobs import Job
from gpq.core.model.snapshot import Snapshot
from gpq.errors import GpqError, Refused, StoreFailed
from gpq.folders import make_private
from gpq.store import disk, rows, takeover
from gpq.store.opening import (
    PUT_META,
    check_mark,
    check_pages,
    connect,
    create,
    explain,
    migrate,
    transaction,
)
from gpq.store.packing import PUT_DICTIONARY, Packer, Unpacker
from gpq.store.past import JOB_COLUMNS, Past
from gpq.store.rows import Row
from gpq.store.takeover import Marks

_JOBS = f"SELECT {JOB_COLUMNS} FROM jobs"
_EVENTS = "SELECT kind, checksum, plain(body) FROM events"
_PUT_JOB = (
    "INSERT INTO jobs (id, state, user, name, ended_at, checksum, body) VALUES (?, ?, ?, ?, ?, ?,"
    " ?) ON CONFLICT (id) DO UPDATE SET state = excluded.state, name = excluded.name, ended_at ="
    " excluded.ended_at, checksum = excluded.checksum, body = excluded.body"
)
# of the journal all but the newest, whose number must not come again
_REMOVE = (
    "INSERT OR IGNORE INTO removed (id) VALUES (?)",
    "DELETE FROM jobs WHERE id = ?",
    "DELETE FROM events WHERE job = ? AND seq < (SELECT max(seq) FROM events)",
)
_PUT_EVENT = "INSERT INTO events (at, kind, job, version, checksum, body) VALUES (?, ?, ?, ?, ?, ?)"
Writes = Sequence[tuple[str, Sequence[Row]]]  # statements with their rows


class SqliteStore(Past):
    """`SqliteStore(path)` opens or creates the database and raises its epoch, so that an earlier
    writer can write no more.

    Writes come from one thread. `history`, `events` and `ended_count` may come from any. `first_id`
    is the least id for a new job, because servers may still have attempts of a lost database, or of
    one that was replaced by a backup. `marks` is the path of the marks file, which tells whether
    the database was restored from a copy, or "". `notes` are for the log.
    """

    def __init__(self, path: str, *, first_id: int = 1, marks: str = "") -> None:
        self.path = path
        self.notes: list[str] = []
        folder = os.path.dirname(path)
        disk.refuse_network(folder)
        make_private(folder)
        self._reserve = disk.Reserve(path + ".reserve")
        self._failed = ""
        try:
            is_new = not os.path.exists(path)
            if is_new:
                if os.path.exists(path + "-wal"):  # SQLite would apply it to the new database
                    raise disk.damage_error(path, "it is missing, but its log is still there")
                create(path)
            check_mark(path)
            self._writer = connect(path)
            with contextlib.ExitStack() as undo:
                undo.callback(self._writer.close)
                check_pages(self._writer, path)
                migrate(self._writer)
                self._reader = connect(path)
                undo.callback(self._reader.close)
                self._reader.execute("PRAGMA query_only = 1")
                super().__init__(self._reader, path)
                self._take_over(first_id, marks, is_new)
                self._packer = Packer(self._writer)  # earlier writers add no more dictionaries
                (self.id,) = self._reader.execute(
                    "SELECT value FROM meta WHERE key = 'id'"
                ).fetchone()
                self._state = self._read_state()
                (self._ended,) = self._reader.execute(
                    "SELECT count(*) FROM jobs WHERE ended_at IS NOT NULL"
                ).fetchone()
                undo.pop_all()
        except sqlite3.Error as error:
            raise explain(error, path) from error
        self._reserve.take()

    # -- writing -----------------------------------------------------------------------------------

    def load(self) -> Snapshot:
        return self._state

    def commit(
        self, events: Sequence[Event], snapshot: Snapshot, ended: Sequence[Job] = ()
    ) -> None:
        if self._failed:
            raise StoreFailed(self._failed)
        before = self._state
        rows.check_outcomes(before, snapshot, ended)
        stored_job = before.jobs.get
        changed_jobs = [job for name, job in snapshot.jobs.items() if stored_job(name) is not job]
        self._mark(snapshot.next_id - 1, max((job.attempt for job in changed_jobs), default=0))
        journal = [event for event in events if not isinstance(event, EPHEMERAL)]
        prior_rows, prior_keys = rows.prior_changes(before.priors, snapshot.priors, snapshot.now)
        packer, jobs = self._packer, (*changed_jobs, *ended)
        removals = (event.jobs for event in events if isinstance(event, JobsRemoved))
        needed_ids = {need.job for job in jobs for need in job.spec.after}
        removed_ids = set(chain.from_iterable(removals)) - needed_ids - {job.id for job in jobs}
        writes: Writes = [
            *((statement, [(name,) for name in removed_ids]) for statement in _REMOVE),
            (_PUT_JOB, [rows.job_row(job, snapshot.now, packer) for job in jobs]),
            (_PUT_EVENT, [rows.event_row(event, packer) for event in journal]),
            (PUT_DICTIONARY, packer.new_rows()),
            (PUT_META, rows.meta_rows(before, snapshot)),
            (rows.PUT_PRIOR, prior_rows),
            (rows.DROP_PRIOR, prior_keys),
        ]
        if any(table_rows for _, table_rows in writes):
            self._write(writes, adds=any(isinstance(event, Submitted) for event in journal))
            packer.forget_new()
        self._state = rows.durable_part(snapshot)
        # some of these had ended before, and so had jobs that came back
        again = sum(getattr(event, "past", None) is not None for event in events)
        self._ended += len(ended) - again - len(removed_ids)

    def _write(self, writes: Writes, *, adds: bool) -> None:
        """One transaction. On a full disk it refuses new jobs (`adds`). Everything else may use the
        reserve."""
        if adds and not self._reserve.take():
            raise disk.full(self.path)
        if not self._try_write(writes):
            if adds:
                raise disk.full(self.path)
            self._reserve.release()
            self._make_room()
            if not self._try_write(writes):
                raise disk.full(self.path)
        if not self._reserve.held:
            # otherwise the log would use the space that the database needs to take it in
            self._make_room()

    def _try_write(self, writes: Writes) -> bool:
        """False if the disk is full and nothing was written. Raises StoreFailed if another daemon
        has taken over since."""
        try:
            with transaction(self._writer):
                query = "SELECT value FROM meta WHERE key = 'epoch'"
                (epoch,) = self._writer.execute(query).fetchone()
                if int(epoch) != self.epoch:
                    self._failed = "another daemon has taken over this state: this one stops"
                    raise StoreFailed(self._failed)
                for statement, values in writes:
                    self._writer.executemany(statement, values)
        except sqlite3.Error as error:
            if disk.is_full(error, os.path.dirname(self.path)):
                return False
            raise self._fail(error) from error
        return True

    def _make_room(self) -> None:
        """Move the log into the database, so that new entries reuse the log's own space."""
        with contextlib.suppress(sqlite3.Error):
            self._writer.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    def _fail(self, error: sqlite3.Error) -> GpqError:
        """What an error of the database means. If a write may or may not be lost, the writer
        ends."""
        if "locked" in str(error) or "busy" in str(error):
            return Refused(
                f"the database {self.path} is locked by another process. gpq changed nothing",
                "end the process that reads it (a backup, a database browser) and try again",
            )
        self._failed = f"gpq can no longer write the state to {self.path}: {error}"
        return StoreFailed(
            self._failed,
            "check the disk (dmesg), then run `gpq daemon start`. Running jobs keep running",
        )

    def _take_over(self, first_id: int, path: str, is_new: bool) -> None:
        """Raise the epoch, first in the database and then in its marks."""
        self._marks_path = path
        old_marks, problem = takeover.read_marks(path) if path else (None, "")
        if problem and not is_new:
            self.notes.append(
                f"{path} {problem}, so gpq writes it again. It cannot tell whether the database is"
                " an old copy"
            )
        try:
            marks, self.secret, note = takeover.succeed(self._writer, old_marks, first_id)
        except (KeyError, ValueError, TypeError) as error:
            raise disk.damage_error(self.path, f"table meta or jobs: {error}") from None
        if note:
            self.notes.append(note)
        self._marks, self.epoch = marks, marks.epoch
        if path:
            self._write_marks(marks)

    def _mark(self, ids: int, attempts: int) -> None:
        """Runs before these numbers are acknowledged. It seldom writes."""
        marks = self._marks
        if not self._marks_path or marks.covers(ids=ids, attempts=attempts):
            return
        later, _ = takeover.read_marks(self._marks_path)
        if later is not None and later.store == marks.store and later.epoch > marks.epoch:
            return  # a newer daemon's, so the commit that follows fails
        ids = takeover.next_ceiling(marks.ids, ids, takeover.ID_BLOCK)
        attempts = takeover.next_ceiling(marks.attempts, attempts, takeover.ATTEMPT_BLOCK)
        self._write_marks(Marks(marks.store, marks.epoch, ids, attempts))

    def _write_marks(self, marks: Marks) -> None:
        """Nothing changes if this fails."""
        try:
            takeover.write_marks(self._marks_path, marks)
        except OSError as error:
            if error.errno in takeover.FULL:
                raise disk.full(self.path) from error
            message = f"cannot write {self._marks_path}: {error.strerror}. gpq changed nothing"
            raise Refused(message, "make it writable, or remove it") from error
        self._marks = marks

    def _read_state(self) -> Snapshot:
        meta = dict(self._reader.execute("SELECT key, value FROM meta").fetchall())
        try:
            jobs = {job.id: job for job in self.live_jobs()}
        except rows.Damaged as error:
            raise disk.damage_error(self.path, str(error)) from None
        try:
            return rows.state_of(meta, jobs, rows.read_priors(self._reader, self._writer))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise disk.damage_error(self.path, f"table meta: {error}") from None

    # -- reading -----------------------------------------------------------------------------------

    def holds(self) -> bool:
        """Is this still the latest daemon to have opened the database? From any thread. False if
        that cannot be read."""
        try:
            [(epoch,)] = self.read("SELECT value FROM meta WHERE key = 'epoch'", ())
        except (GpqError, ValueError):
            return False
        return int(str(epoch)) == self.epoch and not self._failed

    def ended_count(self) -> int:
        return int(self._ended)

    def backup(self) -> None:
        """Copy the database next to it, as a whole, and put the copy in the place of the last one
        if every row in it is sound. Raises GpqError, and the last copy then stays."""
        target = path_of(self.path)
        new_path = target + ".new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new_path)
        try:
            with contextlib.closing(connect(self.path)) as source:
                source.execute("VACUUM INTO ?", (new_path,))
            with contextlib.closing(sqlite3.connect(new_path, isolation_level=None)) as copy:
                _check(copy)
                copy.execute(PUT_META, (takeover.COPY, "1"))
            os.replace(new_path, target)
        except rows.Damaged as error:
            raise disk.damage_error(self.path, str(error), is_served=True) from None
        except sqlite3.Error as error:
            raise explain(error, self.path, is_served=True) from error
        except OSError as error:
            raise GpqError(f"cannot write {target}: {error.strerror}") from error
        finally:
            with contextlib.suppress(OSError):
                os.unlink(new_path)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


def path_of(database: str) -> str:
    """Of the second copy."""
    return database + ".backup"


def _check(copy: sqlite3.Connection) -> None:
    """Raises rows.Damaged. Priors are not checked, because a damaged one costs only itself."""
    Unpacker(copy)
    for row in copy.execute(_JOBS):
        rows.check_job_row(row)
    for columns in copy.execute(_EVENTS):
        rows.check_event(*columns)
    meta = dict(copy.execute("SELECT key, value FROM meta").fetchall())
    try:
        rows.state_of(meta, {}, {})
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise rows.Damaged(f"table meta: {error}") from None
