"""Daemons under an arbiter that lies: they run on, start nothing that their user did not submit, and go on with an honest
arbiter. Needs root."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from gpq.arbiter.arbiter import Arbiter
from gpq.arbiter.roster import Member, Roster
from gpq.config import TeamConfig
from gpq.connectors.ssh_agents import SshAgents
from gpq.control.controller import Controller
from gpq.core.model.actions import Action, Launch
from gpq.core.model.events import Event, NodeSeen, Submitted
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId
from gpq.daemon import team as link_module
from gpq.daemon.server import Door, Server
from gpq.daemon.team import TeamLink
from gpq.policies.registry import policy
from gpq.policies.team import TeamPolicy
from gpq.rpc.team_codec import decode_team_request
from gpq.rpc.team_messages import MAX_LINE
from tests.arbiter.heads import DECIDER, OWNER, Head
from tests.arbiter.liars import LIES, liar, me
from tests.arbiter.test_processes import Own
from tests.daemon.daemons import QUICK, clear
from tests.support.builders import black_box, node
from tests.support.memory_store import MemoryStore
from tests.support.users import shared_place
from tests.support.waiting import wait_until

MANY = 10_000


class World:
    """Servers that report nothing after their first word."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Sequence[Event] | None] = SimpleQueue()
        self.orders: list[Action] = []

    def now(self) -> float:
        return time.time()

    def wait(self, until: float) -> Sequence[Event] | None:
        try:
            return self.queue.get(timeout=min(max(until - self.now(), 0.0), 60.0))
        except Empty:
            return ()

    def perform(self, action: Action) -> None:
        self.orders.append(action)

    def wake(self) -> None:
        self.queue.put(())

    def publish(self, snapshot: Snapshot) -> None:
        """Nobody reads it here."""


CONFIG = """\
interval = 5.0
[team]
name = "{team}"
uid = {uid}
[nodes.here]
slots = 5
"""


def test_a_daemon_answers_its_user_while_its_arbiter_lies_and_its_jobs_start_once_one_is_honest() -> None:
    with shared_place() as place:
        team, canary = Head(place), place / "canary"
        own = Own(place / "own", CONFIG.format(team=team.name, uid=DECIDER.pw_uid), OWNER, pace=QUICK)
        try:
            with liar(team.name, DECIDER, canary) as hostile:
                own.start()
                jobs = [own.submit("touch", str(place / f"job{number}")) for number in range(2)]
                wait_until(lambda: _answers_while(own, jobs, min(hostile.lies.values()) > 0), "it told every lie")
                hostile.floods, before, begin = True, hostile.answers, time.monotonic()
                wait_until(lambda: _answers_while(own, jobs, hostile.answers > before + 40), "it answers without end")
                assert time.monotonic() - begin > 40 * link_module.PAUSE / 2  # a thread tells, and one takes
            assert own.process is not None
            assert own.process.poll() is None
            assert not canary.exists()
            assert not list(place.glob("job*"))
            team.start()
            wait_until(lambda: set(own.states().values()) == {"completed"}, "its jobs ran")
            assert {path.name for path in place.glob("job*")} == {"job0", "job1"}
            assert own.info().pid == own.process.pid
        finally:
            team.end()
            clear(own)


def _answers_while(own: Own, jobs: list[int], is_over: bool) -> bool:
    """The daemon answers, and what waits still waits."""
    assert own.states() == dict.fromkeys(jobs, "pending")
    return is_over


def test_ten_thousand_lies_start_nothing_and_an_honest_arbiter_is_believed_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("RETRY_SECONDS", "PAUSE"):
        monkeypatch.setattr(link_module, pause, 0.0)
    name, canary, world = f"t{uuid.uuid4().hex[:12]}", tmp_path / "canary", World()
    link = TeamLink(TeamConfig(name, uid=os.getuid()), str(tmp_path / "team.json"), world.now, SshAgents())
    controller = Controller(world, MemoryStore(), TeamPolicy(link.latest), Config(policy="team", floors=False))
    now, server = world.now(), node("here", 2)
    jobs = [Submitted(now, JobId(number), black_box()) for number in (1, 2, 3)]
    world.queue.put([NodeSeen(now, server), *jobs])
    loop = threading.Thread(target=controller.run)
    loop.start()
    try:
        with liar(name, me(), canary) as hostile:
            link.start(controller, dict)
            wait_until(lambda: hostile.answers >= MANY, "it has said enough", patience=300)
            assert min(hostile.lies.values()) > MANY / len(LIES) / 2
        assert world.orders == []
        assert not canary.exists()
        assert link.warnings()
        folder = tmp_path / "arbiter"
        folder.mkdir()
        Roster(name, members={"me": Member([os.getuid()], admin=True)}).save(str(folder / "roster.json"))
        arbiter = Arbiter(str(folder), policy("goodput"), Config())
        door = Door(arbiter.admits, arbiter.no_member(), longest_line=MAX_LINE, decode=decode_team_request)
        honest = Server(str(hostile.folder / "sock"), arbiter.handle, door=door)
        deciding = threading.Thread(target=arbiter.run)
        deciding.start()
        honest.start()
        try:
            wait_until(lambda: len(world.orders) == 2, "two jobs start")
        finally:
            arbiter.close()
            honest.close()
            deciding.join()
            hostile.folder.rmdir()
        launches = [order for order in world.orders if isinstance(order, Launch)]
        assert [(order.job, order.spec.argv) for order in launches] == [(1, ("train.py",)), (2, ("train.py",))]
    finally:
        link.close()
        world.queue.put(None)
        loop.join()
