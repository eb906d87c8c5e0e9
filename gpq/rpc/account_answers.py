"""What is answered about the past: jobs that ended, and who had what."""

from __future__ import annotations

import msgspec

from gpq.rpc.protocol import SCHEMA


class EndedView(msgspec.Struct, frozen=True):
    """One row of `gpq history`. None: not known, also of jobs from before gpq kept it."""

    id: int
    name: str
    user: str
    state: str
    exit_status: int | None  # None: it never ran
    reason: str  # how it failed
    submitted_at: str
    ended_at: str
    # from the submission to the first launch, less what its user held it
    wait_seconds: float | None
    run_seconds: float  # over all attempts, from launch to end
    gpus: float  # held, averaged over that
    gpu_hours: float
    goodput_hours: float | None  # what they were worth; None also where the job reports no progress
    restarts: int
    restart_gpu_hours: float | None  # of `gpu_hours`: stops and starts after the first
    failed_gpu_hours: float | None  # of `gpu_hours`: attempts that failed or were lost
    rho: float | None  # finish-time fairness, once it completed
    command: str = ""


class HistoryList(msgspec.Struct, frozen=True):
    """The latest to end is the last."""

    jobs: list[EndedView]
    hidden: int = 0  # that match as well, and ended earlier
    notes: list[str] = []  # jobs that were named and have not ended
    now: str = ""
    schema: int = SCHEMA


class ReportRow(msgspec.Struct, frozen=True):
    """What one user, job, server or day comes to."""

    key: str  # user, id, server, or the day as 2026-11-22
    user: str  # of a job
    name: str  # of a job
    jobs: int  # that held GPUs, or ended
    completed: int
    failed: int
    cancelled: int
    timeout: int
    gpu_hours: float
    goodput_hours: float | None  # what they were worth, where jobs report progress
    known_gpu_hours: float  # of `gpu_hours`: by attempts that reported progress
    efficiency: float | None  # goodput hours over these
    share: float | None  # of all GPU hours, 0 to 1; of users alone, as the next
    # 0 to 1: equal parts, at every moment, for all whose jobs ran or waited
    fair_share: float | None
    waits: int  # jobs that were first launched
    wait_median_seconds: float | None
    wait_p95_seconds: float | None
    restarts: int
    restart_gpu_hours: float
    failed_gpu_hours: float
    rhos: int  # jobs that completed and whose finish-time fairness is known
    rho_median: float | None
    rho_max: float | None


class UserPiece(msgspec.Struct, frozen=True):
    user: str
    gpu_hours: float
    goodput_hours: float
    fair_gpu_hours: float  # that the fair share would have been


class Piece(msgspec.Struct, frozen=True):
    """A part of the window: an hour, a day, a week or a month."""

    start: str
    end: str
    users: list[UserPiece]


class RhoBar(msgspec.Struct, frozen=True):
    """Jobs that completed with a finish-time fairness from `least` on, below `below`."""

    least: float
    below: float | None
    jobs: int


class ReportView(msgspec.Struct, frozen=True):
    since: str
    until: str
    by: str
    rows: list[ReportRow]  # most GPU hours first; days in their order
    total: ReportRow
    pieces: list[Piece]
    rho_bars: list[RhoBar]
    now: str = ""
    schema: int = SCHEMA
