"""What a member may see of the team: the queue, its members, the audit. Names that are private are
not told, so nobody can see them."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from gpq.config_rules import is_address
from gpq.control import sentences
from gpq.core.explain.obstacles import reason
from gpq.core.explain.standings import beyond_floor, of_running, of_waiting
from gpq.core.model.jobs import ANY_NUMBER
from gpq.core.model.nodes import DeviceState
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.core.sharing.floors import NO_DEBT
from gpq.core.team.grants import Holding
from gpq.errors import NotFound, UsageError
from gpq.rpc.team_codec import LONGEST_TEXT
from gpq.rpc.team_messages import (
    AuditLines,
    GpuHours,
    MemberRow,
    Membership,
    Queue,
    QueueRow,
    Reasons,
    TeamServer,
    TeamServers,
    View,
)

if TYPE_CHECKING:
    from gpq.arbiter.arbiter import Arbiter, Verdict

MOST_LINES = 1000


def view(arbiter: Arbiter, request: View, now: Seconds) -> msgspec.Struct:
    """Raises UsageError for an unknown kind."""
    match request.kind:
        case "queue":
            return _queue(arbiter, now)
        case "why":
            return _why(arbiter, request)
        case "members":
            return _membership(arbiter, now)
        case "report":
            return _report(arbiter, request)
        case "servers":
            return TeamServers(_servers(arbiter))
        case "audit":
            lines, broken = arbiter.audit.read(min(request.lines, MOST_LINES))
            texts = [line[:LONGEST_TEXT] for line in lines if line.isprintable()]
            return AuditLines(texts, broken)
    hint = "choose queue, members, report, servers, audit or why"
    raise UsageError(f"no view `{request.kind:.32}`", hint)


def reasons(verdict: Verdict, name: JobId) -> tuple[str, ...]:
    """Why the job waits, or how its user stands, the headline first. In words without ids of jobs,
    which mean something to their own user only. Empty: nothing keeps it."""
    snapshot = verdict.team.snapshot
    job = snapshot.jobs.get(name)
    if job is None:
        return ()
    if job.placement is not None:
        return tuple(map(sentences.text, of_running(snapshot, job)))
    if name in verdict.division.placements:
        return (sentences.text(reason("gpus-being-freed")),)
    obstacle = beyond_floor(snapshot, job)
    lines = obstacle.reasons if obstacle is not None else of_waiting(snapshot, job)
    return tuple(map(sentences.text, (reason("waits-for-gpus"), *lines)))


def _why(arbiter: Arbiter, request: View) -> Reasons:
    verdict = arbiter.verdict
    for name, (member, claim) in verdict.team.claims.items():
        if (member, claim.job) == (request.member, request.job):
            return Reasons(list(reasons(verdict, name)))
    hint = "`gpq status --team` lists the jobs of all"
    raise NotFound(f"no job {request.member}/{request.job} holds GPUs or waits for them", hint)


def _queue(arbiter: Arbiter, now: Seconds) -> Queue:
    team = arbiter.verdict.team
    rows = []
    for name, (member, claim) in team.claims.items():
        placement = team.presence.get(name)
        servers = [str(node) for node, _ in placement.parts] if placement else []
        report = arbiter.reports.get(member)
        age = report.statement.now - claim.submitted_at + now - report.at if report else 0.0
        count = sum(len(ids) for _, ids in claim.parts)
        rows.append(
            QueueRow(
                member,
                claim.job,
                claim.state,
                count,
                max(age, 0.0),
                claim.name,
                servers,
                "" if claim.parts else "".join(reasons(arbiter.verdict, name)[:1]),
            )
        )
    more = {name: report.statement.more for name, report in arbiter.reports.items()}
    return Queue(rows, {name: count for name, count in sorted(more.items()) if count})


def holdings(arbiter: Arbiter, now: Seconds) -> tuple[int, dict[str, Holding]]:
    """The GPUs of the team, and what each member has. A floor is what they can count on while all
    want some, or more."""
    verdict, members = arbiter.verdict, arbiter.roster.members
    size, gpus = _gpus(verdict)
    shares = sum(row.share for row in members.values())
    rows = {}
    for name, row in members.items():
        floor = verdict.floors[name].total if name in verdict.floors else 0
        floor = max(floor, int(size * row.share / shares))
        report = arbiter.reports.get(name)
        jobs = report.waiting(now) if report else 0
        rows[name] = Holding(name, gpus[name], floor, min(max(jobs, 0), ANY_NUMBER))
    return size, rows


def _gpus(verdict: Verdict) -> tuple[int, Counter[str]]:
    """How many there are, and how many the jobs of each member hold."""
    team, gpus = verdict.team, Counter[str]()
    for name, placement in team.presence.items():
        gpus[team.claims[name][0]] += placement.replicas
    return sum(len(node.devices) for node in team.snapshot.nodes.values()), gpus


def _report(arbiter: Arbiter, request: View) -> GpuHours:
    shares = {name: row.share for name, row in arbiter.roster.members.items()}
    until = request.until or "~"  # after any day
    days = {day: dict(charges) for day, charges in list(arbiter.ledger.days.items())}
    days = {day: charges for day, charges in days.items() if request.since <= day < until}
    hours = {
        name: sum(charges.get(name, 0.0) for charges in days.values()) / 3600
        for name in sorted({*shares, *chain(*days.values())})
    }
    return GpuHours(min(days, default=""), max(days, default=""), hours, shares)


def _membership(arbiter: Arbiter, now: Seconds) -> Membership:
    verdict, ledger = arbiter.verdict, arbiter.ledger
    size, gpus = _gpus(verdict)
    rows = []
    for name, row in sorted(arbiter.roster.members.items()):
        report, floor = arbiter.reports.get(name), verdict.floors.get(name)
        rows.append(
            MemberRow(
                name=name,
                share=row.share,
                admin=row.admin,
                paused=row.paused,
                silent=report is None or not report.is_fresh(now),
                floor=floor.total if floor else 0,
                devices=gpus[name],
                borrowed=floor.borrowed if floor else 0.0,
                debt=ledger.standings.get(name, NO_DEBT).debt,
                gpu_hours=ledger.gpu_seconds(name) / 3600,
            )
        )
    return Membership(rows, size)


def _servers(arbiter: Arbiter) -> list[TeamServer]:
    team = arbiter.verdict.team
    rows = []
    for name, node in team.snapshot.nodes.items():
        jobs = [job for (place, _), job in team.occupants.items() if place == name]
        free = [
            device
            for device in node.devices
            if device.state is DeviceState.OK and (name, device.id) not in team.occupants
        ]
        address, port = _address(arbiter, name)
        rows.append(
            TeamServer(
                name=name,
                address=address,
                port=port,
                state=node.state,
                kind=node.devices[0].kind,
                types=sorted({device.type for device in node.devices}),
                devices=len(node.devices),
                free=len(free),
                members=sorted(member for member, place in team.names if place == name),
                holders=dict(sorted(Counter(team.claims[job][0] for job in jobs).items())),
            )
        )
    return rows


def _address(arbiter: Arbiter, name: NodeId) -> tuple[str, int]:
    """As the first admin tells who has one. Others could lead newcomers to a machine of theirs."""
    for member in arbiter.roster.admins:
        own_name, report = (
            arbiter.verdict.team.names.get((member, name)),
            arbiter.reports.get(member),
        )
        for server in report.statement.servers if report else ():
            if server.name == own_name and is_address(server.address, server.port):
                return server.address, server.port
    return "", 0
