"""The demonstration of a team: three members share two embedded servers, and one of them is greedy.

Each has a daemon of their own, and all jobs train for real. One account plays the three, so each
has a socket of the arbiter, which says who speaks there. In a team the kernel says that.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from gpq import config, paths
from gpq.arbiter.arbiter import Arbiter
from gpq.arbiter.roster import Member, Roster
from gpq.client import connection
from gpq.client.autostart import ensure_daemon
from gpq.core.model.jobs import TERMINAL
from gpq.core.team.grants import Grants
from gpq.daemon.main import core_config
from gpq.daemon.server import Door, Server
from gpq.demo import (
    DIGITS,
    PAUSE,
    SERVERS,
    SMALL_BATCH,
    Stage,
    acting_in,
    at_home,
    message,
    servers,
)
from gpq.demo import stage as private_stage
from gpq.errors import TimedOut
from gpq.policies.registry import policy
from gpq.ports import Peer
from gpq.rpc.job_answers import JobList, Submitted
from gpq.rpc.requests import Status, Submit
from gpq.rpc.team_codec import decode_team_request
from gpq.rpc.team_messages import MAX_LINE, Hello, MemberRow, Membership, TeamRequest, View

TEAM = "demo"
SLOTS = 2  # of each server
SHARES = {"ana": 2.0, "bob": 1.0, "cat": 1.0}
JOBS = {"ana": 2, "bob": 6, "cat": 1}  # of one GPU each
GREEDY = "bob"
KEPT = 0.8  # of the floor, on average
PATIENCE = 0.0  # seconds. Ten minutes is what a lab wants, which is longer than all of this
OTHERS = ("ana", "cat")
PART = replace(DIGITS, arguments=("--epochs", "12", *SMALL_BATCH[2:], "--width", "24"))
CONFIG = """\
# Written by `gpq demo --team` for {member}.
interval = 2.0
settle_seconds = 4.0
restart_seconds = 6.0

