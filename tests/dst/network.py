"""Pipes between a daemon and the agents of its nodes, and what a network does to them.

A message sent during a cut is kept and delivered after the cut is healed, as TCP does, even if the sender is gone by
then. It arrives when TCP tries again, not at once. That takes up to as long as the cut lasted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpq.daemon.nodes.link import NO_ANSWER, Callback, LinkLost
from gpq.pace import SILENCE
from tests.dst.schedule import Run, Schedule

if TYPE_CHECKING:
    from tests.dst.agents import Agent
    from tests.dst.nodes import Node

CONNECT_TIMEOUT = 5.0
LONGEST_RETRY = 60.0  # between two tries of TCP
UP, DOWN = "up", "down"  # to the node, to the daemon


@dataclass
class Weather:
    """What the network of one run is like."""

    least: float = 0.001  # seconds in transit
    most: float = 0.05
    drop: float = 0.0  # share of the messages that never arrive
    # Share of the messages that arrive twice, at once. A start that was answered cannot arrive again on a byte stream.
    twice: float = 0.0
    ordered: bool = True


@dataclass
class Wire:
    """The connection to one node, in both directions."""

    schedule: Schedule
    weather: Weather
    cut: dict[str, int] = field(default_factory=lambda: {UP: 0, DOWN: 0})
    since: dict[str, float] = field(default_factory=lambda: {UP: 0.0, DOWN: 0.0})
    held: dict[str, list[tuple[object, Run]]] = field(default_factory=lambda: {UP: [], DOWN: []})

    def sever(self, ways: str) -> None:
        for way in (UP, DOWN):
            if ways in (way, "both"):
                self.since[way] = self.since[way] if self.cut[way] else self.schedule.now
                self.cut[way] += 1

    def heal(self, ways: str) -> None:
        for way in (UP, DOWN):
            self.cut[way] -= ways in (way, "both")
            if not self.cut[way]:
                waiting, self.held[way] = self.held[way], []
                longest = min(self.schedule.now - self.since[way], LONGEST_RETRY)
                waits: dict[object, float] = {}
                for pipe, run in waiting:
                    wait = waits.setdefault(pipe, longest * self.schedule.dice.random())
                    self.schedule.after(wait, run)

    def carry(self, pipe: object, way: str, when: float, run: Run) -> None:
        """Deliver at `when`, or when a cut at that moment is healed. Messages of one pipe stay together."""

        def arrive() -> None:
            if self.cut[way]:
                self.held[way].append((pipe, arrive))
            else:
                run()

        self.schedule.at(when, arrive)


class Pipe:
    """One connection. The daemon's end gets `lost` once. `deliver` runs what reaches the daemon, now or later."""

    def __init__(self, node: Node, deliver: Callable[[Run], None], lost: Callable[[str], None]) -> None:
        self.node = node
        self.schedule = node.schedule
        self.agent: Agent | None = None
        self.closed = False
        self.heard_at = self.schedule.now
        self._deliver = deliver
        self._lost = lost
        self._numbers = itertools.count(1)
        self._pending: dict[int, Callback] = {}
        self._last = {UP: 0.0, DOWN: 0.0}
        self._unsent: list[Mapping[str, Any]] = []
        self._give_up_at = self.schedule.now + CONNECT_TIMEOUT
        self.schedule.after(self._delay(), self._connect)
        self.schedule.after(SILENCE, self._look)

    # -- the daemon's end ----------------------------------------------------------------------------------------------

    def send(self, op: str, fields: Mapping[str, Any], done: Callback) -> None:
        if self.closed:
            done({"ok": False, "lost": True, "error": "lost"})
            return
        number = next(self._numbers)
        self._pending[number] = done
        message = {**fields, "id": number, "op": op}
        if self.agent is None:
            self._unsent.append(message)
        else:
            self._to_agent(message)

    def close(self) -> list[Callback]:
        """Close it, so that the agent's input ends. Returns the callbacks that still wait for a reply."""
        self.closed = True
        if self.agent is not None:
            agent = self.agent
            self._post(UP, agent.end, certain=True)
        waiting, self._pending = list(self._pending.values()), {}
        return waiting

    def forgive(self) -> None:
        """The daemon itself was stopped for a while, so the silence is nobody's fault."""
        self.heard_at = self.schedule.now

    def _connect(self) -> None:
        if self.closed or self.agent is not None:
            return
        way = self.node.way
        if self.node.up and not any(way.cut.values()):
            self.agent = self.node.new_agent(self)
            self.schedule.say("{} connected", self.node.name)
            for message in self._unsent:
                self._to_agent(message)
        elif self.schedule.now >= self._give_up_at:
            self._break("cannot connect")
        else:
            self.schedule.after(1.0, self._connect)

    def _look(self) -> None:
        """Is it silent? The daemon checks this itself, so not while it is stopped."""

        def look() -> None:
            if self.closed:
                return
            rest = self.heard_at + SILENCE - self.schedule.now
            if rest <= 1e-6:
                self._lost(NO_ANSWER)
            else:
                self.schedule.after(rest, self._look)

        if not self.closed:
            self._deliver(look)

    def _break(self, reason: str) -> None:
        def told() -> None:
            if not self.closed:
                self._lost(reason)

        self._deliver(told)

    # -- both ways -----------------------------------------------------------------------------------------------------

    def _to_agent(self, message: Mapping[str, Any]) -> None:
        agent = self.agent
        assert agent is not None

        def arrive() -> None:
            if agent.alive:
                agent.handle(message)
            elif self.node.up and not agent.ended_by_us:
                self._post(DOWN, lambda: self._break("connection reset"), certain=True)

        self._post(UP, arrive)

    def reply(self, number: int, fields: Mapping[str, Any]) -> None:
        """From the agent."""
        message = {**fields, "id": number}

        def arrive() -> None:
            if not self.closed:
                self._deliver(lambda: self._take(message))

        self._post(DOWN, arrive)

    def hang_up(self) -> None:
        """The agent was killed, and the daemon sees its stream end."""
        self._post(DOWN, lambda: self._break("the agent ended"), certain=True)

    def _take(self, message: Mapping[str, Any]) -> None:
        if self.closed:
            return
        self.heard_at = self.schedule.now
        done = self._pending.pop(message["id"], None)
        if done is None:
            return
        try:
            done(message)
        except LinkLost as error:
            self._lost(str(error))

    def _delay(self) -> float:
        weather = self.node.way.weather
        return weather.least + (weather.most - weather.least) * self.schedule.dice.random() ** 3

    def _post(self, way: str, run: Run, *, certain: bool = False) -> None:
        weather, dice = self.node.way.weather, self.schedule.dice
        if not certain and weather.drop and dice.random() < weather.drop:
            self.schedule.say("{} a message {} is dropped", self.node.name, way)
            return
        when = self.schedule.now + self._delay()
        if weather.ordered or certain:
            when = self._last[way] = max(when, self._last[way])
        self.node.way.carry(self, way, when, run)
        if not certain and weather.twice and dice.random() < weather.twice:
            self.node.way.carry(self, way, when, run)
