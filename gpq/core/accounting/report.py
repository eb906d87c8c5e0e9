"""Spells and records -> what each user, job, server or day had of the GPUs in a window, what it was
worth, and how fair it was.

Pure. What is only partly in the window counts by that part: the worth of an attempt is spread
evenly over it. At every moment all held GPUs count in equal parts for the owners whose jobs run or
wait: the fair share."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gpq.core.accounting.usage import Journal, Record, Spell
from gpq.core.model.accounts import Saving, Span
from gpq.core.model.jobs import TERMINAL, JobState
from gpq.core.model.snapshot import Config
from gpq.core.model.units import JobId, Seconds

RHO_EDGES = (0.5, 0.8, 1.0, 1.25, 2.0)  # between the bars of a histogram
BY = ("user", "job", "server", "day")
# whose part of a spell, which part of its devices, from when to when
Cut = tuple[str, float, Seconds, Seconds]
# when, kind, owner, by how much
Change = tuple[Seconds, int, str, int]
GPUS, JOBS, EDGE = 0, 1, 2  # kinds: GPUs held, an owner's jobs, the end of a piece


@dataclass(slots=True)
class Figures:
    """Figures of one user, job, server or day. GPU-seconds, unless noted otherwise. None if nothing
    is known."""

    jobs: set[JobId] = field(default_factory=set)  # that held GPUs, or ended
    ended: Counter[JobState] = field(default_factory=Counter)
    held: float = 0.0
    worth: float | None = None
    known: float = 0.0  # of `held`: by attempts whose worth is known
    waits: list[Seconds] = field(default_factory=list)  # of jobs launched for the first time
    restarts: int = 0
    warm: int = 0  # of these, by a standby
    growths: Saving = field(default_factory=Saving)
    restarting: float = 0.0
    failed: float = 0.0  # held by attempts that failed or were lost
    # finish-time fairness of completed jobs for which it is known
    rhos: list[float] = field(default_factory=list)
    # GPU-seconds of a fair share of everything held. Only for users
    fair: float | None = None

    @property
    def efficiency(self) -> float | None:
        return self.worth / self.known if self.worth is not None and self.known > 0 else None

    def add(self, spell: Spell, start: Seconds, end: Seconds, part: float) -> None:
        """The part of `spell` from `start` to `end`, for a `part` of its devices."""
        gpus = spell.gpus * part
        self.jobs.add(spell.job)
        self.held += gpus * (end - start)
        if spell.worth is not None:
            whole = spell.ended - spell.began
            self.worth = (self.worth or 0.0) + spell.worth * part * (
                (end - start) / whole if whole > 0 else 1.0
            )
            self.known += gpus * (end - start)
        is_restart = spell.again and start <= spell.began
        self.restarts += is_restart
        self.warm += is_restart and spell.tally.warm
        self.growths += spell.tally.saving(part * (end - start))
        self.restarting += gpus * sum(
            max(min(b, end) - max(a, start), 0.0) for a, b in spell.restarting
        )
        self.failed += gpus * (end - start) if spell.failed else 0.0


@dataclass(frozen=True, slots=True)
class Slice:
    """One user's part of a piece of the window, in GPU-seconds."""

    held: float
    worth: float
    fair: float


@dataclass(frozen=True, slots=True)
class Report:
    rows: Mapping[str, Figures]
    total: Figures
    pieces: tuple[Mapping[str, Slice], ...]  # by user, one for each piece between two `edges`
    # jobs below the first of RHO_EDGES, between each two, and above the last
    rho_counts: tuple[int, ...]


def report(
    records: Mapping[JobId, Record],
    journal: Journal,
    edges: Sequence[Seconds],
    by: str,
    now: Seconds,
    config: Config,
) -> Report:
    """`by` is one of BY. The keys of the rows are users, ids, servers, or numbers of pieces. The
    window is between the first and the last of `edges`, which are at least two and rising. They cut
    it into pieces: days, for a report by day. `config` says how fair shares are counted."""
    sums = _Sums(edges, by)
    for spell in journal.spells:
        record = records.get(spell.job)
        if record is not None:
            sums.add_spell(record, spell)
    for record in records.values():
        sums.add_end(record)
    pieces = over_time(records, journal, edges, now, config)
    bars = Counter(bisect_right(RHO_EDGES, rho) for rho in sums.total.rhos)
    return Report(
        sums.rows(pieces),
        sums.total,
        pieces,
        tuple(bars[index] for index in range(len(RHO_EDGES) + 1)),
    )


