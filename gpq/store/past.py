"""Long reads of the database, for accounts: page by page, so that whoever asks for one job
meanwhile need not wait, and only what accounts need of each row. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpq.core.accounting.usage import Record
from gpq.core.model.events import Event
from gpq.core.model.units import Seconds
from gpq.ports import Wanted
from gpq.store import rows

PAGE = 500  # rows

Read = Callable[[str, Sequence[object]], list[tuple[object, ...]]]


def records(read: Read, criteria: Wanted) -> Iterator[Record]:
    """Those of jobs that ended, the latest to end first. Raises rows.Damaged."""
    where, values = _conditions(criteria)
    query = (
        "SELECT id, state, user, name, ended_at, checksum, body FROM jobs WHERE ended_at IS NOT"
        " NULL"
    )
    after: list[object] = []
    row_budget = criteria.limit
    while row_budget is None or row_budget > 0:
        count = PAGE if row_budget is None else min(PAGE, row_budget)
        conditions = [*where, "(ended_at, id) < (?, ?)"] if after else where
        page = read(
            " AND ".join([query, *conditions]) + " ORDER BY ended_at DESC, id DESC LIMIT ?",
            [*values, *after, count],
        )
        yield from map(_record, page)
        if len(page) < count:
            return
        after = [page[-1][4], page[-1][0]]
        row_budget = row_budget - count if row_budget is not None else None


def count(read: Read, criteria: Wanted) -> int:
    where, values = _conditions(criteria)
    [(number,)] = read(
        " AND ".join(["SELECT count(*) FROM jobs WHERE ended_at IS NOT NULL", *where]), values
    )
    return int(str(number))


def _conditions(criteria: Wanted) -> tuple[list[str], list[object]]:
    where: list[str] = []
    values: list[object] = []
    if criteria.ids or criteria.names:
        where.append(f"(id IN ({_marks(criteria.ids)}) OR name IN ({_marks(criteria.names)}))")
        values += [*criteria.ids, *criteria.names]
    if criteria.user:
        where.append("user = ?")
        values.append(criteria.user)
    if criteria.states:
        where.append(f"state IN ({_marks(criteria.states)})")
        values += map(str, criteria.states)
    for moment, sign in ((criteria.since, ">="), (criteria.until, "<")):
        if moment is not None:
            where.append(f"ended_at {sign} ?")
            values.append(moment)
    return where, values


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def _record(row: tuple[object, ...]) -> Record:
    *columns, checksum, body = row
    if rows.checksum(*columns, body) != checksum:
        raise rows.Damaged(f"job {row[0]} has another checksum")
    return rows.decode(str(body), Record)


def journal(read: Read, kinds: Sequence[type], since: Seconds) -> Iterator[Event]:
    """Events of these kinds from `since` on, oldest first. Raises rows.Damaged."""
    names = [kind.__name__ for kind in kinds]
    query = (
        # By its index of kinds SQLite would sort all that is left of the journal for every page.
        "SELECT seq, kind, checksum, body FROM events NOT INDEXED"
        f" WHERE seq > ? AND at >= ? AND kind IN ({_marks(names)})"
        " ORDER BY seq LIMIT ?"
    )
    last: object = 0
    while page := read(query, [last, since, *names, PAGE]):
        for _, kind, checksum, body in page:
            if rows.checksum(kind, body) != checksum:
                raise rows.Damaged("an event has another checksum")
            yield rows.decode_event(str(kind), str(body))
        last = page[-1][0]
