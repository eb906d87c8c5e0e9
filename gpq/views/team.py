"""The texts of `gpq team`: its members, its audit, and whether all is as it should be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from gpq.rpc.team_messages import (
    AuditLines,
    GpuHours,
    Look,
    MemberRow,
    Membership,
    Queue,
    Reasons,
    TeamServer,
    TeamServers,
)
from gpq.views.accounts import hours
from gpq.views.detail import count
from gpq.views.plain import Head, columns, duration, ellipsis, moment, number, safe, table, wrap
from gpq.views.queue import percent

MEMBERS = (
    Head("MEMBER", 99, least=6), Head("SHARE", 80, right=True), Head("FLOOR", 90, right=True),
    Head("GPUS", 95, right=True), Head("BORROWED", 70, right=True), Head("DEBT H", 60, right=True),
    Head("GPU H", 65, right=True), Head("STATE", 85),
)  # fmt: skip
SERVERS = (
    Head("SERVER", 99, least=6), Head("ADDRESS", 70, least=8), Head("STATE", 95),
    Head("DEVICES", 90, least=8), Head("FREE", 92, right=True), Head("HELD BY", 85, least=8),
    Head("MEMBERS", 80, least=8),
)  # fmt: skip
JOBS = (
    Head("JOB", 99, least=5), Head("NAME", 70, least=4), Head("STATE", 95), Head("GPUS", 90),
    Head("AGE", 60, right=True), Head("REASON", 80, least=12),
)  # fmt: skip
HOURS = (*MEMBERS[:2], MEMBERS[6], Head("OF ALL", 90, right=True))
DECISIONS = {  # by what an entry of the audit says. Those of members have `by`, those of rounds not
    "start": "the arbiter started, epoch {epoch}",
    "join": "{member} joined as uid {value:.0f}",
    "add by": "{by} added uid {value:.0f} as {member}",
    "remove by": "{by} removed {member}",
    "share by": "{by} set the share of {member} to {value:g}",
    "pause by": "{by} paused {member}",
    "resume by": "{by} resumed {member}",
    "admin by": "{by} made {member} {role}",
    "recall by": "{by} recalled {member}/{job}",
    "recall": "{member}/{job} has to give back {places}",
    "grant": "{member}/{job} may start on {places}",
}


def lines(answer: Membership, limit: int, bar: str = "") -> list[str]:
    """`bar` is unused, but every view has this signature."""
    rows = [
        (
            safe(row.name), f"{row.share:g}", str(row.floor), str(row.devices),
            number(row.borrowed) if row.borrowed else "-", hours(row.debt / 3600 or None),
            hours(row.gpu_hours), _state(row),
        )
        for row in answer.rows
    ]  # fmt: skip
    text = table(columns(MEMBERS, rows), limit, mark=ellipsis())
    return [*text, "", *wrap(f"{answer.devices} GPUs. Floors count while several want some", limit)]


def queue(answer: Queue, limit: int, bar: str = "") -> list[str]:
    """The jobs of all, those that hold GPUs first."""
    rows = [
        (
            f"{safe(row.member)}/{row.job}", safe(row.name) or "-", safe(row.state),
            f"{row.gpus} on {safe(', '.join(row.servers))}" if row.gpus else "-", duration(row.age),
            safe(row.why),
        )
        for row in sorted(answer.rows, key=lambda row: (not row.gpus, row.member, row.job))
    ]  # fmt: skip
    more = [f"{number} more jobs of {safe(member)} wait" for member, number in answer.more.items()]
    if not rows:
        return ["no jobs", *more]
    return [*table(columns(JOBS, rows), limit, mark=ellipsis()), *more]


def page(answer: Look, limit: int, bar: str = "") -> list[str]:
    return [*lines(answer.members, limit), "", *queue(answer.queue, limit)]


def report(answer: GpuHours, limit: int, bar: str = "") -> list[str]:
    total = sum(answer.gpu_hours.values())
    if not total:
        return wrap("no member had a GPU in this time", limit)
    shares = {name: f"{share:g}" for name, share in answer.shares.items()}
    rows = [
        (safe(name), shares.get(name, "-"), hours(part), percent(part / total))
        for name, part in answer.gpu_hours.items()
    ]
    head = wrap(f"{answer.since} to {answer.until}, in whole days (UTC)", limit)
    return [*head, "", *table(columns(HOURS, rows), limit, mark=ellipsis())]


def servers(answer: TeamServers, limit: int, bar: str = "") -> list[str]:
    """The servers of all, with their GPUs or CPU slots."""
    rows = [
        (
            safe(row.name), safe(place(row)) or "-", safe(row.state),
            f"{row.devices} {safe(' '.join(row.types))}", str(row.free),
            safe(", ".join(f"{member} {held}" for member, held in row.holders.items())) or "-",
            safe(" ".join(row.members)),
        )
        for row in answer.rows
    ]  # fmt: skip
    if not rows:
        return ["no servers yet. They come with the daemon of an admin"]
    return table(columns(SERVERS, rows), limit, mark=ellipsis())


def place(row: TeamServer) -> str:
    return f"{row.address}:{row.port}" if row.port else row.address


def reasons(answer: Reasons, limit: int, bar: str = "") -> list[str]:
    head, *more = [safe(line) for line in answer.lines] or ["it runs, and its user has no more"]
    return [*wrap(head, limit), *(row for line in more for row in wrap(f"  - {line}", limit))]


def _state(row: MemberRow) -> str:
    words = {"admin": row.admin, "paused": row.paused, "silent": row.silent}
    return ", ".join(word for word, applies in words.items() if applies) or "-"


def prospects(answer: Membership, member: str) -> list[str]:
    """What a new member may count on."""
    shares = {row.name: row.share for row in answer.rows}
    text = ", ".join(f"{name} {share:g}" for name, share in shares.items())
    head = f"{count(len(shares), 'member', 'members')} with their shares: {text}"
    if not answer.devices:
        return [head, "the GPUs of the team count once the daemon of an admin has told of them"]
    floor = int(answer.devices * shares.get(member, 0.0) / sum(shares.values()))
    return [head, f"your floor is at least {floor} of {answer.devices} GPUs while all want some"]


def audit(answer: AuditLines, limit: int, bar: str = "") -> list[str]:
    return [row for line in answer.lines for row in wrap(decision(line), limit, indent="  ")]


def breach(answer: AuditLines) -> str:
    """A warning, or ""."""
    if not answer.broken:
        return ""
    return f"the audit is broken: line {answer.broken} does not follow from those before it"


def decision(line: str) -> str:
    """A line of the audit in words. One that gpq does not know stays as it is."""
    try:
        entry = json.loads(line)
        what = entry["what"]
        key = f"{what} by" if "by" in entry and what != "join" else what
        places = ", ".join(f"{len(ids)} x {node}" for node, ids in entry.get("devices", []))
        role = ("a plain member", "an admin")[entry.get("value") == 1]
        text = DECISIONS[key].format_map({**entry, "places": places, "role": role})
        return f"{moment(entry['at'])}  {text}"
    except (AttributeError, KeyError, TypeError, ValueError):
        return line


def checks(
    answer: Membership, queue: Queue, trail: AuditLines, warnings: Sequence[str]
) -> Iterator[tuple[bool, str]]:
    """Is it so, and what. `warnings` are those of the own daemon about the team."""
    yield not trail.broken, breach(trail) or "the audit is whole"
    waiting = {row.member for row in queue.rows if row.state == "pending"}
    for row in answer.rows:
        holds = row.devices >= row.floor or row.name not in waiting
        gpus = count(row.devices, "GPU", "GPUs")
        state = f"{safe(row.name)} holds {gpus}, with a floor of {row.floor}"
        if row.devices < row.floor:
            state += ", and jobs wait" if row.name in waiting else ", and no job waits"
        yield holds, state
    yield not warnings, "; ".join(warnings) or "your daemon hears the arbiter"
