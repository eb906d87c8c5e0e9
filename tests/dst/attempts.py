"""One attempt on a simulated server: its directory in the spool, its shim and its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpq_agent import wire

from tests.dst.judge import Key, Tree

if TYPE_CHECKING:
    from tests.dst.nodes import Node

LIVE = ("starting", "running", "orphan")


@dataclass(eq=False)
class Attempt:
    """A directory of the spool, and the processes that belong to it."""

    node: Node
    order: wire.StartOrder
    boot: int
    pid: int  # the shim's pid since `born`
    born: float
    shim: bool = True
    adopted: bool = False
    tree: Tree | None = None  # set once it gets its go
    record: dict[str, Any] | None = None  # exit.json
    record_at: float = 0.0
    asked: str = ""
    asked_grace: float = 0.0
    terminated: bool = False
    ending_at: float = float("inf")  # the latest time at which its tree will be killed
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
        """Its tree is gone. Its shim records that, if it still lives."""
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
        record = record._replace(stamp=self.node.boottime(), boot_id=self.node.boot_id())
        self.record, self.record_at = record._asdict(), self.node.schedule.now
        self.node.schedule.after(self.node.release_after + 0.01, self.node.changed)

    def terminate(self, grace: float) -> None:
        """TERM to all, then KILL after `grace`."""
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