class _Sums:
    """What is in the window, in total and by the keys of the rows."""

    def __init__(self, edges: Sequence[Seconds], by: str) -> None:
        self.total = Figures()
        self._edges, self._by = edges, by
        self._since, self._until = edges[0], edges[-1]
        self._sums: dict[str, Figures] = defaultdict(Figures)

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
                subtotal.jobs.add(record.id)
                subtotal.ended[record.state] += 1
                if record.account.rho is not None:
                    subtotal.rhos.append(record.account.rho)

    def _of(self, record: Record, at: Seconds) -> list[Figures]:
        key = _key(self._by, record, at, self._edges)
        return [self.total, self._sums[key]] if key else [self.total]

    def rows(self, pieces: Sequence[Mapping[str, Slice]]) -> dict[str, Figures]:
        if self._by == "user":
            for subtotal in self._sums.values():
                subtotal.fair = 0.0
            for piece in pieces:
                for user, share in piece.items():
                    subtotal = self._sums[user]
                    subtotal.fair = (subtotal.fair or 0.0) + share.fair
        return self._sums


def quantile(values: Sequence[float], share: float) -> float | None:
    """Interpolated between the two nearest values. None without values."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


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


def over_time(
    records: Mapping[JobId, Record],
    journal: Journal,
    edges: Sequence[Seconds],
    now: Seconds,
    config: Config,
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
    fair = fair_credits(records, journal, edges, now, config)
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


def fair_credits(
    records: Mapping[JobId, Record],
    journal: Journal,
    edges: Sequence[Seconds],
    now: Seconds,
    config: Config,
) -> list[dict[str, float]]:
    """GPU-seconds by user for each piece between two edges. It passes once over the moments at
    which something changes."""
    changes: list[Change] = [(edge, EDGE, "", 0) for edge in edges]
    first: dict[JobId, Seconds] = {}
    for spell in journal.spells:
        if not spell.again:
            first[spell.job] = spell.began
        if spell.job in records:
            changes += (spell.began, GPUS, "", spell.gpus), (spell.ended, GPUS, "", -spell.gpus)
    for record in records.values():
        owner = record.spec.user if config.by_user else f"{record.spec.user}\0{record.id}"
        holds = journal.holds.get(record.id, ())
        for start, end in _stays(record, holds, first.get(record.id), now):
            changes += (start, JOBS, owner, 1), (end, JOBS, owner, -1)
    changes.sort(key=lambda change: change[0])
    ledger = _Ledger(edges[0], dict(config.user_weights))
    for at, kind, owner, change in changes:
        ledger.advance(at)
        if kind == GPUS:
            ledger.gpus += change
        elif kind == JOBS:
            ledger.count_jobs(owner, change)
        else:
            ledger.close_piece()
    return ledger.credits[1:]


class _Ledger:
    """The credits of owners until now. `_level` grows as the part of weight 1 does, so an owner's
    credit is a difference of two levels times the weight."""

    def __init__(self, begin: Seconds, weights: Mapping[str, float]) -> None:
        self.gpus = 0  # held by all
        self.credits: list[dict[str, float]] = []  # by user, one for each piece
        self._credit: dict[str, float] = defaultdict(float)
        self._jobs: Counter[str] = Counter()
        # present owners, with the level up to which they have their credit
        self._since: dict[str, float] = {}
        self._level = 0.0
        self._weights = weights
        self._weight = 0.0  # of all present owners
        self._at = begin

    def advance(self, at: Seconds) -> None:
        if at > self._at and self._since:
            self._level += self.gpus * (at - self._at) / self._weight
        self._at = max(at, self._at)

    def count_jobs(self, owner: str, change: int) -> None:
        self._jobs[owner] += change
        present = owner in self._since
        if self._jobs[owner] and not present:
            self._since[owner] = self._level
            self._weight += self._weights.get(owner, 1.0)
        elif not self._jobs[owner] and present:
            self._pay(owner, self._since.pop(owner))
            self._weight -= self._weights.get(owner, 1.0)

    def close_piece(self) -> None:
        for owner, start in self._since.items():
            self._pay(owner, start)
            self._since[owner] = self._level
        self.credits.append(self._credit)
        self._credit = defaultdict(float)

    def _pay(self, owner: str, start: float) -> None:
        amount = (self._level - start) * self._weights.get(owner, 1.0)
        self._credit[owner.partition("\0")[0]] += amount


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
