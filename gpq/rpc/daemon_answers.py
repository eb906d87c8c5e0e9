"""Answers about the daemon, and the answer of `gpq top`."""

from __future__ import annotations

import msgspec

from gpq.core.model.accounts import UserShare
from gpq.rpc.job_answers import EventView, JobView, TeamView
from gpq.rpc.node_answers import NodeView
from gpq.rpc.protocol import SCHEMA


class TopView(msgspec.Struct, frozen=True):
    nodes: list[NodeView]
    jobs: list[JobView]
    users: list[UserShare]
    changes: list[EventView]  # latest changes of GPUs with their reasons, newest first
    policy: str
    round_seconds: float | None  # how long the last round took
    round_age: float | None
    cluster_goodput: float
    now: str
    # hours that growths of the live jobs saved, as in `ReportRow`
    promised_hours: float = 0.0
    gained_hours: float = 0.0
    team: TeamView | None = None  # as in `JobList`
    schema: int = SCHEMA


class TopLook(TopView, frozen=True):
    """What `gpq top` draws. `--json` prints the `TopView` in it."""

    # number of live jobs in each state, including those that a filter hides
    states: dict[str, int] = {}
    fault: str = ""  # a line about a wrong answer of the policy


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
    config_changed: bool = False  # config.toml has changed since the daemon started
    metrics: str = ""  # address of the Prometheus metrics, "" if there is none
    metrics_problem: str = ""  # why the metrics are not served
    schema: int = SCHEMA
