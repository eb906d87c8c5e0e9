"""A server as wire.OPS promises it: a spool that survives, processes that do not survive a reboot, and an agent for
each connection. It follows the rules of agent/gpq_agent/node and reads orders with the real `parse_order`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpq_agent import wire
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim.start_order import parse_order
from gpq_agent.node.shim.supervise import TERM_GRACE
from gpq_agent.node.spool.shapes import STOP_RANK

from tests.dst.agents import Agent
from tests.dst.attempts import LIVE, Attempt
from tests.dst.judge import Judge, Key, Tree
from tests.dst.network import Pipe, Wire
from tests.dst.programs import Gang
from tests.dst.schedule import Schedule, Violation

FIRST_PID = 100


@dataclass(eq=False)
class Node:
    """`wall_offset`: the error of its clock. `reused`: pids that foreign processes have after a reboot."""

    name: str
    schedule: Schedule
    way: Wire
    judge: Judge
    gangs: Callable[[Attempt], Gang]
    gpus: int = 2
    wall_offset: float = 0.0
    rate: float = 1.0  # seconds on its clock per real second
    release_after: float = 0.0  # how long the driver still shows a process that is gone, in seconds
    up: bool = True
    boot: int = 1
    booted_at: float = 0.0
    busy_until: float = 0.0  # its port is in use until then
    version: int = 0
    next_pid: int = FIRST_PID
    strangers: set[int] = field(default_factory=set)
    attempts: dict[Key, Attempt] = field(default_factory=dict)
    agents: list[Agent] = field(default_factory=list)
    epochs: dict[str, int] = field(default_factory=dict)  # the highest epoch that greeted, by store
    heard: dict[str, tuple[int, float]] = field(default_factory=dict)  # boot and last acknowledged stamp, by store
    dies_at_start: bool = False  # the next agent that starts something is killed halfway

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

    # -- what others can see -------------------------------------------------------------------------------------------

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
            ended=self.ended(attempt),
        )._asdict()

    def ended(self, attempt: Attempt) -> float | None:
        if attempt.record is None:
            return None if attempt.boot == self.boot else 0.0
        return float(attempt.record["stamp"]) if attempt.record["boot_id"] == self.boot_id() else 0.0

    def changed(self, *, digest: bool = True) -> None:
        """Watches get an answer soon."""
        self.version += digest
        for agent in self.agents:
            agent.stir()

    def fenced(self, store: str, epoch: int) -> bool:
        """Has a newer daemon of that store greeted since?"""
        return self.epochs.get(store, 0) > epoch

    # -- starting ------------------------------------------------------------------------------------------------------

    def start(self, message: Any) -> tuple[str, Attempt]:
        """Raises SpoolError and leaves nothing behind if the job may not start."""
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
            attempt.shim = False  # it never started
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
        """Its shim has recorded the first process and lets it go, unless it was told to stop before."""
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
        """Its shim was killed. Another one takes over and does what was asked."""
        attempt.shim = attempt.adopted = True
        attempt.pid, attempt.born = self.next_pid, self.schedule.now
        self.next_pid += 2
        if attempt.asked:
            self._obey(attempt)
        self._mind_lease(attempt)
        self.changed()

    def _mind_lease(self, attempt: Attempt) -> None:
        """Its shim checks when the lease may be over. Then it ends the attempt or checks again."""
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
        self.schedule.say("{} {} ends because its lease expired", self.name, attempt.name)
        attempt.fenced = True
        attempt.terminate(attempt.order.lease_margin / 3)

    def _signal(self, attempt: Attempt) -> None:
        """SIGUSR1 to the shim, which reaches whatever process has its pid now."""
        if attempt.pid in self.strangers and not (attempt.shim and attempt.boot == self.boot):
            raise Violation(
                f"I9: pid {attempt.pid} on {self.name}, which belongs to a foreign process, is signalled for {attempt.name}"
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
        """kill -9. The processes that it watched continue."""
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
        """Another boot. Pids start again from the beginning, and foreign processes have the first ones."""
        self.up = True
        self.boot += 1
        self.booted_at = self.schedule.now
        self.strangers = set(range(FIRST_PID, self.next_pid))
        self.version += 1
