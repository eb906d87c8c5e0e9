"""When the daemon gives up an attempt. It uses a clock that nobody sets, and waits after an absence of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from gpq_agent import wire

from gpq import pace
from gpq.config import NodeConfig
from gpq.core.feasibility.leases import patience
from gpq.core.model.actions import Launch
from gpq.core.model.events import Exited, NodeSeen, NodeSilent, Started
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.nodes import DeviceState
from gpq.core.model.placements import Exit
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.state.apply_events import fold
from gpq.daemon.clock import Clock, DaemonEpoch, steady_seconds
from gpq.daemon.nodes.leases import ABSENCE, LeaseWatch
from gpq.daemon.nodes.observer import Observer
from gpq.daemon.nodes.settings import NodeSettings
from gpq.daemon.nodes.world import LiveWorld
from gpq.daemon.orders import start_order
from gpq.store.sqlite import SqliteStore
from tests.agent.node.harness import sweep
from tests.contract.test_worlds import Loop, shell
from tests.support.builders import black_box, node, on, running, snapshot

A = NodeId("a")


class Given:
    """A watch with clocks that the test moves."""

    def __init__(self, *jobs: Job) -> None:
        self.counted = 1000.0
        self.wall = 5e8
        self.heard: dict[NodeId, float] = {A: 1000.0}
        self.state: Snapshot = snapshot(*jobs)
        self.forgone: set[tuple[JobId, int]] = set()
        self.on_forgo: Callable[[], None] = lambda: None
        self.watch = LeaseWatch(
            lambda: self.heard,
            lambda: self.state,
            lambda: self.wall,
            lambda _: None,
            lambda: self.counted,
            forgo=self._forgo,
            resume=lambda _, keys: self.forgone.difference_update(keys),
        )

    def _forgo(self, node: NodeId, keys: frozenset[tuple[JobId, int]]) -> None:
        self.forgone |= keys
        self.on_forgo()

    def pass_(self, seconds: float, step: float = 1.0) -> list[Any]:
        """Look each `step` seconds and return the first reports."""
        until = self.counted + seconds
        while self.counted < until:
            self.counted = min(self.counted + step, until)
            if events := self.watch.look():
                return events
        return []


def leased(lease: float = 600.0) -> Job:
    return running(1, on("a", 0), spec_=black_box(requeue_on_lost=lease), declared=False)


def test_the_end_comes_after_lease_and_margin_whatever_the_wall_clock_says() -> None:
    given = Given(leased())
    given.wall += 1e9
    assert given.pass_(patience(leased()) - 1.0) == []
    given.wall -= 2e9
    given.state = fold(given.state, [NodeSeen(0.0, node("a"))]).snapshot
    silent, end = given.pass_(2.0)
    assert isinstance(silent, NodeSilent)  # no round may choose this GPU for the next attempt
    assert silent.since == pytest.approx(given.wall - patience(leased()), abs=1.1)
    assert (end.node, end.at, end.exit.fenced) == (A, given.wall, True)


def test_a_server_that_is_removed_counts_as_silent_only_from_then_on() -> None:
    """Its agent still counts down the whole lease. A second attempt before that would run beside the first."""
    given = Given(leased())
    while given.counted < 1000.0 + 2 * patience(leased()):
        given.heard[A] = given.counted = given.counted + 1.0
        assert given.watch.look() == []
    del given.heard[A]  # `gpq nodes remove a --force`
    assert given.pass_(patience(leased()) - 1.0) == []
    assert given.pass_(3.0) != []


def test_the_reason_for_a_silence_stays_the_one_of_its_link() -> None:
    given = Given(leased())
    refuses = NodeSilent(given.wall, A, "a refuses connections", given.wall - 20.0)
    given.state = fold(given.state, [NodeSeen(0.0, node("a")), refuses]).snapshot
    [end] = given.pass_(patience(leased()) + 5.0)
    assert isinstance(end, Exited)
    assert fold(given.state, [end]).snapshot.nodes[A].reason == "a refuses connections"


def test_a_server_that_answers_renews_its_leases() -> None:
    given = Given(leased(60.0))
    for _ in range(20):
        assert given.pass_(50.0) == []
        given.heard[A] = given.counted
    assert given.pass_(100.0)


def test_after_an_absence_of_its_own_the_daemon_listens_first() -> None:
    given = Given(leased())
    assert given.pass_(7200.0, step=7200.0) == []  # it was stopped, or its machine slept
    assert given.pass_(pace.LISTENING - 1.0) == []
    assert given.pass_(2.0)
    assert ABSENCE > 1.0


def test_a_server_without_a_connection_is_silent_from_the_start() -> None:
    given = Given(leased())
    given.heard.clear()
    assert given.pass_(patience(leased()) - 1.0) == []
    assert given.pass_(2.0)


def test_an_attempt_that_was_given_up_may_not_start() -> None:
    """Its end may wait for the disk while the server is back. A start that is still on the disk would then be repeated."""
    given = Given(leased())
    assert given.pass_(patience(leased()) + 1.0)
    assert given.forgone == {(JobId(1), 1)}


def test_a_server_heard_of_at_that_moment_is_not_given_up() -> None:
    given = Given(leased())
    given.on_forgo = lambda: given.heard.update({A: given.counted})
    assert given.pass_(patience(leased()) + 5.0) == []
    assert not given.forgone


def test_jobs_without_a_lease_are_never_given_up() -> None:
    assert Given(running(1, on("a", 0))).pass_(1e5, step=4.0) == []


def info(state: str, lease: float, **more: Any) -> Mapping[str, Any]:
    end = wire.ExitRecord(1, 1, 0, None, False, None, 1.0, 2.0)._asdict()
    return wire.AttemptInfo(1, 1, state, lease=lease, exit=end, **more)._asdict()


def test_the_end_of_an_abandoned_attempt_is_reported_once_and_kept_first() -> None:
    observer = Observer(NodeSettings(A), Clock())
    state = snapshot(running(1, on("b", 0), attempt=2))

    def news(one: Mapping[str, Any]) -> list[Any]:
        key = (JobId(1), 1)
        events, _ = observer.news({key: one}, [], state, offsets={}, start_possible=lambda _: False)
        return [event for event in events if isinstance(event, Exited)]

    [late] = news(info("exited", 600.0))
    assert (late.attempt, late.exit) == (1, Exit(0))
    assert observer.is_late((JobId(1), 1))
    assert news(info("exited", 600.0)) == []
    busy = {"id": "a-0", "index": 0, "kind": "cuda", "type": "A100"}
    alive = info(
        "running", 600.0, devices=["a-0"]
    )  # e.g. its shim was killed: gpq is ending it, and its GPU is not free
    told, _ = observer.news({(JobId(1), 1): alive}, [busy], state, offsets={}, start_possible=lambda _: False)
    [seen] = [event for event in told if isinstance(event, NodeSeen)]
    assert seen.node.devices[0].state is DeviceState.FOREIGN
    assert "attempt 1.1, which gpq is ending" in seen.node.devices[0].reason
    fresh = Observer(NodeSettings(A), Clock())
    observer = fresh
    assert news(info("exited", 0.0)) == []  # an attempt without a lease was not given up
    assert not fresh.is_late((JobId(1), 1))


def test_a_start_order_carries_the_lease_and_its_margin() -> None:
    job = leased()
    assert job.placement is not None
    order = start_order(Launch(job.id, 1, job.spec, job.placement, job.order), A, nodes={}, library="/lib")
    assert (order.lease, order.lease_margin) == (600.0, pytest.approx(33.0))
    assert order.devices == [DeviceId("a-0")]


def test_a_store_knows_whether_it_is_still_the_latest_and_keeps_its_id(tmp_path: Path) -> None:
    path = str(tmp_path / "state" / "gpq.db")
    first = SqliteStore(path)
    assert first.holds()
    second = SqliteStore(path)
    assert (first.holds(), second.holds()) == (False, True)
    assert first.id == second.id
    assert second.epoch == first.epoch + 1
    other = SqliteStore(str(tmp_path / "other" / "gpq.db"))
    assert other.id != first.id
    for store in (first, second, other):
        store.close()
    assert not second.holds()
    assert os.path.exists(path)


def test_a_replaced_daemon_neither_renews_nor_starts(tmp_path: Path) -> None:
    holds = [True]
    epoch = DaemonEpoch("a1b2", 3, lambda: holds[0])
    world = LiveWorld({str(A): NodeConfig(slots=2)}, str(tmp_path / "home"), epoch=epoch)
    world.start()
    try:
        loop = Loop(world)
        loop.nodes_up()
        order = loop.launch(shell("exec sleep 600", tmp_path, requeue_on_lost=3.0))
        loop.until(lambda: loop.has(Started), "it runs")
        begun = steady_seconds()
        loop.until(lambda: steady_seconds() - begun > 5.0, "its lease was renewed")
        assert not loop.has(Exited)
        holds[0] = False
        loop.launch(shell("touch ran", tmp_path), "slot-1")
        loop.until(lambda: loop.has(Exited), "it ends itself although its daemon still listens")
        [end] = [event.exit for event in loop.events if isinstance(event, Exited)]
        assert (end.fenced, end.note) == (True, "ended by its lease: no contact for 3 s")
        assert loop.snapshot.jobs[order.job].state is JobState.PENDING
        assert not (tmp_path / "ran").exists()
    finally:
        world.close()
        sweep(tmp_path / "home" / "nodes" / "a")


def test_a_server_of_a_newer_daemon_refuses_an_older_one_with_a_reason(tmp_path: Path) -> None:
    worlds = [
        LiveWorld({str(A): NodeConfig(slots=1)}, str(tmp_path / "home"), epoch=DaemonEpoch("a1b2", epoch, lambda: True))
        for epoch in (2, 1)
    ]
    new, old = Loop(worlds[0]), Loop(worlds[1])
    try:
        worlds[0].start()
        new.nodes_up()
        worlds[1].start()
        told = "the agent refuses: a newer daemon has taken over: epoch 2, this one has 1 (if its database"
        old.until(lambda: told in old.snapshot.nodes[A].reason if A in old.snapshot.nodes else False, "it is refused")
    finally:
        for world in worlds:
            world.close()
