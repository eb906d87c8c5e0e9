"""The fair share of the past, in GPU-seconds. At every moment all held GPUs count in equal parts
for the owners whose jobs run or wait."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from gpq.core.accounting.usage import Journal, Record
from gpq.core.model.accounts import Span
from gpq.core.model.units import JobId, Seconds

# when, kind, owner, by how much
Change = tuple[Seconds, int, str, int]
GPUS, JOBS, EDGE = 0, 1, 2  # kinds: GPUs held, an owner's jobs, the end of a piece


def fair_credits(
    records: Mapping[JobId, Record],
    journal: Journal,
    edges: Sequence[Seconds],
    now: Seconds,
    *,
    by_user: bool,
) -> list[dict[str, float]]:
    """GPU-seconds by user for each piece between two edges. It passes once over the moments at
    which something changes."""
    changes: list[Change] = [(edge, EDGE, "", 0) for edge in edges]
    changes += _gpu_changes(records, journal)
    changes += _job_changes(records, journal, now, by_user=by_user)
    changes.sort(key=lambda change: change[0])
    ledger = _Ledger(edges[0])
    for at, kind, owner, change in changes:
        ledger.advance(at)
        if kind == GPUS:
            ledger.gpus += change
        elif kind == JOBS:
            ledger.count_jobs(owner, change)
        else:
            ledger.close_piece()
    return ledger.credits[1:]


def _gpu_changes(records: Mapping[JobId, Record], journal: Journal) -> Iterator[Change]:
    for spell in journal.spells:
        if spell.job in records:
            yield spell.began, GPUS, "", spell.gpus
            yield spell.ended, GPUS, "", -spell.gpus


def _job_changes(
    records: Mapping[JobId, Record], journal: Journal, now: Seconds, *, by_user: bool
) -> Iterator[Change]:
    first = {spell.job: spell.began for spell in journal.spells if not spell.again}
    for record in records.values():
        owner = record.spec.user if by_user else f"{record.spec.user}\0{record.id}"
        holds = journal.holds.get(record.id, ())
        for start, end in _stays(record, holds, first.get(record.id), now):
            yield start, JOBS, owner, 1
            yield end, JOBS, owner, -1


class _Ledger:
    """The credits of owners until now. `_level` grows as a single part does, so an owner's credit
    is a difference of two levels."""

    def __init__(self, begin: Seconds) -> None:
        self.gpus = 0  # held by all
        self.credits: list[dict[str, float]] = []  # by user, one for each piece
        self._credit: dict[str, float] = defaultdict(float)
        self._jobs: Counter[str] = Counter()
        # present owners, with the level up to which they have their credit
        self._since: dict[str, float] = {}
        self._level = 0.0
        self._at = begin

    def advance(self, at: Seconds) -> None:
        if at > self._at and self._since:
            self._level += self.gpus * (at - self._at) / len(self._since)
        self._at = max(at, self._at)

    def count_jobs(self, owner: str, change: int) -> None:
        self._jobs[owner] += change
        present = owner in self._since
        if self._jobs[owner] and not present:
            self._since[owner] = self._level
        elif not self._jobs[owner] and present:
            self._pay(owner, self._since.pop(owner))

    def close_piece(self) -> None:
        for owner, start in self._since.items():
            self._pay(owner, start)
            self._since[owner] = self._level
        self.credits.append(self._credit)
        self._credit = defaultdict(float)

    def _pay(self, owner: str, start: float) -> None:
        self._credit[owner.partition("\0")[0]] += self._level - start


def _stays(
    record: Record, holds: Sequence[Span], first: Seconds | None, now: Seconds
) -> list[Span]:
    """When the job competed for GPUs: until its end, but not while it was held. Time before its
    first launch (`first`) counts only as its account says, because it may have waited for something
    else."""
    end = record.ended_at if record.ended_at is not None else max(now, record.submitted_at)
    began = record.submitted_at
    if record.account.waited is not None:
        anchor = end if first is None else first
        hold_seconds = sum(min(stop, anchor) - start for start, stop in holds if start < anchor)
        began = max(began, anchor - record.account.waited - hold_seconds)
    cuts = [began, *(max(moment, began) for span in holds for moment in span), end]
    return [(start, stop) for start, stop in list(pairwise(cuts))[::2] if stop > start]
