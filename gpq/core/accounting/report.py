"""Spells and records -> what each user, job, server or day had of the GPUs in a window, what it was
worth, and how fair it was.

Pure. What is only partly in the window counts by that part: the worth of an attempt is spread
evenly over it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from gpq.core.accounting.fair_credits import fair_credits
from gpq.core.accounting.sums import RHO_EDGES, Figures, Report, Slice, Sum
from gpq.core.accounting.usage import Journal, Record, Spell
from gpq.core.model.jobs import TERMINAL
from gpq.core.model.units import JobId, Seconds

BY = ("user", "job", "server", "day")
# whose part of a spell, which part of its devices, from when to when
Cut = tuple[str, float, Seconds, Seconds]


def _cuts(
    by: str, record: Record, spell: Spell, start: Seconds, end: Seconds, edges: Sequence[Seconds]
) -> list[Cut]:
    """The parts of a spell from `start` to `end`, by the key they belong to."""
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
    """The key for what happens to a job as a whole. "" in a report by server."""
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
    """`by` is one of BY. The keys of the rows are users, ids, servers, or numbers of pieces. The
    window is between the first and the last of `edges`, which are at least two and rising. They cut
    it into pieces: days, for a report by day. `by_user` says how fair shares are counted."""
    sums = _Sums(edges, by)
    for spell in journal.spells:
        record = records.get(spell.job)
        if record is not None:
            sums.add_spell(record, spell)
    for record in records.values():
        sums.add_end(record)
    pieces = over_time(records, journal, edges, now, by_user=by_user)
    bars = Counter(bisect_right(RHO_EDGES, rho) for rho in sums.total.rhos)
    return Report(
        sums.rows(pieces),
        sums.total.figures(),
        pieces,
        tuple(bars[index] for index in range(len(RHO_EDGES) + 1)),
    )


class _Sums:
    """What is in the window, in total and by the keys of the rows."""

    def __init__(self, edges: Sequence[Seconds], by: str) -> None:
        self.total = Sum()
        self._edges, self._by = edges, by
        self._since, self._until = edges[0], edges[-1]
        self._sums: dict[str, Sum] = defaultdict(Sum)

    def add_spell(self, record: Record, spell: Spell) -> None:
        start, end = max(spell.began, self._since), min(spell.ended, self._until)
        begins_here = self._since <= spell.began < self._until
        if not (start < end or begins_here):
            return
        self.total.add(spell, start, end, 1.0)
        for key, part, begin, stop in _cuts(self._by, record, spell, start, end, self._edges):
            self._sums[key].add(spell, begin, stop, part)
        if not spell.again and begins_here and record.account.waited is not None:
            for subtotal in self._of(record, spell.began):
                subtotal.waits.append(record.account.waited)

    def add_end(self, record: Record) -> None:
        ended_at = record.ended_at
        if ended_at is None or record.state not in TERMINAL:
            return
        if self._since <= ended_at < self._until:
            for subtotal in self._of(record, ended_at):
                _end(subtotal, record)

    def _of(self, record: Record, at: Seconds) -> list[Sum]:
        key = _key(self._by, record, at, self._edges)
        return [self.total, self._sums[key]] if key else [self.total]

    def rows(self, pieces: Sequence[Mapping[str, Slice]]) -> dict[str, Figures]:
        if self._by != "user":
            return {key: subtotal.figures() for key, subtotal in self._sums.items()}
        fair: dict[str, float] = defaultdict(float)
        for piece in pieces:
            for user, share in piece.items():
                fair[user] += share.fair
        return {
            user: self._sums[user].figures(fair.get(user, 0.0)) for user in {**self._sums, **fair}
        }


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
    """What users held in each piece of time, what it was worth, and their fair share of everything
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
    fair = fair_credits(records, journal, edges, now, by_user=by_user)
    return tuple(map(_slices, gpu_seconds, worth, fair))


def _slices(
    gpu_seconds: Mapping[str, float], worth: Mapping[str, float], fair: Mapping[str, float]
) -> dict[str, Slice]:
    """One piece: the slices of users who held something or had a fair share."""
    return {
        user: Slice(gpu_seconds.get(user, 0.0), worth.get(user, 0.0), fair.get(user, 0.0))
        for user in sorted({*gpu_seconds, *fair})
        if gpu_seconds.get(user) or fair.get(user)
    }
