"""The node agent of a simulated server: its answers to the requests of wire.OPS, and when a watch is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpq_agent import wire
from gpq_agent.node.host.errors import SpoolError

from tests.dst.attempts import LIVE, Attempt
from tests.dst.network import Pipe

if TYPE_CHECKING:
    from tests.dst.nodes import Node

Message = Mapping[str, Any]


class Agent:
    """One process of the node agent, on one connection."""

    def __init__(self, node: Node, pipe: Pipe) -> None:
        self.node = node
        self.pipe = pipe
        self.alive = True
        self.ended_by_us = False
        self._watch: Message | None = None
        self._until = 0.0
        self._stirred = False
        self._newest = 0.0
        self._reign: tuple[str, int] | None = None
        self._operations: dict[str, Callable[[Message], dict[str, Any]]] = {
            "hello": self._hello,
            "start": self._start,
            "stop": self._stop,
            "control": lambda _: {},
            "forget": self._forget,
        }

    def die(self) -> None:
        self.alive = False
        self.node.agents.remove(self)

    def end(self) -> None:
        """Its input has ended."""
        if self.alive:
            self.ended_by_us = True
            self.die()

    def handle(self, message: Message) -> None:
        operation = message["op"]
        if operation == "watch":
            self._begin(message)
            return
        try:
            if operation != "hello":
                self._admit()
            answer = self._operations[operation](message)
        except SpoolError as error:
            self.node.schedule.say("{} refuses {}: {}", self.node.name, operation, error.message)
            self._reply(message, {"ok": False, "error": error.message, "kind": error.kind})
            return
        if self.node.dies_at_start and operation == "start" and answer["state"] == "started":
            self.node.dies_at_start = False
            self.node.schedule.say("{} its agent is killed during a start", self.node.name)
            self.node.kill_agents()
            return
        self._reply(message, {**answer, "ok": True})

    def _reply(self, message: Message, fields: Message) -> None:
        self.pipe.reply(message["id"], fields)

    # -- operations ----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """A daemon may give no orders once a newer one has greeted the node."""
        if self._reign is not None and self.node.fenced(*self._reign):
            raise SpoolError("a newer daemon has taken over", "", "stale")

    def _hello(self, message: Message) -> dict[str, Any]:
        if message.get("store"):
            store, epoch = str(message["store"]), int(message["epoch"])
            self._reign = store, epoch
            self.node.epochs[store] = max(epoch, self.node.epochs.get(store, 0))
            self._admit()
        about = {"version": wire.VERSION, "boot_id": self.node.boot_id(), "cores": 8, "memory_mib": 1 << 16}
        return {**about, "stamp": self._stamp()}

    def _stamp(self) -> float:
        self._newest = self.node.boottime()
        return self._newest

    def _hear(self, stamp: float | None) -> None:
        """The daemon acknowledges a report of this connection."""
        if stamp is not None and self._reign is not None and stamp <= self._newest:
            boot, last = self.node.heard.get(self._reign[0], (0, 0.0))
            self.node.heard[self._reign[0]] = (self.node.boot, max(stamp, last if boot == self.node.boot else 0.0))

    def _start(self, message: Message) -> dict[str, Any]:
        state, attempt = self.node.start(message["order"])
        return {"state": state, "attempt": self.node.info(attempt)}

    def _of(self, message: Message) -> Attempt:
        attempt = self.node.attempts.get(wire.parse_attempt_key(message["attempt"]))
        if attempt is None:
            raise SpoolError(f"no attempt {message['attempt']} on this node", "")
        return attempt

    def _stop(self, message: Message) -> dict[str, Any]:
        attempt = self._of(message)
        self.node.schedule.say("{} {} is asked to stop: {}", self.node.name, attempt.name, message["mode"])
        self.node.stop(attempt, message["mode"], message["grace"])
        return {"attempt": self.node.info(attempt)}

    def _forget(self, message: Message) -> dict[str, Any]:
        attempt = self.node.attempts.get(wire.parse_attempt_key(message["attempt"]))
        if attempt is not None:
            if self.node.state(attempt) in LIVE:
                raise SpoolError(f"attempt {attempt.name} lives", "")
            attempt.forgotten = True
            self.node.changed()
        return {}

    # -- watching ------------------------------------------------------------------------------------------------------

    def _begin(self, message: Message) -> None:
        try:
            self._admit()
        except SpoolError as error:
            self._reply(message, {"ok": False, "error": error.message, "kind": error.kind})
            return
        self._hear(message["heard"])
        self._watch = message
        self._until = self.node.schedule.now + message["wait"]
        self.stir(0.01)
        self.node.schedule.at(self._until, lambda: self._look(message))

    def stir(self, within: float = 0.2) -> None:
        """It checks a few times a second."""
        if self._watch is not None and not self._stirred and self.alive:
            self._stirred = True
            watch = self._watch
            self.node.schedule.after(0.01 + within * self.node.schedule.dice.random(), lambda: self._stir(watch))

    def _stir(self, watch: Message) -> None:
        self._stirred = False
        if self._watch is watch:
            self._look(watch)
        else:
            self.stir()

    def _look(self, watch: Message) -> None:
        if not self.alive or self._watch is not watch:
            return
        node = self.node
        offsets: Mapping[str, int] = watch["offsets"]
        known = node.known()
        for attempt in known:
            if (attempt.asked or attempt.order.lease > 0) and attempt.lives and not node.shim_lives(attempt):
                node.adopt(attempt)
        lines = any(len(one.report) > offsets[one.name] for one in known if one.name in offsets)
        if not lines and watch["seen"] == str(node.version) and node.schedule.now < self._until:
            return
        self._watch = None
        taken = {device: one.name for one in known if node.state(one) in LIVE for device in one.order.devices}
        devices = [
            wire.DeviceInfo(
                id=device,
                index=index,
                kind="cuda",
                type="A100",
                memory_mib=40_000,
                state="ok",
                processes=[{"pid": 1, "attempt": taken[device]}] if device in taken else [],
            )._asdict()
            for index, device in enumerate(node.devices)
        ]
        told = [node.info(one, offsets.get(one.name)) for one in known]
        answer = {"ok": True, "digest": str(node.version), "attempts": told, "devices": devices, "time": node.wall()}
        answer["stamp"] = self._stamp()
        self._reply(watch, answer)
