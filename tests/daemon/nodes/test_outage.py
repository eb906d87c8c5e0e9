"""An outage leaves a few lines in the daemon's log, however long it lasts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest

from gpq import pace
from gpq.connectors.local import Channel
from gpq.core.model.events import Event, NodeSilent
from gpq.core.model.units import NodeId, Seconds
from gpq.daemon.clock import Clock
from gpq.daemon.nodes.link import NO_ANSWER, Callback, Reply
from gpq.daemon.nodes.node_client import NodeClient
from gpq.daemon.nodes.session import NodeSession
from gpq.daemon.nodes.settings import NodePorts, NodeSettings
from gpq.errors import Refused
from gpq.pace import SILENCE
from tests.support.builders import snapshot
from tests.support.waiting import wait_until

REFUSES = "a refuses connections"
HELLO = {
    "ok": True, "version": 1, "library": "/lib", "boot_id": "b", "time": 1.0, "stamp": 1.0, "attempts": (),
    "devices": (), "digest": "",
}  # fmt: skip
SETTINGS = NodeSettings(NodeId("a"), library="/lib")


class SleepyClock(Clock):
    """Of a machine that slept for `slept` seconds."""

    slept = 0.0

    def elapsed(self) -> Seconds:
        return super().elapsed() + self.slept


def answers(reply: Reply, talk: NodeSession) -> None:
    """One connection on which the server greets and reports once."""

    def send(op: str, fields: object, done: Callback) -> None:
        if op == "hello" or (op == "watch" and talk.line is None):
            done(reply)

    talk.attempt()
    talk.begin(send)
    talk.cut()


def test_an_outage_is_logged_at_doubling_distances_and_new_reasons_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    told: list[Event] = []
    talk = NodeSession(SETTINGS, NodePorts(Clock(), told.extend, snapshot))
    for _ in range(40):
        talk.attempt()
        talk.over(REFUSES)
    talk.attempt()
    talk.over("there is no way to a")
    for _ in range(1000):
        talk.attempt()
        talk.over(REFUSES)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "a: a refuses connections. Next try in 0.1 s"
    tries = [int(line.split("try ")[1].split(",")[0]) for line in lines[3:]]
    assert tries == [4, 8, 16, 32, 41, 64, 128, 256, 512, 1024]
    assert lines[7] == "a: there is no way to a. That was try 41, next try in 2.0 s"
    caplog.clear()
    answers(HELLO, talk)
    talk.over("no answer")
    assert [record.getMessage() for record in caplog.records] == [
        "a: answers again after 1041 tries",
        "a: no answer. Next try in 2.0 s",
    ]


def test_an_agent_that_ended_during_our_sleep_is_news_only_if_none_replaces_it() -> None:
    clock, told = SleepyClock(), list[Event]()
    talk = NodeSession(SETTINGS, NodePorts(clock, told.extend, snapshot))

    def silences() -> list[str]:
        return [event.reason for event in told if isinstance(event, NodeSilent)]

    for _ in range(2):
        answers(HELLO, talk)
        clock.slept += 2 * SILENCE
        talk.over("the agent ended")
        assert silences() == []
    talk.attempt()
    talk.over(REFUSES)
    assert silences() == [REFUSES]
    answers(HELLO, talk)
    clock.slept += 2 * SILENCE
    talk.over(NO_ANSWER)
    assert silences() == [REFUSES, NO_ANSWER]


class Refusing:
    """A connector to a server that accepts no key."""

    def __init__(self) -> None:
        self.tries = 0

    def agent(self, arguments: Sequence[str], waiting: Callable[[], None]) -> Channel:
        self.tries += 1
        raise Refused("a accepts none of your keys", "load one")

    def spawn(self, argv: Sequence[str], waiting: Callable[[], None]) -> Channel:
        raise NotImplementedError


def test_a_new_way_to_reach_a_server_is_tried_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "FIRST_BACKOFF", 10_000.0)
    connector = Refusing()
    client = NodeClient(connector, [], SETTINGS, NodePorts(Clock(), lambda events: None, snapshot))
    client.start()
    try:
        for tries in (1, 2, 3):
            wait_until(lambda tries=tries: connector.tries == tries, f"try {tries}")  # type: ignore[misc]
            client.hurry()
    finally:
        client.close()
