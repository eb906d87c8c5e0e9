"""The types of what `--json` prints, of which the JSON Schemas are made."""

from __future__ import annotations

from dataclasses import dataclass

from gpq.demo import DemoResult
from gpq.demo_team import TeamResult
from gpq.lab.simulator.compare import FailedRun
from gpq.lab.simulator.outcomes import MemberSummary, Summary
from gpq.options import json_answers as own
from gpq.rpc import account_answers, daemon_answers, job_answers, node_answers, team_messages
from gpq.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class RunView(Summary):
    """One run."""

    cluster: str


@dataclass(frozen=True, slots=True)
class MeanView:
    """The means over the runs of one policy on one cluster."""

    cluster: str
    runs: int
    policy: str
    jobs: float
    avg_jct: float
    p50_jct: float
    p99_jct: float
    makespan: float
    rho_p95: float | None
    rho_max: float | None
    rho_above_1: float | None
    restarts_per_job: float
    promised_hours: float
    gained_hours: float
    gpu_hours: float
    goodput: float
    round_ms_median: float
    round_ms_max: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class MemberView(MemberSummary):
    """One member in one run."""

    cluster: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Answer of `gpq simulate`. Shares are from 0 to 1."""

    schema: int
    runs: list[RunView]
    means: list[MeanView]
    members: list[MemberView]
    failed: list[FailedRun]


# Command -> what it may print. All of them print `own.Error` when they fail.
PRINTED: dict[str, tuple[type, ...]] = {
    "submit": (job_answers.Submitted, job_answers.DryRun),
    "status": (job_answers.JobList, team_messages.Queue),
    "show": (job_answers.JobDetail,),
    "why": (job_answers.Explanation, team_messages.Reasons),
    "logs": (job_answers.LogChunk,),
    "cancel": (job_answers.CancelResult,),
    "hold": (job_answers.Changed,),
    "release": (job_answers.Changed,),
    "requeue": (job_answers.Changed,),
    "edit": (job_answers.Changed,),
    "wait": (job_answers.JobList,),
    "nodes list": (node_answers.NodeList, team_messages.TeamServers),
    "nodes add": (own.NodesAdded,),
    "nodes remove": (own.NodeRemoved,),
    "nodes drain": (node_answers.Drained,),
    "nodes undrain": (node_answers.Drained,),
    "nodes reserve": (node_answers.Reserved,),
    "nodes unreserve": (node_answers.Reserved,),
    "nodes clean": (node_answers.Cleaned,),
    "yield": (node_answers.Yielded,),
    "import slurm": (own.Imported,),
    "import ts": (own.Imported,),
    "history": (account_answers.HistoryList,),
    "report": (account_answers.ReportView, team_messages.GpuHours),
    "notify list": (own.Targets,),
    "notify test": (own.Sent,),
    "top": (daemon_answers.TopView, team_messages.Look),
    "team show": (team_messages.Membership,),
    "team audit": (team_messages.AuditLines,),
    "daemon status": (daemon_answers.DaemonInfo,),
    "check": (Verdict,),
    "doctor": (own.Checkup, own.GpuReport),
    "config show": (own.Settings,),
    "config check": (own.ConfigChecked,),
    "config path": (own.ConfigPath,),
    "config library": (own.LibraryPath,),
    "config policies": (own.Policies,),
    "simulate": (Comparison,),
    "demo": (DemoResult, TeamResult),
}
STREAMS = frozenset({"logs"})  # JSON Lines: the schema is that of one line
