"""The store that remembers: SQLite in WAL mode, synced before every return. One writer, told from
others by its epoch.

Refuses what it cannot keep: a network file system, a newer or damaged database, a full disk, a
second writer.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence

from gpq.core.accounting.usage import Record
from gpq.core.model.events import EPHEMERAL, JOURNAL_VERSION, Event, Submitted
from gpq.core.model.jobs import TERMINAL, Job
from gpq.core.model.nodes import Reservation
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.errors import GpqError, Refused, StoreFailed
from gpq.ports import Wanted
from gpq.store import disk, journal_pages, links, priors, rows, share_averages, takeover
from gpq.store import high_water_marks as beside
from gpq.store.high_water_marks import Marks
from gpq.store.migrations import migrate
from gpq.store.opening import PUT_META, check_mark, check_pages, connect, create, explained

_PUT_JOB = (
    "INSERT INTO jobs (id, state, user, name, ended_at, checksum, body) VALUES (?, ?, ?, ?, ?, ?,"
    " ?) ON CONFLICT (id) DO UPDATE SET state = excluded.state, name = excluded.name, ended_at ="
    " excluded.ended_at, checksum = excluded.checksum, body = excluded.body"
)
_PUT_EVENT = "INSERT INTO events (at, kind, job, version, checksum, body) VALUES (?, ?, ?, ?, ?, ?)"
Writes = Sequence[tuple[str, Sequence[tuple[object, ...]]]]  # statements with their rows
_JOB_COLUMNS = "id, state, user, name, ended_at, checksum, body"


class SqliteStore:
    """`SqliteStore(path)` opens or creates the database and raises its epoch: an earlier writer can
    write no more.

    Writes from one thread; `history`, `events` and `ended_count` from any. `first_id` is the least
    id for a new job (attempts of a lost database, or of one that a backup was put in the place of,
    may still lie on the nodes). `marks`: path of the file beside it that tells whether it was
    restored from a copy; "" for none. `notes`: for the log.
    """

    def __init__(self, path: str, *, first_id: int = 1, marks: str = "") -> None:
        self.path = path
        self.notes: list[str] = []
        folder = os.path.dirname(path)
        disk.refuse_network(folder)
        disk.make_folder(folder)
        self._reserve = disk.Reserve(path + ".reserve")
        self._failed = ""
        try:
            is_new = not os.path.exists(path)
            if is_new:
                if os.path.exists(path + "-wal"):  # SQLite would play it into the new database
                    raise disk.damaged(path, "it is gone, and its log is still there")
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
                self._take_over(first_id, marks, is_new)
                (self.id,) = self._reader.execute(
                    "SELECT value FROM meta WHERE key = 'id'"
                ).fetchone()
                self._state = self._read_state()
                (self._ended,) = self._reader.execute(
                    "SELECT count(*) FROM jobs WHERE ended_at IS NOT NULL"
                ).fetchone()
                undo.pop_all()
        except sqlite3.Error as error:
            raise explained(error, path) from error
        self._reading = threading.Lock()
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
        missing_ids = {name for name in before.jobs if name not in snapshot.jobs} - {
            job.id for job in ended
        }
        if missing_ids:
            raise ValueError(f"jobs {sorted(missing_ids)} left the snapshot without an outcome")
        stored_job = before.jobs.get
        changed_jobs = [job for name, job in snapshot.jobs.items() if stored_job(name) is not job]
        self._mark(snapshot.next_id - 1, max((job.attempt for job in changed_jobs), default=0))
        journal = [event for event in events if not isinstance(event, EPHEMERAL)]
        meta = [
            (key, repr(new))
            for key, old, new in (
                ("next_id", before.next_id, snapshot.next_id),
                ("round_at", before.round_at, snapshot.round_at),
                ("next_reservation", before.next_reservation, snapshot.next_reservation),
            )
            if old != new
        ]
        if before.links != snapshot.links:
            meta.append(("links", links.encode(snapshot.links)))
        if before.drained != snapshot.drained:
            meta.append(("drained", json.dumps(dict(sorted(snapshot.drained.items())))))
        if before.reservations != snapshot.reservations:
            reservations = [reservation for _, reservation in sorted(snapshot.reservations.items())]
            meta.append(("reservations", rows.encode(reservations)))
        if (
            before.means_kept is not snapshot.means_kept
            and before.means_kept != snapshot.means_kept
        ):
            meta.append(("means", share_averages.encode(snapshot.means_kept)))
        prior_rows, prior_keys = priors.changes(before.priors, snapshot.priors, snapshot.now)
        if changed_jobs or ended or journal or meta or prior_rows or prior_keys:
            writes: Writes = [
                (_PUT_JOB, [_job_row(job, snapshot.now) for job in (*changed_jobs, *ended)]),
                (_PUT_EVENT, [_event_row(event) for event in journal]),
                (PUT_META, meta),
                (priors.PUT, prior_rows),
                (priors.DROP, prior_keys),
            ]
            self._write(writes, adds=any(isinstance(event, Submitted) for event in journal))
        self._state = Snapshot(
            jobs=snapshot.jobs,
            next_id=snapshot.next_id,
            lost_ids=snapshot.lost_ids,
            round_at=snapshot.round_at,
            priors=snapshot.priors,
            drained=snapshot.drained,
            reservations=snapshot.reservations,
            next_reservation=snapshot.next_reservation,
            links=snapshot.links,
            means=snapshot.means_kept,
            means_kept=snapshot.means_kept,
        )
        self._ended += len(ended)

    def _write(self, writes: Writes, *, adds: bool) -> None:
        """One transaction. On a full disk new jobs (`adds`) are refused, and all else may use the
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
            # else the log would eat what the database needs to take the log in
            self._make_room()

    def _try_write(self, writes: Writes) -> bool:
        """False when the disk is full, and nothing was written."""
        try:
            with self._transaction():
                for statement, values in writes:
                    self._writer.executemany(statement, values)
        except sqlite3.Error as error:
            if disk.is_full(error, os.path.dirname(self.path)):
                return False
            raise self._fail(error) from error
        return True

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Raises StoreFailed when another daemon has taken over since."""
        writer = self._writer
        writer.execute("BEGIN IMMEDIATE")
        try:
            (epoch,) = writer.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
            if int(epoch) != self.epoch:
                self._failed = "another daemon has taken over this state: this one ends"
                raise StoreFailed(self._failed)
            yield
            writer.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
            raise

    def _make_room(self) -> None:
        """Move the log into the database, so that the log's own space is written again from its
        start."""
        with contextlib.suppress(sqlite3.Error):
            self._writer.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    def _fail(self, error: sqlite3.Error) -> GpqError:
        """What an error of the database means. A write that may be lost or not ends the writer for
        good."""
        if "locked" in str(error) or "busy" in str(error):
            return Refused(
                f"the database {self.path} is locked by another process; nothing was changed",
                "end what reads it (a backup, a browser of databases) and try again",
            )
        self._failed = f"the state can no longer be written to {self.path}: {error}"
        return StoreFailed(
            self._failed, "check the disk (dmesg), then `gpq daemon start`; running jobs go on"
        )

    def _take_over(self, first_id: int, path: str, is_new: bool) -> None:
        """Raise the epoch, in the database and then in its marks."""
        self._marks_path = path
        old_marks, problem = beside.read(path) if path else (None, "")
        if problem and not is_new:
            self.notes.append(
                f"{path} {problem}, and is written anew: that the database is no old copy cannot be"
                " told"
            )
        try:
            succession = takeover.succeed(self._writer, old_marks, first_id)
        except (KeyError, ValueError, TypeError) as error:
            raise disk.damaged(self.path, f"table meta or jobs: {error}") from None
        self.notes += [succession.note] if succession.note else []
        self._marks, self.epoch = succession.marks, succession.marks.epoch
        if path:
            self._write_marks(succession.marks)

    def _mark(self, ids: int, attempts: int) -> None:
        """Before these numbers are acknowledged. Rarely a write."""
        marks = self._marks
        if not self._marks_path or marks.covers(ids=ids, attempts=attempts):
            return
        later, _ = beside.read(self._marks_path)
        if later is not None and later.store == marks.store and later.epoch > marks.epoch:
            return  # a newer daemon's: the commit that follows fails
        ids = beside.raised(marks.ids, ids, beside.IDS)
        attempts = beside.raised(marks.attempts, attempts, beside.ATTEMPTS)
        self._write_marks(Marks(marks.store, marks.epoch, ids, attempts))

    def _write_marks(self, marks: Marks) -> None:
        """Nothing is changed where that fails."""
        try:
            beside.write(self._marks_path, marks)
        except OSError as error:
            if error.errno in beside.FULL:
                raise disk.full(self.path) from error
            message = f"{self._marks_path} cannot be written: {error.strerror}; nothing was changed"
            raise Refused(message, "make it writable, or remove it") from error
        self._marks = marks

    def _read_state(self) -> Snapshot:
        meta = dict(self._reader.execute("SELECT key, value FROM meta").fetchall())
        job_rows = self._reader.execute(
            f"SELECT {_JOB_COLUMNS} FROM jobs WHERE ended_at IS NULL ORDER BY id"
        )
        jobs = {job.id: job for job in (self._job(row) for row in job_rows)}
        means = share_averages.decode(meta.get("means", "{}"))
        try:
            return Snapshot(
                jobs=jobs,
                next_id=int(meta["next_id"]),
                lost_ids=tuple(
                    (int(first), int(last))
                    for first, last in json.loads(meta.get("lost_ids", "[]"))
                ),
                round_at=float(meta.get("round_at", 0.0)),
                priors=priors.read(self._reader, self._writer),
                links=links.decode(meta.get("links", "[]")),
                drained={
                    NodeId(name): str(why)
                    for name, why in json.loads(meta.get("drained", "{}")).items()
                },
                reservations={
                    reservation.id: reservation
                    for reservation in rows.decode(
                        meta.get("reservations", "[]"), list[Reservation]
                    )
                },
                next_reservation=int(meta.get("next_reservation", 1)),
                means=means,
                means_kept=means,
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise disk.damaged(self.path, f"table meta: {error}") from None

    # -- reading -----------------------------------------------------------------------------------

    def history(
        self,
        *,
        ids: Sequence[JobId] | None = None,
        names: Sequence[str] | None = None,
        user: str = "",
        states: Sequence[str] = (),
        limit: int | None = None,
    ) -> list[Job]:
        where, values = ["ended_at IS NOT NULL"], list[object]()
        for column, choices in (
            ("id", ids),
            ("name", names),
            ("user", [user] if user else None),
            ("state", states or None),
        ):
            if choices is not None:
                where.append(f"{column} IN ({','.join('?' * len(choices))})")
                values.extend(str(choice) if column == "state" else choice for choice in choices)
        query = (
            f"SELECT {_JOB_COLUMNS} FROM jobs WHERE {' AND '.join(where)} ORDER BY ended_at DESC,"
            " id DESC LIMIT ?"
        )
        return [
            self._job(row) for row in self._read(query, [*values, -1 if limit is None else limit])
        ]

    def events(
        self, *, job: JobId | None = None, kinds: Sequence[type] = (), limit: int | None = None
    ) -> list[Event]:
        where, values = ["1"], list[object]()
        if job is not None:
            where.append("job = ?")
            values.append(job)
        if kinds:
            where.append(f"kind IN ({','.join('?' * len(kinds))})")
            values.extend(kind.__name__ for kind in kinds)
        query = (
            f"SELECT kind, checksum, body FROM events WHERE {' AND '.join(where)} ORDER BY seq DESC"
            " LIMIT ?"
        )
        events = []
        for kind, checksum, body in self._read(query, [*values, -1 if limit is None else limit]):
            with self._sound():
                if rows.checksum(kind, body) != checksum:
                    raise rows.Damaged("an event has another checksum")
                events.append(rows.decode_event(str(kind), str(body)))
        return events[::-1]

    def news(
        self, after: int, kinds: Sequence[type], limit: int
    ) -> tuple[int, list[tuple[int, Event]]]:
        """Events of these kinds behind the number `after`, oldest first, with their numbers; and up
        to which number that is all there is. From any thread. Raises GpqError."""
        [(last,)] = self._read("SELECT coalesce(max(seq), 0) FROM events", ())
        until = int(str(last))
        query = (
            "SELECT seq, kind, checksum, body FROM events WHERE seq > ? AND seq <= ? AND +kind IN"
            f" ({','.join('?' * len(kinds))}) ORDER BY seq LIMIT ?"
        )
        numbered_events: list[tuple[int, Event]] = []
        for seq, kind, checksum, body in self._read(
            query, [after, until, *(kind.__name__ for kind in kinds), limit]
        ):
            with self._sound():
                if rows.checksum(kind, body) != checksum:
                    raise rows.Damaged("an event has another checksum")
                numbered_events.append((int(str(seq)), rows.decode_event(str(kind), str(body))))
        return (numbered_events[-1][0] if len(numbered_events) == limit else until), numbered_events

    def records(self, criteria: Wanted) -> list[Record]:
        with self._sound():
            return list(journal_pages.records(self._read, criteria))

    def count(self, criteria: Wanted) -> int:
        return journal_pages.count(self._read, criteria)

    def journal(self, kinds: Sequence[type], since: Seconds = 0.0) -> Iterator[Event]:
        with self._sound():
            yield from journal_pages.journal(self._read, kinds, since)

    def holds(self) -> bool:
        """Is this still the latest daemon to have opened the database? From any thread; False where
        that cannot be read."""
        try:
            [(epoch,)] = self._read("SELECT value FROM meta WHERE key = 'epoch'", ())
        except (GpqError, ValueError):
            return False
        return int(str(epoch)) == self.epoch and not self._failed

    def ended_count(self) -> int:
        return int(self._ended)

    def backup(self) -> None:
        """A second, whole copy beside the database, replaced atomically. Raises GpqError; the old
        copy stays then."""
        target = self.path + ".backup"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target + ".new")
        try:
            source = connect(self.path)
            with contextlib.closing(source):
                source.execute("VACUUM INTO ?", (target + ".new",))
            with contextlib.closing(sqlite3.connect(target + ".new", isolation_level=None)) as copy:
                copy.execute(PUT_META, (takeover.COPY, "1"))
            os.replace(target + ".new", target)
        except (OSError, sqlite3.Error) as error:
            with contextlib.suppress(OSError):
                os.unlink(target + ".new")
            raise GpqError(f"no backup of the state could be written: {error}") from error

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _read(self, query: str, values: Sequence[object]) -> list[tuple[object, ...]]:
        try:
            with self._reading:
                return self._reader.execute(query, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise explained(error, self.path) from error

    def _job(self, row: tuple[object, ...]) -> Job:
        *columns, checksum, body = row
        with self._sound():
            if rows.checksum(*columns, body) != checksum:
                raise rows.Damaged(f"job {row[0]} has another checksum")
            return rows.decode(str(body), Job)

    @contextlib.contextmanager
    def _sound(self) -> Iterator[None]:
        try:
            yield
        except rows.Damaged as error:
            raise disk.damaged(self.path, str(error)) from None


def _job_row(job: Job, now: float) -> tuple[object, ...]:
    ended = None
    if job.state in TERMINAL:
        ended = now if job.ended_at is None else job.ended_at
    body = rows.encode(job)
    columns = (
        int(job.id),
        str(job.state),
        job.spec.user,
        job.spec.name,
        None if ended is None else float(ended),
    )
    return (*columns, rows.checksum(*columns, body), body)


def _event_row(event: Event) -> tuple[object, ...]:
    kind, body = type(event).__name__, rows.encode(event)
    job = getattr(event, "job", None)
    return (float(event.at), kind, job, JOURNAL_VERSION, rows.checksum(kind, body), body)
