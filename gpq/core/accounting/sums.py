"""Figures of a report: sums over attempts, quantiles, and what follows from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpq.core.accounting.usage import Spell
from gpq.core.model.accounts import Saving
from gpq.core.model.jobs import JobState
from gpq.core.model.units import JobId, Seconds

RHO_EDGES = (0.5, 0.8, 1.0, 1.25, 2.0)  # between the bars of a histogram


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one user, job, server or day. GPU-seconds, unless noted otherwise. None if nothing
    is known."""

    jobs: int  # that held GPUs, or ended
    ended: Mapping[JobState, int]
    held: float
    worth: float | None
    known: float  # of `held`: by attempts whose worth is known
    waits: int  # jobs that were launched for the first time
    wait_median: Seconds | None
    wait_p95: Seconds | None
    restarts: int
    warm: int  # of these, by a standby
    growths: Saving
    restarting: float
    failed: float  # held by attempts that failed or were lost
    rhos: int  # completed jobs whose finish-time fairness is known
    rho_median: float | None
    rho_max: float | None
    # GPU-seconds of a fair share of everything held. Only for users
    fair: float | None = None

    @property
    def efficiency(self) -> float | None:
        return self.worth / self.known if self.worth is not None and self.known > 0 else None


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


@dataclass(slots=True)
class Sum:
    jobs: set[JobId] = field(default_factory=set)
    ended: Counter[JobState] = field(default_factory=Counter)
    held: float = 0.0
    worth: float | None = None
    known: float = 0.0
    waits: list[Seconds] = field(default_factory=list)
    restarts: int = 0
    warm: int = 0
    growths: Saving = field(default_factory=Saving)
    restarting: float = 0.0
    failed: float = 0.0
    rhos: list[float] = field(default_factory=list)

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
        if spell.restarting:
            self.restarting += gpus * sum(
                max(min(b, end) - max(a, start), 0.0) for a, b in spell.restarting
            )
        self.failed += gpus * (end - start) if spell.failed else 0.0

    def figures(self, fair: float | None = None) -> Figures:
        return Figures(
            jobs=len(self.jobs),
            ended=dict(self.ended),
            held=self.held,
            worth=self.worth,
            known=self.known,
            waits=len(self.waits),
            wait_median=quantile(self.waits, 0.5),
            wait_p95=quantile(self.waits, 0.95),
            restarts=self.restarts,
            warm=self.warm,
            growths=self.growths,
            restarting=self.restarting,
            failed=self.failed,
            rhos=len(self.rhos),
            rho_median=quantile(self.rhos, 0.5),
            rho_max=max(self.rhos, default=None),
            fair=fair,
        )


def quantile(values: Sequence[float], share: float) -> float | None:
    """Interpolated between the two nearest values. None without values."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
