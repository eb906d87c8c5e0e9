"""A server's report of its network, or of replicas that stand still, becomes news once, and not again with every
answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from gpq_agent import wire

from gpq.core.model.events import Event, Exited, NodeSeen, Pulsed, Started
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.nodes import Node
from gpq.core.model.units import JobId, NodeId
from gpq.core.state.job_events import apply
from gpq.daemon.clock.clock import Clock
from gpq.daemon.nodes.observer import STILL, Observer
from gpq.daemon.nodes.settings import NodeSettings
from tests.support.builders import job, on, running, snapshot

A = NodeId("a")
NETWORK = [["eth0", "10.0.0.1"], ["ib0", "10.1.0.1"], ["eth0", "fd00::1"]]


def seen(hello: Mapping[str, Any], address: str = "", interface: str = "") -> Node:
    observer = Observer(NodeSettings(A, address=address, interface=interface), Clock())
    observer.greeted(hello)
    events, _ = observer.news({}, [], snapshot(), offsets={}, start_possible=lambda _: False)
    [found] = [event for event in events if isinstance(event, NodeSeen)]
    return found.node


@pytest.mark.parametrize(
    ("ssh", "address", "interface", "found"),
    [
        ("", "", "", ("10.0.0.1", "10.1.0.1", "fd00::1")),
        ("10.1.0.1", "", "", ("10.1.0.1", "10.0.0.1", "fd00::1")),  # the address that ssh reached, first
        ("192.168.9.9", "", "", ("192.168.9.9", "10.0.0.1", "10.1.0.1", "fd00::1")),  # translated on its way
        ("10.0.0.1", "", "ib0", ("10.1.0.1",)),
        ("10.0.0.1", "node-a.lab", "", ("node-a.lab",)),
    ],
)
def test_the_addresses_that_peers_may_try(ssh: str, address: str, interface: str, found: tuple[str, ...]) -> None:
    node = seen({"address": ssh, "network": NETWORK, "ephemeral": [15000, 20000]}, address, interface)
    assert (node.addresses, node.address, node.interface) == (found, found[0], interface)
    assert node.ephemeral == (15000, 20000)


def test_an_agent_without_network_report_works_as_before() -> None:
    node = seen({"address": "10.0.0.1"})
    assert (node.address, node.addresses, node.ephemeral) == ("10.0.0.1", ("10.0.0.1",), (32768, 60999))
    assert seen({}).address == "127.0.0.1"


def test_peers_get_only_valid_addresses() -> None:
    evil = [["eth0", "-oProxyCommand=x"], ["eth0", "example.org"], ["eth0", "10.0.0.1\n"], ["eth0", "10.0.0.9"]]
    assert seen({"address": "$(reboot)", "network": evil}).addresses == ("10.0.0.9",)


def pulses(observer: Observer, job: Job, *ranks: wire.Pulse) -> list[Event]:
    info = wire.AttemptInfo(1, job.attempt, "running", pid=7, ranks=[one._asdict() for one in ranks])._asdict()
    found = observer.of_attempt(info, snapshot(job), drained=False)
    return [event for event in found if isinstance(event, Pulsed)]


def test_standing_replicas_are_reported_once_and_once_more_when_they_continue() -> None:
    job, observer = running(1, on("a", 0, 1)), Observer(NodeSettings(A), Clock())
    assert pulses(observer, job) == []
    assert pulses(observer, job, wire.Pulse(0, 7, "arrived", 2.0), wire.Pulse(1, 7, "computing", STILL / 2)) == []
    still = [wire.Pulse(0, 7, "arrived", STILL + 1), wire.Pulse(1, 7, "computing", STILL + 2)]
    [event] = pulses(observer, job, *still, wire.Pulse(2, 7, "\x1b[31m", STILL + 2))
    assert isinstance(event, Pulsed)
    assert [(one.rank, one.node, one.step, one.phase) for one in event.ranks] == [
        (0, A, 7, "arrived"), (1, A, 7, "computing")
    ]  # fmt: skip
    assert event.at - event.ranks[1].since == pytest.approx(STILL + 2)
    assert pulses(observer, job, *(one._replace(age=99.0) for one in still)) == []
    stuck = apply(job, event)
    # The next daemon knows what this one reported.
    for watcher in (observer, Observer(NodeSettings(A), Clock())):
        [event] = pulses(watcher, stuck, wire.Pulse(0, 8, "arrived", 0.1), wire.Pulse(1, 8, "computing", 0.1))
        assert isinstance(event, Pulsed)
        assert (event.job, event.ranks) == (JobId(1), ())


def test_a_late_end_is_dated_by_its_age_on_the_server() -> None:
    """Whatever the server's clocks say, and never later than now."""
    clock = Clock()
    key, began = (JobId(1), 1), {"pid": 7, "began": 7000.0}
    end = wire.ExitRecord(1, 1, 7, None, False, None, 1.0, ended_at=2.0)._asdict()

    def told(ended: float | None, kind: type[Event]) -> Any:
        info = wire.AttemptInfo(1, 1, "exited", exit=end, ended=ended, **began)._asdict()  # type: ignore[arg-type]
        state = snapshot(job(1, state=JobState.STARTING, attempt=1, placement=on("a", 0), launched_at=0.0))
        events, _ = Observer(NodeSettings(A), clock).news(
            {key: info}, [], state, offsets={"1.1": 0}, start_possible=lambda _: False, stamp=7050.0
        )
        [found] = [event for event in events if isinstance(event, kind)]
        return found

    exited, started = told(7012.0, Exited), told(7012.0, Started)
    assert exited.at - exited.exit.ended_at == pytest.approx(38.0)
    assert started.at - started.since == pytest.approx(50.0)
    ahead = told(7051.0, Exited)
    assert ahead.exit.ended_at == ahead.at
    assert told(None, Exited).exit.ended_at == 0.0  # an agent that does not report it
