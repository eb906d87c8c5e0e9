"""Stored rows: jobs, events, the part of the state that is in table meta, and what earlier jobs of
a program measured. JSON with a checksum that detects a flipped byte. A damaged row of such priors
costs only its own content, and gpq starts without it."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args

import msgspec

from gpq import decoding
from gpq.core.model.accounts import MeanShare, Standing
from gpq.core.model.events import JOURNAL_VERSION, Event, Submitted
from gpq.core.model.jobs import TERMINAL, Job, JobSpec
from gpq.core.model.nodes import Link, Reservation
from gpq.core.model.placements import Exit
from gpq.core.model.profile import Declared, Prior, Profile, ProfileRow
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.store.packing import Packer, shell

log = logging.getLogger(__name__)
T = TypeVar("T")
Row = tuple[object, ...]
Amount = Annotated[float, msgspec.Meta(ge=0.0)]
NO_STANDINGS = "[0.0,{}]"
_QUICK = msgspec.json.Encoder()
_UNMEASURED = Profile()
# in the dictionary of each shell
_ROW = ProfileRow(1, 1, 32, 0.1, 0.1, 10.0)
_MEASURED = Profile(Declared(adaptive=True), (_ROW, _ROW))
EVENT_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}
PUT_PRIOR = (
    "INSERT INTO priors (key, checksum, body, updated_at) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO"
    " UPDATE SET checksum = excluded.checksum, body = excluded.body, updated_at ="
    " excluded.updated_at"
)
DROP_PRIOR = "DELETE FROM priors WHERE key = ?"
# As bytes: otherwise a damaged text would be an error of the whole query.
_PRIORS = (
    "SELECT rowid, CAST(key AS BLOB), checksum, CAST(body AS BLOB), updated_at FROM priors ORDER BY"
    " updated_at, rowid"
)


class Damaged(ValueError):
    """A row is not what was written."""


def encode(value: Job | Event | Prior | Sequence[Reservation]) -> str:
    """JSON. A number that is not finite (a diverged loss) is written NaN or Infinity, as Python's
    json reads it."""
    if isinstance(value, Submitted) or (isinstance(value, Job) and value.profile == _UNMEASURED):
        with contextlib.suppress(UnicodeError):
            return _QUICK.encode(value).decode()  # nothing was measured, so every number is finite
    return json.dumps(msgspec.to_builtins(value), separators=(",", ":"), ensure_ascii=False)


def checksum(*columns: object) -> int:
    return zlib.crc32("\x1f".join(map(str, columns)).encode("utf-8", "surrogatepass"))


def decode(text: str, kind: type[T]) -> T:
    """The inverse of `encode`. Fields that were added later get their defaults. Raises Damaged."""
    try:
        return decoding.decode(text, kind)
    except msgspec.ValidationError as error:
        raise Damaged(str(error)) from None
    except (msgspec.DecodeError, UnicodeError):
        pass  # NaN is not JSON: the slow way reads it
    try:
        return decoding.convert(json.loads(text), kind)  # type: ignore[no-any-return]
    except ValueError as error:
        raise Damaged(str(error)) from None


def decode_event(kind: str, text: str) -> Event:
    """Raises Damaged, also for an unknown kind."""
    event_type = EVENT_KINDS.get(kind)
    if event_type is None:
        raise Damaged(f"unknown event {kind!r}")
    event: Event = decode(text, event_type)
    return event


# -- jobs and events -------------------------------------------------------------------------------


def job_row(job: Job, now: float, packer: Packer) -> Row:
    """A row of table jobs: id, state, user, name, ended_at, checksum, body. That of an ended job is
    packed."""
    ended_at, text = None, encode(job)
    body: str | bytes = text
    if job.state in TERMINAL:
        ended_at = float(now if job.ended_at is None else job.ended_at)
        body = _pack(packer, job.spec, text)
    columns = (int(job.id), str(job.state), job.spec.user, job.spec.name, ended_at)
    return (*columns, checksum(*columns, text), body)


def _pack(packer: Packer, spec: JobSpec, text: str) -> bytes:
    """The text of something that holds a job's request."""
    sample = Job(JobId(1), spec, 0.0, exit=Exit(None), profile=_MEASURED)
    return packer.pack(shell(spec), text, lambda: encode(sample))