[team]
name = "{team}"
uid = {uid}
"""


class MemberResult(msgspec.Struct, frozen=True):
    name: str
    share: float
    floor: int
    gpus: float  # on average, while all wanted their floor
    wait: float | None  # seconds from the submission until the member held the floor
    completed: int  # jobs


class TeamResult(msgspec.Struct, frozen=True):
    """What `gpq demo --team --json` prints."""

    members: list[MemberResult]
    alone: int  # GPUs of the greedy member before the others came
    seconds: float
    home: str  # "" for a temporary folder, which is gone
    passed: bool
    schema: int = 1


@dataclass
class TeamStage:
    private: Stage
    arbiter: Arbiter
    ids: dict[str, list[int]] = field(default_factory=dict)  # of jobs, by member

    def members(self) -> Membership:
        answer = self.arbiter.handle(View(kind="members"), _peer(GREEDY))
        assert isinstance(answer, Membership)
        return answer

    def submit(self, member: str) -> None:
        """All jobs of this member."""
        priority = 10 if member == GREEDY else 0
        spec = msgspec.structs.replace(message(self.private, PART), max_gpus=1, priority=priority)
        with acting_in(self.private.home / member):
            self.ids[member] = [
                connection.call(Submit(spec), Submitted).id for _ in range(JOBS[member])
            ]

    def states(self, member: str) -> list[str]:
        """Of the jobs of this member."""
        with acting_in(self.private.home / member):
            answer = connection.call(Status([str(number) for number in self.ids[member]]), JobList)
        return [job.state for job in answer.jobs]

    def live(self, member: str) -> int:
        """How many jobs of this member have not ended."""
        return sum(state not in TERMINAL for state in self.states(member))


@contextlib.contextmanager
def stage(home: str = "") -> Iterator[TeamStage]:
    """An arbiter and three daemons, each in a folder of its own. As `gpq.demo.stage`."""
    with private_stage(home) as private, contextlib.ExitStack() as stack:
        here = TeamStage(private, _arbiter(private))
        thread = threading.Thread(target=here.arbiter.run, name="arbiter")
        thread.start()
        stack.callback(thread.join)
        stack.callback(here.arbiter.close)
        for member in SHARES:
            folder = private.home / member
            folder.mkdir(exist_ok=True)
            text = CONFIG.format(member=member, team=_address(member), uid=os.getuid())
            (folder / "config.toml").write_text(text + servers(SLOTS))
            stack.enter_context(_listening(here.arbiter, member))
            stack.enter_context(at_home(folder))
            ensure_daemon(quiet=True)
        yield here


def _arbiter(private: Stage) -> Arbiter:
    folder = private.home / "arbiter"
    folder.mkdir(exist_ok=True)
    members = {
        name: Member([_peer(name).uid], share, admin=name == GREEDY)
        for name, share in SHARES.items()
    }
    Roster(TEAM, members=members, floor_patience=PATIENCE).save(str(folder / "roster.json"))
    settings = core_config(config.load(), gang=False, port_salt=0)
    return Arbiter(str(folder), policy(private.policy), settings)


@contextlib.contextmanager
def _listening(arbiter: Arbiter, member: str) -> Iterator[None]:
    """To the daemon of this member."""

    def answer(request: TeamRequest, peer: Peer) -> msgspec.Struct | Grants:
        if isinstance(request, Hello):
            request = Hello(team=TEAM)
        return arbiter.handle(request, _peer(member))

    folder = paths.team_folders(_address(member), os.getuid())[-1]
    door = Door(longest_line=MAX_LINE, decode=decode_team_request)
    server = Server(os.path.join(folder, "sock"), answer, door=door)
    try:
        server.start()
        yield
    finally:
        server.close()
        os.rmdir(folder)


def _address(member: str) -> str:
    """What the daemon of this member calls the team."""
    return f"{TEAM}-{os.getpid()}-{member}"


def _peer(member: str) -> Peer:
    return Peer(list(SHARES).index(member) + 1, os.getpid(), member, lambda: False)


def play(here: TeamStage, draw: Callable[[Membership, str], None], *, timeout: float) -> TeamResult:
    """First comes the greedy member, then the others. Calls `draw` with each picture. Raises
    TimedOut at `timeout`."""
    started = time.monotonic()

    def look(act: str) -> Mapping[str, MemberRow]:
        if time.monotonic() - started > timeout:
            raise TimedOut(f"the demo did not end within {timeout:.0f} s", "use a longer --timeout")
        time.sleep(PAUSE)
        members = here.members()
        draw(members, act)
        return {row.name: row for row in members.rows}

    here.submit(GREEDY)
    alone = 0
    while alone < SLOTS * len(SERVERS):
        rows = look(f"{GREEDY} submits {JOBS[GREEDY]} urgent jobs, and has all GPUs")
        alone = rows[GREEDY].devices
    for member in OTHERS:
        here.submit(member)
    came = time.monotonic()
    waits: dict[str, float] = {}  # seconds until the floor, by member
    samples = []  # while all have their floor
    while True:
        rows = look("the others come, and each gets their floor")
        if any(here.live(member) < JOBS[member] for member in OTHERS):
            break
        for name, row in rows.items():
            if row.devices >= row.floor > 0:
                waits.setdefault(name, time.monotonic() - came)
        if len(waits) == len(SHARES):
            samples.append(rows)
    while any(map(here.live, OTHERS)):
        look(f"their jobs end, and {GREEDY} borrows the GPUs")
    states = {member: here.states(member) for member in SHARES}
    result = judge(samples, waits, states, alone)
    here.private.failed = not result.passed
    home = "" if result.passed and here.private.temporary else str(here.private.home)
    return msgspec.structs.replace(result, home=home, seconds=time.monotonic() - started)


def judge(
    samples: Sequence[Mapping[str, MemberRow]],
    waits: Mapping[str, float],
    states: Mapping[str, Sequence[str]],
    alone: int,
) -> TeamResult:
    """Passed: all came to their floor and kept it while all had jobs, but for the moments between
    two jobs. The others' jobs are complete, and none failed."""
    members = [
        MemberResult(
            name,
            share,
            samples[-1][name].floor if samples else 0,
            sum(rows[name].devices for rows in samples) / max(len(samples), 1),
            waits.get(name),
            states[name].count("completed"),
        )
        for name, share in SHARES.items()
    ]
    is_fair = all(row.gpus >= KEPT * row.floor for row in members)
    is_complete = all(set(states[member]) == {"completed"} for member in OTHERS)
    is_failed = any("failed" in own for own in states.values())
    return TeamResult(
        members, alone, 0.0, "", bool(samples) and is_fair and is_complete and not is_failed
    )
