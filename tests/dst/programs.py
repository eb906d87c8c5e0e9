"""What the jobs of a simulated run do when they are left alone, asked to stop, or killed. This module does not know the
daemon."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpq.core.model.jobs import JobSpec, Level

if TYPE_CHECKING:
    from tests.dst.attempts import Attempt

REPORT_EVERY = 10.0
DECLARED = {"kind": "declared", "level": "adaptive", "batch_size": 64, "max_batch_size": 512, "max_atomic_batch": 128}


@dataclass
class Program:
    """One submission. `work`: seconds on one GPU. `codes`: exit codes of its tries that nobody stops. The last one
    repeats."""

    token: str
    level: Level
    gpus: int
    most: int
    work: float
    codes: tuple[int, ...] = (0,)
    saves_in: float = 1.0  # seconds from the order to checkpoint to the end
    heeds_term: bool = True
    retries: int = 0
    grace: float = 20.0
    lease: float = 0.0  # --requeue-on-lost
    user: str = "ana"
    tries: int = 0  # how often it ended by itself
    done: float = 0.0  # seconds of work that a checkpoint keeps

    def spec(self, token: str) -> JobSpec:
        return JobSpec(
            argv=(token,),
            cwd="/",
            user=self.user,
            uid=1000,
            level=self.level,
            min_gpus=self.gpus,
            max_gpus=self.most,
            retries=self.retries,
            grace=self.grace,
            requeue_on_lost=self.lease,
        )


@dataclass
class Gang:
    """The parts of one attempt on its nodes, and the work that they do together once all are running."""

    program: Program
    size: int
    now: Callable[[], float]
    after: Callable[[float, Callable[[], None]], None]
    parts: list[Attempt] = field(default_factory=list)
    began: float | None = None
    stopping: bool = False
    over: bool = False

    def join(self, part: Attempt) -> None:
        self.parts.append(part)
        if len(self.parts) == self.size and not self.over:
            self.began = self.now()
            left = max(self.program.work - self.program.done, 0.5) / self.replicas
            self.after(left, self._finish)
            if self.program.level is Level.SCRIPT:
                self.after(1.0, self._declare)

    @property
    def replicas(self) -> int:
        return sum(len(part.order.devices) for part in self.parts)

    def _declare(self) -> None:
        self._report([DECLARED, {"kind": "ready", "seconds": 1.0}])
        self.after(REPORT_EVERY, self._beat)

    def _beat(self) -> None:
        if self._report([self._timing()]):
            self.after(REPORT_EVERY, self._beat)

    def _timing(self) -> dict[str, object]:
        steps, atomic = 20, 64 // self.replicas
        row: dict[str, object] = {"kind": "timing", "nodes": self.size, "replicas": self.replicas, "accum_steps": 0}
        return {
            **row,
            "atomic_batch": atomic,
            "accum_count": steps,
            "accum_sum": 1.0,
            "step_count": steps,
            "step_sum": 2.0,
        }

    def _report(self, lines: list[dict[str, object]]) -> bool:
        if self.over or self.stopping:
            return False
        head = min(self.parts, key=lambda part: part.order.node_rank)
        head.write_report("".join(json.dumps(line) + "\n" for line in lines))
        return True

    def _finish(self) -> None:
        if self.over or self.stopping:
            return
        self.over = True
        codes = self.program.codes
        code = codes[min(self.program.tries, len(codes) - 1)]
        self.program.tries += 1
        for part in list(self.parts):
            part.end(code, None)

    def save(self, part: Attempt) -> None:
        """One part got the order to checkpoint. Rank 0 hears it for all parts, which must all be running to hear it."""
        if self.over or self.stopping or self.began is None or part.order.node_rank != 0:
            return
        self.stopping = True
        self.after(self.program.saves_in, self._saved)

    def _saved(self) -> None:
        if self.over or self.began is None:
            return
        self.over = True
        self.program.done += (self.now() - self.began) * self.replicas
        signal = self.program.level is Level.SIGNAL
        for part in list(self.parts):
            part.proof = part.order.node_rank == 0 and not signal
            part.end(143 if signal else 0, None)

    def broken(self, part: Attempt) -> None:
        """One part ended early, so the others crash later or hang."""
        if self.over:
            return
        self.over = True
        for number, other in enumerate(self.parts):
            if other is not part and (part.order.job + number) % 2:
                self.after(3.0, lambda other=other: other.end(1, None))  # type: ignore[misc]
