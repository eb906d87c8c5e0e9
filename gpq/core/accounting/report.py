"""Spells and records -> what each user, job, server or day had of the GPUs in a window, what it was
worth, and how fairly.

Pure. What lies only partly in the window counts by its part: an attempt's worth is spread evenly
over it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from gpq.core.accounting.sums import RHO_EDGES, Report, Slice, Sum
from gpq.core.accounting.usage import Journal, Record, Spell
from gpq.core.model.accounts import Span
from gpq.core.model.jobs import TERMINAL
from gpq.core.model.units import JobId, Seconds

BY = ("user", "job", "server", "day")
# whose a part of a spell is, which part of its devices, from when to when
Cut = tuple[str, float, Seconds, Seconds]


def _cuts(
    by: str, record: Record, spell: Spell, start: Seconds, end: Seconds, edges: Sequence[Seconds]
) -> list[Cut]:
    """A spell from `start` to `end`, by whom it belongs to."""
    if by == "server":
        return [(str(node), count / spell.gpus, start, end) for node, count in spell.parts if count]
    if by != "day":
        return [(_key(by, record, start, edges), 1.0, start, end)]
    first, last = _piece(edges, start), _piece(edges, max(end, start))
    return [
        (str(index), 1.0, max(start, edges[index]), min(end, edges[index + 1]))
        for index in range(first, last + 1)
        if index == first or edges[index] < end
    ]


def _key(by: str, record: Record, at: Seconds, edges: Sequence[Seconds]) -> str:
    """Whose it is what happens to a job as a whole; "" of a server."""
    match by:
        case "user":
            return record.spec.user
        case "job":
            return str(record.id)
        case "day":
            return str(_piece(edges, at))
    return ""


def _piece(edges: Sequence[Seconds], at: Seconds) -> int:
    return min(max(bisect_right(edges, at) - 1, 0), len(edges) - 2)


def report(
    records: Mapping[JobId, Record],
    journal: Journal,
    edges: Sequence[Seconds],
    by: str,
    now: Seconds,
    *,
    by_user: bool,
) -> Report:
    """`by`: one of BY; the keys of the rows are users, ids, servers, or numbers of pieces. The
    window lies between the first and the last of `edges`, at least two and rising, which cut it
    into pieces: days, for a report by day. `by_user`: how fair shares are counted."""
    since, until = edges[0], edges[-1]
    sums: dict[str, Sum] = defaultdict(Sum)
    total = Sum()

    def of(record: Record, at: Seconds) -> list[Sum]:
        key = _key(by, record, at, edges)
        return [total, sums[key]] if key else [total]

    for spell in journal.spells:
        record, start, end = (
            records.get(spell.job),
            max(spell.began, since),
            min(spell.ended, until),
        )
        if record is None or not (start < end or since <= spell.began < until):
            continue
        total.add(spell, start, end, 1.0)
        for key, part, begin, stop in _cuts(by, record, spell, start, end, edges):
            sums[key].add(spell, begin, stop, part)
        if not spell.again and since <= spell.began < until and record.account.waited is not None:
            for subtotal in of(record, spell.began):
                subtotal.waits.append(record.account.waited)
    for record in records.values():
        if (
            record.ended_at is not None
            and record.state in TERMINAL
            and since <= record.ended_at < until
        ):
            for subtotal in of(record, record.ended_at):
                _end(subtotal, record)
    pieces = over_time(records, journal, edges, now, by_user=by_user)
    fair: dict[str, float] = defaultdict(float)
    for user, share in (pair for piece in pieces for pair in piece.items()):
        fair[user] += share.fair
    if by == "user":
        rows = {user: sums[user].figures(fair.get(user, 0.0)) for user in {**sums, **fair}}
    else:
        rows = {key: subtotal.figures() for key, subtotal in sums.items()}
    bars = Counter(bisect_right(RHO_EDGES, rho) for rho in total.rhos)
    return Report(
        rows, total.figures(), pieces, tuple(bars[index] for index in range(len(RHO_EDGES) + 1))
    )


def _end(subtotal: Sum, record: Record) -> None:
    subtotal.jobs.add(record.id)
    subtotal.ended[record.state] += 1
    if record.account.rho is not None:
        subtotal.rhos.append(record.account.rho)


def over_time(
    records: Mapping[JobId, Record],
    journal: Journal,
    edges: Sequence[Seconds],
    now: Seconds,
    *,
    by_user: bool,
) -> tuple[Mapping[str, Slice], ...]:
    """What users held in each piece of time, what it was worth, and their fair share of what all
    held."""
    count = len(edges) - 1
    gpu_seconds: list[dict[str, float]] = [defaultdict(float) for _ in range(count)]
    worth: list[dict[str, float]] = [defaultdict(float) for _ in range(count)]
    for spell in journal.spells:
        record = records.get(spell.job)
        start, end = max(spell.began, edges[0]), min(spell.ended, edges[-1])
        if record is None or start >= end:
            continue
        for key, _, begin, stop in _cuts("day", record, spell, start, end, edges):
            gpu_seconds[int(key)][record.spec.user] += (stop - begin) * spell.gpus
            worth[int(key)][record.spec.user] += (
                (spell.worth or 0.0) * (stop - begin) / (spell.ended - spell.began)
            )
    fair = _fair(records, journal, edges, now, by_user=by_user)
    return tuple(
        {
            user: Slice(
                gpu_seconds[i].get(user, 0.0), worth[i].get(user, 0.0), fair[i].get(user, 0.0)
            )
            for user in sorted({*gpu_seconds[i], *fair[i]})
            if gpu_seconds[i].get(user) or fair[i].get(user)
        }
        for i in range(count)
    )


def _fair(
    records: Mapping[JobId, Record],
    journal: Journal,
    edges: Sequence[Seconds],
    now: Seconds,
    *,
    by_user: bool,
) -> list[dict[str, float]]:
    """GPU-seconds by user: at every moment what all hold, in equal parts for those whose jobs run
    or wait. One pass over the moments at which that changes; `level` grows as a single part does,
    so that a user's is a difference of two."""
    changes: list[tuple[Seconds, int, str, int]] = [(edge, 2, "", 0) for edge in edges]
    for spell in journal.spells:
        if spell.job in records:
            changes += [(spell.began, 0, "", spell.gpus), (spell.ended, 0, "", -spell.gpus)]
    first = {spell.job: spell.began for spell in journal.spells if not spell.again}
    for record in records.values():
        owner = record.spec.user if by_user else f"{record.spec.user}\0{record.id}"
        for start, end in _stays(
            record, journal.holds.get(record.id, ()), first.get(record.id), now
        ):
            changes += [(start, 1, owner, 1), (end, 1, owner, -1)]
    changes.sort(key=lambda change: change[0])
    credits: list[dict[str, float]] = []
    jobs: Counter[str] = Counter()
    since: dict[str, float] = {}  # owners that are there: the level they have been credited up to
    level, gpus, before = 0.0, 0, edges[0]
    credit: dict[str, float] = defaultdict(float)
    for at, kind, owner, change in changes:
        if at > before and since:
            level += gpus * (at - before) / len(since)
        before = max(at, before)
        if kind == 0:
            gpus += change
        elif kind == 1:
            jobs[owner] += change
            if jobs[owner] and owner not in since:
                since[owner] = level
            elif not jobs[owner] and owner in since:
                credit[owner.partition("\0")[0]] += level - since.pop(owner)
        else:
            for name, start in since.items():
                credit[name.partition("\0")[0]] += level - start
                since[name] = level
            credits.append(credit)
            credit = defaultdict(float)
    return credits[1:]


def _stays(
    record: Record, holds: Sequence[Span], first: Seconds | None, now: Seconds
) -> list[Span]:
    """When the job competed for GPUs: until its end, but not while it was held, or waited for
    something else before its first launch (`first`), so that it waited for as long as its account
    says."""
    end = record.ended_at if record.ended_at is not None else max(now, record.submitted_at)
    began = record.submitted_at
    if record.account.waited is not None:
        anchor = end if first is None else first
        hold_seconds = sum(min(stop, anchor) - start for start, stop in holds if start < anchor)
        began = max(began, anchor - record.account.waited - hold_seconds)
    cuts = [began, *(max(moment, began) for span in holds for moment in span), end]
    return [(start, stop) for start, stop in list(pairwise(cuts))[::2] if stop > start]