def of_job_row(row: Row, kind: type[T]) -> T:
    """The job of such a row, or the part of it that `kind` has. Raises Damaged."""
    check_job_row(row)
    return decode(str(row[-1]), kind)


def check_job_row(row: Row) -> None:
    """Raises Damaged."""
    *columns, recorded_sum, body = row
    if checksum(*columns, body) != recorded_sum:
        raise Damaged(f"job {row[0]} has a wrong checksum")


def event_row(event: Event, packer: Packer) -> Row:
    """A row of table events: at, kind, job, version, checksum, body."""
    kind, text = type(event).__name__, encode(event)
    job = getattr(event, "job", None)
    spec = getattr(event, "spec", None)
    body = _pack(packer, spec, text) if spec else packer.pack(kind, text, lambda: text)
    return (float(event.at), kind, job, JOURNAL_VERSION, checksum(kind, text), body)


def event_of(kind: object, recorded_sum: object, body: object) -> Event:
    """The event of such a row. Raises Damaged."""
    check_event(kind, recorded_sum, body)
    return decode_event(str(kind), str(body))


def check_event(kind: object, recorded_sum: object, body: object) -> None:
    """Raises Damaged."""
    if checksum(kind, body) != recorded_sum:
        raise Damaged("an event has a wrong checksum")


# -- the state -------------------------------------------------------------------------------------


def durable_part(snapshot: Snapshot) -> Snapshot:
    """What a store keeps of it. It does not remember servers and configuration."""
    return Snapshot(
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
        standings=snapshot.standings,
        standings_at=snapshot.standings_at if snapshot.standings else 0.0,
    )


def check_outcomes(before: Snapshot, after: Snapshot, ended: Sequence[Job]) -> None:
    """Raises ValueError if a job left the snapshot but is not among the ended ones."""
    missing_ids = before.jobs.keys() - after.jobs.keys() - {job.id for job in ended}
    if missing_ids:
        raise ValueError(f"jobs {sorted(missing_ids)} left the snapshot without an outcome")


def meta_rows(before: Snapshot, after: Snapshot) -> list[Row]:
    """Rows of table meta that turn the first into the second."""
    changes: list[Row] = [
        (key, repr(getattr(after, key)))
        for key in ("next_id", "round_at", "next_reservation")
        if getattr(before, key) != getattr(after, key)
    ]
    if before.links != after.links:
        links = [(*ends, link) for ends, link in sorted(after.links.items())]
        changes.append(("links", msgspec.json.encode(links).decode()))
    if before.drained != after.drained:
        changes.append(("drained", json.dumps(dict(sorted(after.drained.items())))))
    if before.reservations != after.reservations:
        reservations = [reservation for _, reservation in sorted(after.reservations.items())]
        changes.append(("reservations", encode(reservations)))
    if before.means_kept is not after.means_kept and before.means_kept != after.means_kept:
        changes.append(("means", encode_shares(after.means_kept)))
    standings = encode_standings(after)
    if standings != encode_standings(before):
        changes.append(("standings", standings))
    return changes


def state_of(
    meta: Mapping[str, str], jobs: Mapping[JobId, Job], priors: Mapping[str, Prior]
) -> Snapshot:
    """The state from the rows of table meta, with the live jobs. Raises KeyError, ValueError,
    TypeError and AttributeError for damage."""
    means = decode_shares(meta.get("means", "{}"))
    standings, standings_at = decode_standings(meta.get("standings", NO_STANDINGS))
    lost_ids = json.loads(meta.get("lost_ids", "[]"))
    drained = json.loads(meta.get("drained", "{}"))
    reservations = decode(meta.get("reservations", "[]"), list[Reservation])
    return Snapshot(
        jobs=jobs,
        next_id=int(meta["next_id"]),
        lost_ids=tuple((int(first), int(last)) for first, last in lost_ids),
        round_at=float(meta.get("round_at", 0.0)),
        priors=priors,
        links=decode_links(meta.get("links", "[]")),
        drained={NodeId(name): str(why) for name, why in drained.items()},
        reservations={reservation.id: reservation for reservation in reservations},
        next_reservation=int(meta.get("next_reservation", 1)),
        means=means,
        means_kept=means,
        standings=standings,
        standings_at=standings_at,
    )


