"""What is answered about the daemon, and about all at once."""

from __future__ import annotations

import msgspec

from gpq.rpc.job_answers import EventView, JobView
from gpq.rpc.node_answers import NodeView
from gpq.rpc.protocol import SCHEMA


class UserShare(msgspec.Struct, frozen=True):
    """One row of the fairness table by user."""

    user: str
    jobs: int
    gpus: int
    share: float  # of the devices in use
    fair_share: float  # of the devices
    speedup: float | None
    rho: float | None  # worst of the user's jobs
    gpu_seconds: float


class TopView(msgspec.Struct, frozen=True):
    nodes: list[NodeView]
    jobs: list[JobView]
    users: list[UserShare]
    changes: list[EventView]  # latest re-allocations with their reasons, newest first
    policy: str
    round_seconds: float | None  # how long the last round took
    round_age: float | None
    cluster_goodput: float
    now: str
    schema: int = SCHEMA


class TopLook(TopView, frozen=True):
    """What the pictures of `gpq top` are drawn of; `--json` prints the `TopView` in it."""

    # how many live jobs are in each state, also those that a filter hides
    states: dict[str, int] = {}


class Words(msgspec.Struct, frozen=True):
    words: list[tuple[str, str]]  # word, description


class DaemonInfo(msgspec.Struct, frozen=True):
    pid: int
    version: str
    home: str
    socket: str
    started_at: str
    uptime_seconds: float
    policy: str
    interval: float
    epoch: int
    jobs_live: int
    jobs_total: int
    rounds: int
    round_ms_median: float | None
    memory_mib: float
    nodes: dict[str, str]  # name -> state
    config_changed: bool = False  # config.toml is not the one that it read as it started
    metrics: str = ""  # where Prometheus metrics are served, or are to be; "" = nowhere
    metrics_problem: str = ""  # why they are not
    schema: int = SCHEMA
