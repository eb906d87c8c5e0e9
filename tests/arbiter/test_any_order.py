"""Whatever happens in whatever order, and whatever one of the members tells: honest daemons never hear a wrong answer,
no device has two jobs, nobody stays without GPUs that could be had, and what runs is touched by a round of the arbiter
alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpq.core.model.events import CancelAsked
from gpq.core.model.jobs import JobState
from gpq.core.model.nodes import DeviceState, NodeState
from gpq.core.model.units import NodeId
from gpq.core.team.claims import Claim, DeviceView, ServerView, Statement
from tests.arbiter.test_decisions import USERS, Head
from tests.support.builders import black_box, spec
from tests.support.laboratory import Laboratory, Member, machine
from tests.support.teams import trained

PHASES = (Phase.explicit, Phase.generate)  # to shrink a course takes too long
LIAR = "bob"
GPUS = machine("1", 4)
Lie = Callable[[Statement], Statement]


def _claims(change: Callable[[Claim], Claim]) -> Lie:
    return lambda news: replace(news, claims=tuple(map(change, news.claims)))


def _has_all(news: Statement) -> Statement:
    """Its first job holds every device of the first server."""
    parts = ((news.servers[0].name, tuple(device.id for device in news.servers[0].devices)),)
    first = [replace(claim, parts=parts, attempt=9) for claim in news.claims[:1]]
    return replace(news, claims=(*first, *news.claims[1:]))


def _invents(news: Statement) -> Statement:
    devices = tuple(
        DeviceView(device.id, index, "cuda", "A100", 40_000) for index, device in enumerate(news.servers[0].devices)
    )
    fakes = tuple(replace(device, id=f"fake-{device.id}") for device in devices)
    return replace(news, servers=(*news.servers, ServerView(NodeId("fake"), "fake", NodeState.UP, fakes)))


def _says(state: DeviceState) -> Lie:
    def lie(news: Statement) -> Statement:
        servers = tuple(
            replace(server, devices=tuple(replace(device, state=state) for device in server.devices))
            for server in news.servers
        )
        return replace(news, servers=servers)

    return lie


LIES: dict[str, Lie] = {
    "honest": lambda news: news,
    "has all": _has_all,
    "invents": _invents,
    "all is broken": _says(DeviceState.LOST),
    "all is free": _says(DeviceState.OK),
    "old": _claims(lambda claim: replace(claim, submitted_at=-1e9, service=0.0)),
    "urgent": _claims(lambda claim: replace(claim, priority=1 << 40)),
    "many": lambda news: replace(
        news,
        claims=(*news.claims, *(Claim(n, news.now) for n in range(5000, 5100))),  # type: ignore[arg-type]
    ),
    "odd numbers": _claims(
        lambda claim: replace(
            claim,
            min_gpus=-(1 << 53),
            max_gpus=-1,
            time_limit=-1.0,
            service=-1e9,
            run_seconds=-1e9,
            rows=tuple(replace(row, step_time=0.0, grad_time=-1.0, weight=-1.0) for row in claim.rows),
        )
    ),
    "from the future": lambda news: replace(news, now=news.now + 1e9),
    "twice": lambda news: replace(news, claims=news.claims * 2, servers=news.servers * 2),
    "holds no device of a server": _claims(lambda claim: replace(claim, parts=((NodeId("gpu1"), ()),))),
    "holds a server twice": _claims(
        lambda claim: replace(claim, parts=tuple((NodeId("gpu1"), (id,)) for id in GPUS[:2]))
    ),
    "runs nowhere": _claims(lambda claim: replace(claim, parts=(), state=JobState.RUNNING, started_at=0.0)),
    "has nothing": lambda news: Statement(news.now),
}
OPERATIONS = ("box", "train", "small", "cancel", "down", "up", "restart", "silence", "steps")


def _do(operation: str, member: Member, lab: Laboratory, head: Head) -> None:
    match operation:
        case "box":
            member.submit(black_box(2), trained())
        case "train":
            member.submit(spec(), trained())
        case "small":
            member.submit(spec(up_to=2), trained())
        case "cancel":
            for name in list(member.snapshot.jobs)[:1]:
                member.events.append(CancelAsked(lab.now, name))
        case "down" | "up":
            member.is_up = operation == "up"
        case "restart":
            head.start()
        case "silence":
            for _ in range(5):
                lab.step(lambda name, seq, news: None)


@pytest.mark.parametrize("lie", LIES)
@settings(
    max_examples=5,
    phases=PHASES,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(course=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(list(USERS))), max_size=25))
def test_nobody_is_wronged(lie: str, course: list[tuple[str, str]], tmp_path: Path) -> None:
    lab = Laboratory({"gpu1": GPUS, "gpu2": machine("2", 4)})
    head = Head(lab, tmp_path)
    members = {name: lab.join(name) for name in USERS}
    members[LIAR].lie = LIES[lie]
    for operation, name in course:
        _do(operation, members[name], lab, head)
        for _ in range(3):
            lab.step(head.answer)
    for member in members.values():
        member.is_up = True
        member.submit(spec(), trained())
    honest = [member for name, member in members.items() if name != LIAR]
    for _ in range(220):
        if all(member.gpus > 0 for member in honest):
            break
        lab.step(head.answer)
    # A job that cannot be stopped keeps its GPUs. Somebody who was alone may have given it all of them.
    held = {place: name for place, (name, job) in lab.locks.items() if not members[name].job(job).movable}
    if lie == "has all":  # so that their daemon understands no answer. Only root could take their GPUs back
        held |= {place: name for place, (name, _) in lab.locks.items() if name == LIAR}
    rivals, room = len(members.keys() - held.values()), sum(map(len, lab.machines.values())) - len(held)
    assert sum(member.gpus == 0 for member in honest) <= max(rivals - room, 0)
    assert sum(member.refused for member in honest) <= 2 * len(course)
