"""The shapes in which a script runs: their replicas and micro-batches, and the freedoms that each
needs."""

from __future__ import annotations

from dataclasses import dataclass

from gpq_agent import wire

from gpq.verdicts import NEEDED

MICROS = 3  # the parts are uneven if the batch is not a multiple of it
REPLICAS = 2  # in the largest shape
LEAST_STEPS = 4  # enough to see the end of an epoch, a stop and a restart


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the script. `stop`: the step to stop after, or 0 for the last attempt of its
    shape."""

    replicas: int
    begin: int = 0
    stop: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    attempts: tuple[Attempt, ...] = (Attempt(1),)
    micros: int = 1
    sample: bool = False
    reverse: bool = False
    rotate: bool = False

    @property
    def freedoms(self) -> tuple[str, ...]:
        """gpq uses this shape only if a job has all of these."""
        return NEEDED.get(self.name, ())

    @property
    def cut(self) -> bool:
        """Does a batch ever come in parts here?"""
        return self.micros > 1 or self.sample or self.replicas > 1

    @property
    def restarts(self) -> list[int]:
        """The steps done before each start but the first."""
        return [attempt.begin for attempt in self.attempts[1:]]

    @property
    def replicas(self) -> int:
        return max(attempt.replicas for attempt in self.attempts)

    def order(
        self, attempt: Attempt, folder: str, steps: int, lifeline: int, exact: bool = True
    ) -> wire.CheckOrder:
        """The order for a process of this attempt. An epoch is cut to half of the steps, so that it
        ends twice."""
        return wire.CheckOrder(
            folder=folder,
            steps=steps,
            epoch_steps=max(2, steps // 2),
            micros=self.micros,
            sample=self.sample,
            begin=attempt.begin,
            stop=attempt.stop,
            reverse=self.reverse,
            rotate=self.rotate,
            lifeline=lifeline,
            exact=exact,
        )


REFERENCE = Shape("one replica")
# A tensor may come out too well by luck in any single one of them.
ROUNDING = (
    Shape("one replica, batches reversed", reverse=True),
    Shape("one replica, halves of batches swapped", rotate=True),
    Shape("one replica, halves of batches reversed", reverse=True, rotate=True),
)
AGAIN = Shape("one replica, again")


def resumption(steps: int) -> Shape:
    """Stopped in the middle of an epoch, then two replicas, stopped in the middle of the next
    epoch, then one replica again."""
    first_stop, second_stop = steps * 3 // 8 or 1, steps * 3 // 4
    attempts = (
        Attempt(1, 0, first_stop),
        Attempt(REPLICAS, first_stop, second_stop),
        Attempt(1, second_stop),
    )
    return Shape("stopped and resumed on another number", attempts)


def compared_shapes(steps: int) -> tuple[Shape, ...]:
    """The shapes that are compared with the reference, in the order of the table."""
    two = (Attempt(REPLICAS),)
    return (
        Shape("accumulating", micros=MICROS),
        Shape("split", sample=True),
        Shape("two replicas", two, sample=True),
        Shape("two replicas, accumulating", two, micros=MICROS, sample=True),
        resumption(steps),
    )