def decode_links(text: str) -> dict[tuple[NodeId, NodeId], Link]:
    try:
        rows = decoding.decode(text, list[tuple[str, str, Link]])
    except msgspec.DecodeError as error:
        log.warning(
            "gpq cannot read the measurements between servers, `gpq doctor` repeats them: %s", error
        )
        return {}
    return {(NodeId(first), NodeId(second)): link for first, second, link in rows}


def encode_shares(means: Mapping[JobId, MeanShare]) -> str:
    """GPU-seconds and seconds, to the tenth."""
    short = {
        int(job): (round(mean.gpu_seconds, 1), round(mean.seconds, 1))
        for job, mean in sorted(means.items())
    }
    return msgspec.json.encode(short).decode()


def decode_shares(text: str) -> dict[JobId, MeanShare]:
    try:
        sums = decoding.decode(text, dict[int, tuple[float, float]])
    except msgspec.DecodeError as error:
        log.warning("gpq cannot read the past fair shares of jobs and counts them again: %s", error)
        return {}
    return {JobId(job): MeanShare(*mean) for job, mean in sums.items()}


def encode_standings(snapshot: Snapshot) -> str:
    """After the time of the round that counted them, which means nothing without them."""
    if not snapshot.standings:
        return NO_STANDINGS
    rows = {user: (row.debt, row.short) for user, row in snapshot.standings.items()}
    return msgspec.json.encode((snapshot.standings_at, rows)).decode()


def decode_standings(text: str) -> tuple[dict[str, Standing], Seconds]:
    try:
        at, rows = decoding.decode(text, tuple[Amount, dict[str, tuple[Amount, Amount]]])
    except msgspec.DecodeError as error:
        log.warning("gpq cannot read what users owe each other and begins with nothing: %s", error)
        return {}, 0.0
    return {user: Standing(*row) for user, row in rows.items()}, at


def prior_changes(
    before: Mapping[str, Prior], after: Mapping[str, Prior], now: Seconds
) -> tuple[list[Row], list[Row]]:
    """Rows for PUT_PRIOR and for DROP_PRIOR that turn the first into the second."""
    if before is after:
        return [], []
    put: list[Row] = []
    for key, prior in after.items():
        if before.get(key) is not prior:
            body, at = encode(prior), float(now)
            put.append((key, checksum(key, at, body), body, at))
    return put, [(key,) for key in before if key not in after]


def read_priors(reader: sqlite3.Connection, writer: sqlite3.Connection) -> dict[str, Prior]:
    """All sound priors, oldest first. The others are removed, with a line in the log."""
    priors: dict[str, Prior] = {}
    damaged: list[Row] = []
    for number, *columns in reader.execute(_PRIORS).fetchall():
        try:
            key, prior = _decode_prior(*columns)
        except Damaged as error:
            log.warning("dropped damaged data that earlier jobs of a program measured: %s", error)
            damaged.append((number,))
            continue
        priors[key] = prior
    with contextlib.suppress(sqlite3.Error):  # they can wait for the next start
        writer.executemany("DELETE FROM priors WHERE rowid = ?", damaged)
    return priors


def _decode_prior(key: object, stored: object, body: object, at: object) -> tuple[str, Prior]:
    """Key and prior. Raises Damaged."""
    if not isinstance(key, bytes) or not isinstance(body, bytes):
        raise Damaged("a row has no text")
    try:
        name, text = key.decode(), body.decode()
    except UnicodeDecodeError as error:
        raise Damaged(str(error)) from None
    if checksum(name, at, text) != stored:
        raise Damaged(f"{name!r} has a wrong checksum")
    return name, decode(text, Prior)
