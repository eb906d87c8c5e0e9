"""Facts: the end of an attempt or of a job, concluded from the reports of servers
(`attempt_end.conclude`). `events` names all of them too."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpq.core.model.accounts import AttemptAccount
from gpq.core.model.placements import Exit
from gpq.core.model.units import JobId, Seconds


@dataclass(frozen=True, slots=True)
class Succeeded:
    at: Seconds
    job: JobId
    exit: Exit
    # of the ended attempt. None: there was none, or gpq did not keep it yet
    tally: AttemptAccount | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    at: Seconds
    job: JobId
    exit: Exit
    # of the ended attempt. None: there was none, or gpq did not keep it yet
    tally: AttemptAccount | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """The attempt is over but the job is not: it was asked to stop, or it failed and has another
    try."""

    at: Seconds
    job: JobId
    exit: Exit
    failed: bool = False
    quick: bool = False  # it failed within Config.quick_failure_seconds
    crashed: bool = False  # it was lost within Config.crash_seconds
    not_before: Seconds = 0.0
    soon: bool = False  # it ended within Config.quick_failure_seconds, and nobody had asked it to
    # of the ended attempt. None: there was none, or gpq did not keep it yet
    tally: AttemptAccount | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    at: Seconds
    job: JobId
    exit: Exit = field(default_factory=lambda: Exit(code=None))
    # of the ended attempt. None: there was none, or gpq did not keep it yet
    tally: AttemptAccount | None = None


@dataclass(frozen=True, slots=True)
class TimeLimitReached:
    at: Seconds
    job: JobId
    exit: Exit = field(default_factory=lambda: Exit(code=None))
    # of the ended attempt. None: there was none, or gpq did not keep it yet
    tally: AttemptAccount | None = None


End = Succeeded | Failed | Stopped | Cancelled | TimeLimitReached
