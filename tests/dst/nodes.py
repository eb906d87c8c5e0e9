"""A server as wire.OPS promises it: a spool that survives, processes that do not survive a reboot, and an agent for each
connection. The rules are those of agent/gpq_agent/node; the order is read by its own `parse_order`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpq_agent import wire
from gpq_agent.node.launch import parse_order
from gpq_agent.node.spool import SpoolError
from gpq_agent.node.supervise import STOP_RANK, TERM_GRACE

from tests.dst.judge import Judge, Key, Tree
from tests.dst.network import Pipe, Wire
from tests.dst.programs import Gang
from tests.dst.schedule import Schedule, Violation

LIVE = ("starting", "running", "orphan")
FIRST_PID = 100
Message = Mapping[str, Any]


@dataclass(eq=False)
class Attempt:
    """A directory of the spool, and what runs by it."""

    node: Node
    order: wire.StartOrder
    boot: int
    pid: int  # of the shim, which has it by `born`
    born: float
    shim: bool = True
    adopted: bool = False
    tree: Tree | None = None  # once it got its go
    record: dict[str, Any] | None = None  # exit.json
    record_at: float = 0.0
    asked: str = ""
    asked_grace: float = 0.0
    terminated: bool = False
    ending_at: float = float("inf")  # when its tree will be killed at the latest
    proof: bool = False  # stopped.json
    fenced: bool = False
    forgotten: bool = False
    report: str = ""

    @property
    def key(self) -> Key:
        return self.order.job, self.order.attempt

    @property
    def name(self) -> str:
        return wire.attempt_key(*self.key)

    @property
    def lives(self) -> bool:
        return self.tree is not None and self.tree.ended is None

    def write_report(self, text: str) -> None:
        self.report += text
        self.node.changed(digest=False)

    def end(self, code: int | None, signal: int | None) -> None:
        """Its tree is gone. The shim, if there is one, records it."""
        if self.tree is None or self.tree.ended is not None:
            return
        self.node.schedule.say("{} {} ends: code {}, signal {}", self.node.name, self.name, code, signal)
        self.node.judge.ended(self.tree, code, signal)
        if self.shim:
            known = not self.adopted
            self.write_record(code if known else None, signal if known else None)
        self.node.gang(self).broken(self)
        self.node.changed()

    def write_record(self, code: int | None, signal: int | None) -> None:
        now = self.node.wall()
        stopped = self.proof or (self.asked == "signal" and not self.terminated and code in wire.EXIT_PREEMPTED)
        began = self.tree.began if self.tree else now
        record = wire.ExitRecord(*self.key, code, signal, stopped, self.asked or None, began, now, fenced=self.fenced)
        self.record, self.record_at = record._asdict(), self.node.schedule.now
        self.node.schedule.after(self.node.release_after + 0.01, self.node.changed)

    def terminate(self, grace: float) -> None:
        """TERM to all, KILL after `grace`."""
        self.ending_at = min(self.ending_at, self.node.schedule.now + grace)
        self.node.schedule.at(self.ending_at, self._kill)
        if not self.terminated:
            self.terminated = True
            if self.node.program(self).heeds_term:
                self.node.schedule.after(0.05 + 0.4 * self.node.schedule.dice.random(), lambda: self._by(15))

    def _kill(self) -> None:
        if self.node.schedule.now >= self.ending_at - 1e-9:
            self._by(9)

    def _by(self, signal: int) -> None:
        if self.shim and self.lives:
            self.end(None, signal)


@dataclass(eq=False)
class Node:
    """`wall_offset`: how wrong its clock is. `reused`: pids that strangers have after a reboot."""

    name: str
    schedule: Schedule
    wire: Wire
    judge: Judge
    gangs: Callable[[Attempt], Gang]
    gpus: int = 2
    wall_offset: float = 0.0
    rate: float = 1.0  # seconds on its clock in a second
    release_after: float = 0.0  # seconds for which the driver shows a process that is gone
    up: bool = True
    boot: int = 1
    booted_at: float = 0.0
    busy_until: float = 0.0  # its port is taken until then
    version: int = 0
    next_pid: int = FIRST_PID
    strangers: set[int] = field(default_factory=set)
    attempts: dict[Key, Attempt] = field(default_factory=dict)
    agents: list[Agent] = field(default_factory=list)
    epochs: dict[str, int] = field(default_factory=dict)  # the highest that greeted, by store
    heard: dict[str, tuple[int, float]] = field(default_factory=dict)  # boot and stamp acknowledged last, by store
    dies_at_start: bool = False  # the next agent that starts something is killed in the midst of it

    def __post_init__(self) -> None:
        self.devices = [f"{self.name}-gpu{index}" for index in range(self.gpus)]

    def wall(self) -> float:
        return self.schedule.now + self.wall_offset + 1e6

    def boottime(self) -> float:
        return (self.schedule.now - self.booted_at) * self.rate + 10.0

    def boot_id(self) -> str:
        return f"boot{self.boot}"

    def gang(self, attempt: Attempt) -> Gang:
        return self.gangs(attempt)

    def program(self, attempt: Attempt) -> Any:
        return self.gangs(attempt).program

    def new_agent(self, pipe: Pipe) -> Agent:
        agent = Agent(self, pipe)
        self.agents.append(agent)
        return agent

    # -- what is to be seen --------------------------------------------------------------------------------------------

    def shim_lives(self, attempt: Attempt) -> bool:
        """By (boot id, pid, start time), as procs.lives does it."""
        return attempt.shim and attempt.boot == self.boot

    def state(self, attempt: Attempt) -> str:
        if attempt.record is not None:
            held = self.schedule.now < attempt.record_at + self.release_after
            return "running" if held else "exited"
        if self.shim_lives(attempt):
            if attempt.adopted:
                return "orphan"
            return "running" if attempt.tree else "starting"
        return "orphan" if attempt.lives else "lost"

    def known(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if not attempt.forgotten]

    def info(self, attempt: Attempt, offset: int | None = None) -> dict[str, Any]:
        state = self.state(attempt)
        end = attempt.record if state == "exited" else None
        if state == "lost":
            end = wire.ExitRecord(*attempt.key, None, None, attempt.proof, attempt.asked or None, 0.0, 0.0)._asdict()
        report = attempt.report[offset:] if offset is not None else ""
        return wire.AttemptInfo(
            *attempt.key,
            state=state,
            pid=attempt.pid + 1 if attempt.tree else None,
            exit=end,
            report=report,
            report_offset=(offset or 0) + len(report),
            devices=list(attempt.order.devices),
            lease=attempt.order.lease,
        )._asdict()

    def changed(self, *, digest: bool = True) -> None:
        """Watches are answered soon."""
        self.version += digest
        for agent in self.agents:
            agent.stir()

    def fenced(self, store: str, epoch: int) -> bool:
        """Has a newer daemon of that store greeted since?"""
        return self.epochs.get(store, 0) > epoch

    # -- starting ------------------------------------------------------------------------------------------------------

    def start(self, message: Any) -> tuple[str, Attempt]:
        """Raises SpoolError, with nothing left behind, when it may not start."""
        order = parse_order(wire.decode(wire.encode(message)))
        key = (order.job, order.attempt)
        if key in self.attempts:
            return "already", self.attempts[key]
        self.check_expiry(order)
        if self.schedule.now < self.busy_until:
            raise SpoolError("the port is taken", "", "busy")
        self.check_devices(order)
        attempt = Attempt(self, order, self.boot, self.next_pid, self.schedule.now)
        self.next_pid += 2
        self.attempts[key] = attempt
        if self.dies_at_start:
            attempt.shim = False  # it never came up
        else:
            self.schedule.after(0.05 + 0.3 * self.schedule.dice.random(), lambda: self._go(attempt))
        self.changed()
        return "started", attempt

    def check_expiry(self, order: wire.StartOrder) -> None:
        late = order.stamp is not None and self.boottime() - order.stamp >= wire.START_EXPIRY
        if late or order.boot_id != self.boot_id():
            raise SpoolError("the start order expired", "", "expired")

    def check_devices(self, order: wire.StartOrder) -> None:
        for other in self.known():
            held = other.record is not None and self.state(other) == "running"
            if (self.state(other) in LIVE or held) and set(other.order.devices) & set(order.devices):
                raise SpoolError(f"a device is still held by attempt {other.name}", "", "busy")

    def _go(self, attempt: Attempt) -> None:
        """Its shim has recorded the first process and lets it go, or has been told to stop before."""
        if not attempt.shim or attempt.boot != self.boot or not self.up or attempt.tree is not None:
            return
        gang = self.gang(attempt)
        attempt.tree = Tree(self.name, attempt.key, tuple(attempt.order.devices), gang.program.token, self.schedule.now)
        attempt.tree.lease = attempt.order.lease
        self.schedule.say("{} {} runs on {}", self.name, attempt.name, attempt.order.devices)
        self.judge.started(attempt.tree)
        gang.join(attempt)
        self._mind_lease(attempt)
        if attempt.asked:
            self._obey(attempt)
        self.changed()

    # -- stopping ------------------------------------------------------------------------------------------------------

    def stop(self, attempt: Attempt, mode: str, grace: float) -> None:
        if self.state(attempt) not in LIVE or attempt.record is not None:
            return
        before = STOP_RANK.get(attempt.asked, 0)
        if STOP_RANK[mode] > before or (STOP_RANK[mode] == before and grace <= attempt.asked_grace):
            attempt.asked, attempt.asked_grace = mode, grace
        if self.shim_lives(attempt):
            self._signal(attempt)
            if attempt.tree is not None:
                self._obey(attempt)
        elif attempt.lives:
            self.adopt(attempt)
        self.changed()

    def adopt(self, attempt: Attempt) -> None:
        """Its shim was killed: another takes its place to do what was asked."""
        attempt.shim = attempt.adopted = True
        attempt.pid, attempt.born = self.next_pid, self.schedule.now
        self.next_pid += 2
        if attempt.asked:
            self._obey(attempt)
        self._mind_lease(attempt)
        self.changed()

    def _mind_lease(self, attempt: Attempt) -> None:
        """Its shim looks when the lease may be over, and then again or it ends the attempt."""
        order = attempt.order
        if order.lease <= 0 or order.stamp is None or not attempt.lives or not attempt.shim or attempt.fenced:
            return
        boot, heard = self.heard.get(order.store, (0, 0.0))
        rest = max(order.stamp, heard if boot == self.boot else 0.0) + order.lease - self.boottime()
        if rest <= 0:
            self.fence(attempt)
        else:
            look = min(1.0, order.lease_margin / 6) * self.schedule.dice.random()
            self.schedule.after(rest / self.rate + look, lambda: self._mind_lease(attempt))

    def fence(self, attempt: Attempt) -> None:
        self.schedule.say("{} {} is ended by its lease", self.name, attempt.name)
        attempt.fenced = True
        attempt.terminate(attempt.order.lease_margin / 3)

    def _signal(self, attempt: Attempt) -> None:
        """SIGUSR1 to the shim: to the process that has its pid now."""
        if attempt.pid in self.strangers and not (attempt.shim and attempt.boot == self.boot):
            raise Violation(
                f"I9: pid {attempt.pid} on {self.name}, which is a stranger's, is signalled for {attempt.name}"
            )

    def _obey(self, attempt: Attempt) -> None:
        if attempt.asked == "kill":
            attempt.terminate(attempt.asked_grace)
            return
        self.gang(attempt).save(attempt)
        self.schedule.after(attempt.asked_grace, lambda: attempt.terminate(TERM_GRACE) if attempt.lives else None)

    # -- faults --------------------------------------------------------------------------------------------------------

    def kill_agents(self) -> None:
        for agent in list(self.agents):
            agent.die()
            agent.pipe.hang_up()

    def kill_shim(self, attempt: Attempt) -> None:
        """kill -9: what it watched lives on."""
        attempt.shim = False
        if attempt.tree is not None:
            attempt.tree.orphaned = True
        self.changed()

    def power_off(self) -> None:
        self.up = False
        for agent in list(self.agents):
            agent.die()
        for attempt in self.attempts.values():
            attempt.shim = False
            attempt.end(None, 9)

    def power_on(self) -> None:
        """Another boot; pids begin anew, and strangers have the first ones."""
        self.up = True
        self.boot += 1
        self.booted_at = self.schedule.now
        self.strangers = set(range(FIRST_PID, self.next_pid))
        self.version += 1


class Agent:
    """One process of the node agent, at one connection."""

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
        """The end of its input."""
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
            self.node.schedule.say("{} its agent is killed as it starts something", self.node.name)
            self.node.kill_agents()
            return
        self._reply(message, {**answer, "ok": True})

    def _reply(self, message: Message, fields: Message) -> None:
        self.pipe.reply(message["id"], fields)

    # -- operations ----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """An older daemon than one that greeted since may order nothing."""
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
        self.node.schedule.say("{} {} is to stop: {}", self.node.name, attempt.name, message["mode"])
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
        """It looks around a few times a second."""
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
