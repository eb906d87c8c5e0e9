"""What the database remembers beyond the live state, read on demand, also while another process
writes it. Writes nothing.

Long reads for accounts go page by page, so that a request for one job need not wait. They take only
what accounts need of each row.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpq.core.accounting.usage import Record
from gpq.core.model.events import Event, Held, Launched, Released
from gpq.core.model.jobs import Job
from gpq.core.model.units import JobId, Seconds
from gpq.errors import NotFound, Refused
from gpq.ports import Wanted
from gpq.store import disk, rows
from gpq.store.opening import BUSY_SECONDS, MIGRATIONS, check_mark, explain, version_of
from gpq.store.packing import Unpacker
from gpq.store.rows import Row

PAGE = 1000  # rows
_LIST = "(SELECT value FROM json_each(?))"
JOB_COLUMNS = "id, state, user, name, ended_at, checksum, plain(body)"
_JOBS = f"SELECT {JOB_COLUMNS} FROM jobs ORDER BY id"
_HOLDS_AND_LAUNCHES = (
    "SELECT kind, checksum, plain(body) FROM events WHERE kind IN ('Held', 'Released', 'Launched')"
    " ORDER BY seq"
)


class Past:
    """`gpq.ports.History` of the database at `path`. From any thread: callers take turns on one
    connection."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        Unpacker(connection)
        self.path = path
        self._lock = threading.Lock()

    def live_jobs(self) -> Iterator[Job]:
        """By id. Only for the start, because it takes no turn. Raises rows.Damaged."""
        query = f"SELECT {JOB_COLUMNS} FROM jobs WHERE ended_at IS NULL ORDER BY id"
        return (rows.of_job_row(row, Job) for row in self._connection.execute(query))

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
        choices: tuple[tuple[str, Sequence[object] | None], ...] = (
            ("id", ids),
            ("name", names),
            ("user", [user] if user else None),
            ("state", list(map(str, states)) or None),
        )
        for column, options in choices:
            if options is not None:
                where.append(f"{column} IN {_LIST}")
                values.append(_list(options))
        query = (
            f"SELECT {JOB_COLUMNS} FROM jobs WHERE {' AND '.join(where)} ORDER BY ended_at DESC,"
            " id DESC LIMIT ?"
        )
        latest = self.read(query, [*values, _limit(limit)])
        with self._soundness():
            return [rows.of_job_row(row, Job) for row in latest]

    def events(
        self, *, job: JobId | None = None, kinds: Sequence[type] = (), limit: int | None = None
    ) -> list[Event]:
        where, values = ["1"], list[object]()
        if job is not None:
            where.append("job = ?")
            values.append(job)
        if kinds:
            where.append(f"kind IN {_LIST}")
            values.append(_list([kind.__name__ for kind in kinds]))
        query = (
            f"SELECT kind, checksum, plain(body) FROM events WHERE {' AND '.join(where)} ORDER BY"
            " seq DESC LIMIT ?"
        )
        latest = self.read(query, [*values, _limit(limit)])
        with self._soundness():
            return [rows.event_of(*columns) for columns in latest][::-1]

    def news(
        self, after: int, kinds: Sequence[type], limit: int
    ) -> tuple[int, list[tuple[int, Event]]]:
        """Events of these kinds after number `after`, oldest first, with their numbers. Also the
        number up to which that is everything. Raises GpqError."""
        [(last,)] = self.read("SELECT coalesce(max(seq), 0) FROM events", ())
        until = int(str(last))
        names = _list([kind.__name__ for kind in kinds])
        query = (
            "SELECT seq, kind, checksum, plain(body) FROM events WHERE seq > ? AND seq <= ? AND"
            f" kind IN {_LIST} ORDER BY seq LIMIT ?"
        )
        page = self.read(query, [after, until, names, limit])
        with self._soundness():
            events = [(int(str(seq)), rows.event_of(*columns)) for seq, *columns in page]
        if len(events) == limit:
            until = events[-1][0]
        return until, events

    def records(self, criteria: Wanted) -> list[Record]:
        where, values = _conditions(criteria)
        query = f"SELECT {JOB_COLUMNS} FROM jobs WHERE ended_at IS NOT NULL"
        conditions, after = where, list[object]()
        row_budget = math.inf if criteria.limit is None else criteria.limit
        records: list[Record] = []
        while row_budget > 0:
            count = int(min(PAGE, row_budget))
            page = self.read(
                " AND ".join([query, *conditions]) + " ORDER BY ended_at DESC, id DESC LIMIT ?",
                [*values, *after, count],
            )
            with self._soundness():
                records += [rows.of_job_row(row, Record) for row in page]
            if len(page) < count:
                break
            conditions = [*where, "(ended_at, id) < (?, ?)"]
            after = [page[-1][4], page[-1][0]]
            row_budget -= count
        return records

    def ids(self, criteria: Wanted) -> list[JobId]:
        where, values = _conditions(criteria)
        query = " AND ".join(["SELECT id FROM jobs WHERE ended_at IS NOT NULL", *where])
        numbers = self.read(
            f"{query} ORDER BY ended_at DESC, id DESC LIMIT ?", [*values, _limit(criteria.limit)]
        )
        return [JobId(int(str(number))) for (number,) in numbers]

    def has_removed(self) -> bool:
        return bool(self.read("SELECT 1 FROM removed LIMIT 1", ()))

    def removed_ids(self, ids: Sequence[JobId]) -> list[JobId]:
        query = f"SELECT id FROM removed WHERE id IN {_LIST} ORDER BY id"
        return [JobId(int(str(name))) for (name,) in self.read(query, [_list(ids)])]

    def count(self, criteria: Wanted) -> int:
        where, values = _conditions(criteria)
        [(number,)] = self.read(
            " AND ".join(["SELECT count(*) FROM jobs WHERE ended_at IS NOT NULL", *where]), values
        )
        return int(str(number))

    def journal(self, kinds: Sequence[type], since: Seconds = 0.0) -> Iterator[Event]:
        names = _list([kind.__name__ for kind in kinds])
        before = "SELECT min(seq) - 1 FROM events INDEXED BY events_at WHERE at >= ?"
        [(last,)] = self.read(before, [since])
        query = (
            # With its index of times, SQLite would sort the rest of the journal for every page.
            "SELECT seq, kind, checksum, plain(body) FROM events NOT INDEXED"
            f" WHERE seq > ? AND at >= ? AND kind IN {_LIST} ORDER BY seq LIMIT ?"
        )
        with self._soundness():
            while page := self.read(query, [last, since, names, PAGE]):
                for _, *columns in page:
                    yield rows.event_of(*columns)
                last = page[-1][0]

    def read(self, query: str, values: Sequence[object]) -> list[Row]:
        """Raises GpqError."""
        try:
            with self._lock:
                return self._connection.execute(query, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise explain(error, self.path, is_served=True) from error

    @contextlib.contextmanager
    def _soundness(self) -> Iterator[None]:
        """Raises damaged rows as an error for the user."""
        try:
            yield
        except rows.Damaged as error:
            raise disk.damage_error(self.path, str(error), is_served=True) from None


def _conditions(criteria: Wanted) -> tuple[list[str], list[object]]:
    where: list[str] = []
    values: list[object] = []
    choices: list[tuple[str, Sequence[object]]] = [("id", criteria.ids), ("name", criteria.names)]
    choices = [(column, options) for column, options in choices if options]
    if choices:
        where.append(f"({' OR '.join(f'{column} IN {_LIST}' for column, _ in choices)})")
        values += [_list(options) for _, options in choices]
    if criteria.user:
        where.append("user = ?")
        values.append(criteria.user)
    if criteria.states:
        where.append(f"state IN {_LIST}")
        values.append(_list(list(map(str, criteria.states))))
    for moment, sign in ((criteria.since, ">="), (criteria.until, "<")):
        if moment is not None:
            where.append(f"ended_at {sign} ?")
            values.append(moment)
    if criteria.quiet_since is not None:
        where.append("NOT EXISTS (SELECT 1 FROM events WHERE events.job = jobs.id AND at >= ?)")
        values.append(criteria.quiet_since)
    return where, values


def _list(values: Sequence[object]) -> str:
    """One value for `_LIST`, however many there are. SQLite limits the number of values."""
    return json.dumps(list(values))


def _limit(limit: int | None) -> int:
    """As SQLite writes it, where -1 means no limit."""
    return -1 if limit is None else limit


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
            Unpacker(connection)
            yield connection
    except sqlite3.Error as error:
        raise explain(error, path) from error
    except rows.Damaged as error:
        raise disk.damage_error(path, str(error)) from None
