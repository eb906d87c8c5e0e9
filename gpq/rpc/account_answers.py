"""Answers about the past: jobs that ended, and GPU hours."""

from __future__ import annotations

import msgspec

from gpq.rpc.protocol import SCHEMA


class EndedView(msgspec.Struct, frozen=True):
    """One row of `gpq history`. None: not known, also for jobs from before gpq recorded it."""

    id: int
    name: str
    user: str
    state: str
    exit_status: int | None  # None: it never ran
    reason: str  # how the job failed
    submitted_at: str
    ended_at: str
    # from submission to the first start, without the time on hold
    wait_seconds: float | None
    run_seconds: float  # over all attempts, from start to end
    gpus: float  # mean number of GPUs over that time
    gpu_hours: float
    goodput_hours: float | None  # what they were worth. None if the job reports no progress
    restarts: int
    restart_gpu_hours: float | None  # part of `gpu_hours` for stops and restarts
    failed_gpu_hours: float | None  # part of `gpu_hours` in attempts that failed or were lost
    rho: float | None  # finish-time fairness, if the job completed
    command: str = ""


class HistoryList(msgspec.Struct, frozen=True):
    """Jobs in the order of their ends, the latest last."""

    jobs: list[EndedView]
    hidden: int = 0  # more jobs that match and ended earlier
    notes: list[str] = []  # about named jobs that have not ended
    now: str = ""
    schema: int = SCHEMA


class ReportRow(msgspec.Struct, frozen=True):
    """The figures of one user, job, server or day."""

    key: str  # user, id, server, or day such as 2026-11-22
    user: str  # user of a job
    name: str  # name of a job
    jobs: int  # jobs that had GPUs or ended
    completed: int
    failed: int
    cancelled: int
    timeout: int
    gpu_hours: float
    goodput_hours: float | None  # what they were worth, over jobs that report progress
    known_gpu_hours: float  # part of `gpu_hours` in attempts that reported progress
    efficiency: float | None  # goodput_hours / known_gpu_hours
    share: float | None  # part of all GPU hours, 0 to 1. Only for users, like fair_share
    # 0 to 1: the share if all users with running or waiting jobs had shared equally at every moment
    fair_share: float | None
    waits: int  # jobs with a first start in this time
    wait_median_seconds: float | None
    wait_p95_seconds: float | None
    restarts: int
    restart_gpu_hours: float
    failed_gpu_hours: float
    rhos: int  # completed jobs whose finish-time fairness is known
    rho_median: float | None
    rho_max: float | None
    warm_restarts: int = 0  # of `restarts`, by a standby
    # hours that growths saved: what was done, in hours at the size before, less the hours it took.
    # Only of growths for which both the promise and the measurement are known
    promised_hours: float = 0.0
    gained_hours: float = 0.0


class UserPiece(msgspec.Struct, frozen=True):
    user: str
    gpu_hours: float
    goodput_hours: float
    fair_gpu_hours: float  # GPU hours of the fair share


class Piece(msgspec.Struct, frozen=True):
    """A part of the time: an hour, a day, a week or a month."""

    start: str
    end: str
    users: list[UserPiece]


class RhoBar(msgspec.Struct, frozen=True):
    """Completed jobs with a finish-time fairness of at least `least` and below `below`."""

    least: float
    below: float | None
    jobs: int


class ReportView(msgspec.Struct, frozen=True):
    since: str
    until: str
    by: str
    rows: list[ReportRow]  # most GPU hours first, or days in order
    total: ReportRow
    pieces: list[Piece]
    rho_bars: list[RhoBar]
    now: str = ""
    # jobs that ended before `since`, if the request left it open: only the latest few thousand are
    # reported then
    earlier: int = 0
    schema: int = SCHEMA
