"""The data types of accounting: what a job's attempts came to. The account is kept with the job and
reported with the end of each attempt.

Frozen data and arithmetic on it. GPU-seconds are devices held times seconds. Knows no job.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpq.core.model.units import Seconds


@dataclass(frozen=True, slots=True)
class MeanShare:
    """A job's average share over its life: the sum of share x seconds, and the seconds."""

    gpu_seconds: float = 0.0
    seconds: Seconds = 0.0

    def after(self, share: float, seconds: Seconds) -> MeanShare:
        """The average after the job had a fair share of `share` GPUs for `seconds` more."""
        return MeanShare(self.gpu_seconds + share * seconds, self.seconds + seconds)

    def mean(self, share: float) -> float:
        """GPUs. The present `share` if no time has passed."""
        return self.gpu_seconds / self.seconds if self.seconds > 0 else share


@dataclass(frozen=True, slots=True)
class Standing:
    """How a user stands with the others who share the GPUs."""

    debt: float = 0.0  # GPU-seconds borrowed while another user had too few, half of it each day
    short: Seconds = 0.0  # for how long the policy has left them below their floor, without a break


@dataclass(frozen=True, slots=True)
class Saving:
    """What growths saved: the seconds that the work of their attempts would have taken at the size
    before, less those it took."""

    promised: Seconds = 0.0
    measured: Seconds = 0.0

    def __add__(self, other: Saving) -> Saving:
        return Saving(self.promised + other.promised, self.measured + other.measured)


@dataclass(frozen=True, slots=True)
class AttemptAccount:
    """What an attempt came to, apart from its times. It is only known at the end of the attempt."""

    # its first step, or the start of its processes if the job reports no steps. None: never
    working_at: Seconds | None = None
    # GPU-seconds (`bookkeeping.worth`). None: the job reports no progress
    worth: float | None = None
    warm: bool = False  # a standby ran it
    # of the resize that began it: goodput after / before, as promised and as measured
    promised: float | None = None
    measured: float | None = None

    def saving(self, seconds: Seconds) -> Saving:
        """What the attempt has saved in `seconds`. Nothing if it began with no growth, or if what
        the growth brought is not known."""
        if self.promised is None or self.measured is None or self.promised <= 1.0:
            return Saving()
        return Saving((self.promised - 1.0) * seconds, (self.measured - 1.0) * seconds)


@dataclass(frozen=True, slots=True)
class Account:
    """What a job's ended attempts came to. None: not known, also for jobs from before accounts
    existed."""

    mark: Seconds | None = None  # since when it waits for its first launch, or is held
    # in the queue for its first launch, without holds by its user
    waited: Seconds | None = None
    held: Seconds = 0.0  # by its user
    working_at: Seconds | None = None  # of this attempt: its first step
    peak: float = 0.0  # base steps that are in `worth`
    worth: float | None = None  # GPU-seconds
    restart_cost: float | None = None  # GPU-seconds held by stops and starts after the first
    failed: float = 0.0  # GPU-seconds of attempts that failed or were lost
    growths: Saving = field(default_factory=Saving)
    share: float | None = None  # fair share in GPUs, averaged over its life. Set when it has ended
    rho: float | None = None  # finish-time fairness. Set when it has completed


@dataclass(frozen=True, slots=True)
class RestartTimes:
    """How a restart went, in seconds. `attempt` is the one that it began."""

    attempt: int
    warm: bool  # a standby ran it, so without the imports
    start: Seconds  # from the launch to the first step
    restore: Seconds  # of these, reading the checkpoint
    # from the order to stop to the end of the attempt before. None: that one ended by itself
    stop: Seconds | None = None
    save: Seconds = 0.0  # of these, writing the checkpoint


@dataclass(frozen=True, slots=True)
class Promise:
    """What a launch with another number of GPUs is expected to bring: goodput after / before, and
    the seconds of the restart."""

    ratio: float
    cost: Seconds


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a job had come at a moment, in steps at the base batch size."""

    at: Seconds
    base_steps: float


@dataclass(frozen=True, slots=True)
class Gain:
    """A resize: what was promised, and what came. `attempt` is the one that it began. Speeds are
    steps at the base batch size per second, from the marks around it. None: not measured."""

    at: Seconds
    attempt: int
    before: int  # GPUs
    after: int
    promise: Promise
    speed_before: float | None = None
    speed_after: float | None = None

    @property
    def measured(self) -> float | None:
        """Goodput after / before."""
        if not self.speed_before or self.speed_after is None:
            return None
        return self.speed_after / self.speed_before


Span = tuple[Seconds, Seconds]


def restart_spans(
    again: bool, began: Seconds, tally: AttemptAccount, stopping_at: Seconds | None, ended: Seconds
) -> tuple[Span, ...]:
    """When an attempt held its GPUs for a restart. One span is from the launch to the first step if
    it is not the job's first (`again`). The other is from the order to stop to its end if the job
    resumed later (`stopping_at`). They do not overlap."""
    spans = []
    since = began
    if again:
        since = min(max(tally.working_at, began), ended) if tally.working_at is not None else ended
        spans.append((began, since))
    if stopping_at is not None:
        spans.append((min(max(stopping_at, since), ended), ended))
    return tuple((start, end) for start, end in spans if end > start)


def restart_seconds(
    again: bool, began: Seconds, tally: AttemptAccount, stopping_at: Seconds | None, ended: Seconds
) -> Seconds:
    return sum(end - start for start, end in restart_spans(again, began, tally, stopping_at, ended))


@dataclass(frozen=True, slots=True)
class UserShare:
    """One user in the fairness table."""

    user: str
    jobs: int
    gpus: int
    share: float  # part of the GPUs in use
    fair_share: float  # fair part of the GPUs
    speedup: float | None  # mean over the user's jobs whose speedup is known
    rho: float | None  # the worst of the user's jobs
    gpu_seconds: float  # received by the user's live jobs
    floor: int | None = None  # GPUs. None: no other user has something to run
    borrowed: int = 0  # GPUs beyond the floor
