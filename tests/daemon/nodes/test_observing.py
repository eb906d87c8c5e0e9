"""A server's report of its network, or of replicas that stand still, becomes news once, and not again with every
answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from gpq_agent import wire

from gpq.control.reader import Reader
from gpq.core.model.events import Event, Exited, NodeSeen, Pulsed, Started
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.nodes import Node
from gpq.core.model.units import JobId, NodeId
from gpq.core.state.job_events import apply
from gpq.daemon.clock import Clock
from gpq.daemon.nodes.decode import differs
from gpq.daemon.nodes.observer import STILL, Observer
from gpq.daemon.nodes.session import NodeSession
from gpq.daemon.nodes.settings import NodePorts, NodeSettings
from tests.support.builders import job, on, running, snapshot

A = NodeId("a")
NETWORK = [["eth0", "10.0.0.1"], ["ib0", "10.1.0.1"], ["eth0", "fd00::1"]]


def seen(hello: Mapping[str, Any], address: str = "", interface: str = "") -> Node:
    observer = Observer(NodeSettings(A, address=address, interface=interface), Clock())
    observer.greet(hello)
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


@pytest.mark.parametrize("lie", [None, "", "a\nb", "\x1b[2J", "\ud800", "x" * 501])
def test_a_server_that_names_no_machine_or_an_impossible_one_has_none(lie: object) -> None:
    assert seen({"machine": lie}).machine == ""


def test_another_machine_under_a_name_is_news() -> None:
    first, second = (seen({"machine": f"boot:{network}:2:0-1"}) for network in (1, 2))
    assert first.machine == "boot:1:2:0-1"
    assert differs(first, second)


def answered(hello: Mapping[str, Any], watch: Mapping[str, Any], *jobs: Job) -> list[Event]:
    """What the daemon hears of a server that answers this, with these jobs on it."""
    events: list[Event] = []
    session = NodeSession(NodeSettings(A), NodePorts(Clock(), events.extend, lambda: snapshot(*jobs)))
    replies = {"hello": {"version": wire.VERSION, "boot_id": "b", "library": "/l", **hello}, "watch": watch}

    def send(op: str, fields: Mapping[str, Any], callback: Any) -> None:
        reply = replies.pop(op, None)  # the second watch waits
        if reply is not None:
            callback({"ok": True, "stamp": 100.0, "time": 1e9, "digest": "d", **reply})

    session.begin(send)
    assert session.line is send, "the link stays"
    return events


def gpu(number: int, **more: Any) -> dict[str, Any]:
    return {**wire.DeviceInfo(f"a-{number}", number, "cuda", "A100", 40_000, "ok")._asdict(), **more}


END = wire.ExitRecord(1, 1, 0, None, False, None, 1.0, ended_at=2.0)._asdict()
LIES: list[dict[str, Any]] = [
    *({"state": "exited", "exit": {**END, "code": code}} for code in (1 << 60, True, "0", 1e308, -1 << 63)),
    {"state": "exited", "exit": {**END, "note": 7}},
    {"state": "exited", "exit": "0"},
    *({"state": "running", "pid": pid} for pid in (1 << 60, -1, True, "\u00b2")),
    *({"state": "running", "began": began} for began in (1e200, float("inf"), float("nan"), "1")),
    *(
        {"state": "running", "ranks": [{"rank": 0, "step": step, "phase": "saving", "age": 99.0}]}
        for step in (2**60, -1)
    ),
    *({"state": "running", "ranks": [rank]} for rank in (5, {}, {"rank": 0}, {"phase": []})),
    *({"state": "running", "report_offset": offset, "report": ""} for offset in (1 << 60, -5, None, "9")),
    *({"state": state} for state in (None, "exploded", [], 1 << 60)),
    {"state": "running", "damage": 7},
    {"state": "running", "report": 7, "report_offset": 5},
]


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_what_is_invalid_about_one_attempt_leaves_the_others_and_never_makes_it_missing(lie: dict[str, Any]) -> None:
    jobs = [running(number, on("a", number), started_nodes=()) for number in (1, 2)]
    infos = [{"job": 1, "attempt": 1, **lie}, wire.AttemptInfo(2, 1, "running", pid=7)._asdict()]
    # Its report is read to the end, so that an end counts.
    events = answered({}, {"devices": [gpu(0)], "attempts": infos}, *jobs)
    assert [event.job for event in events if isinstance(event, Started) and event.job == 2] == [2]
    ends = [event.exit for event in events if isinstance(event, Exited)]
    if lie["state"] == "exited":
        [end] = ends
        assert end.lost
        assert "invalid record of its end" in end.note
    else:
        assert ends == []
    if not lie.get("ranks"):
        told = " ".join(line for event in events for line in getattr(event, "notices", ()))
        assert "invalid" in told


@pytest.mark.parametrize(
    ("lie", "named"),
    [
        *(({"age": age}, "age") for age in (9e15, -1.0, float("nan"), "1", True)),
        *(({"memory_mib": memory}, "memory_mib") for memory in (1 << 60, -1, 1e308, None)),
        ({"utilisation": 1 << 63}, "utilisation"),
        ({"next_probe": 9e15, "index": "0"}, "index, next_probe"),
        ({"processes": [[]]}, "processes"),
        ({"processes": [{"pid": 1, "since": since, "attempt": "\u00b2"} for since in (9e15, -9e15, "x")]}, ""),
        ({"processes": [{"pid": 1 << 60, "user": [], "attempt": "9" * 5000}]}, ""),
    ],
    ids=str,
)
def test_what_is_invalid_about_one_device_leaves_the_others_and_gpq_nodes(lie: dict[str, Any], named: str) -> None:
    events = answered({}, {"devices": [gpu(0, **lie), gpu(1)], "attempts": []})
    [seen] = [event for event in events if isinstance(event, NodeSeen)]
    [row] = Reader(snapshot(seen.node), None, seen.at).nodes()
    assert row.devices[1].state == "ok"
    assert (row.devices[0].state, row.devices[0].reason) == (
        ("degraded", f"its server sent an invalid {named}") if named else ("ok", "")
    )


@pytest.mark.parametrize("ended", [-1e11, 1e11, -9e15, 9e15])
def test_an_end_is_dated_within_ten_years(ended: float) -> None:
    info = wire.AttemptInfo(1, 1, "exited", exit=END, ended=ended)._asdict()
    events = answered({}, {"devices": [], "attempts": [info]}, running(1, on("a", 0)))
    [end] = [event for event in events if isinstance(event, Exited)]
    assert end.exit.ended_at == 0.0 or 0 <= end.at - end.exit.ended_at <= 11 * 366 * 86400
