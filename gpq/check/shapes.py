"""The shapes that a script is run in: which replicas and micro-batches, and which freedoms the
allocator needs for each."""

from __future__ import annotations

from dataclasses import dataclass

from gpq_agent import wire

MICROS = 3  # uneven parts, where the batch is no multiple of it
REPLICAS = 2  # of the largest shape
LEAST_STEPS = 4  # an epoch's end, a stop and a restart are to be seen


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the script. `stop`: steps after which it is stopped, 0 for the last one of its
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
    # without any one of them the allocator never asks for this shape
    freedoms: tuple[str, ...] = ()

    @property
    def cut(self) -> bool:
        """Is a batch ever in parts here?"""
        return self.micros > 1 or self.sample or self.replicas > 1

    @property
    def replicas(self) -> int:
        return max(attempt.replicas for attempt in self.attempts)

    def order(
        self,
        attempt: Attempt,
        folder: str,
        steps: int,
        lifeline: int,
        exact: bool = True,
    ) -> wire.CheckOrder:
        """What a process of this attempt is told. An epoch is cut to half of the steps, so that its
        end is seen twice."""
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
# By luck one tensor may come out too well in any one of them.
ROUNDING = (
    Shape("one replica, batches reversed", reverse=True),
    Shape("one replica, halves of batches swapped", rotate=True),
    Shape("one replica, halves of batches reversed", reverse=True, rotate=True),
)
AGAIN = Shape("one replica, again")


def resumed(steps: int) -> Shape:
    """Stopped in the midst of an epoch, on to two replicas, stopped in the midst of the next, and
    back to one."""
    first_stop, second_stop = steps * 3 // 8 or 1, steps * 3 // 4
    attempts = (
        Attempt(1, 0, first_stop),
        Attempt(REPLICAS, first_stop, second_stop),
        Attempt(1, second_stop),
    )
    return Shape("stopped and resumed on another number", attempts, freedoms=("resize",))


def compared(steps: int) -> tuple[Shape, ...]:
    """Those that are held against the reference, in the order of the table."""
    two = (Attempt(REPLICAS),)
    return (
        Shape("accumulating", micros=MICROS, freedoms=("accumulate",)),
        Shape("split", sample=True, freedoms=("split",)),
        Shape("two replicas", two, sample=True, freedoms=("resize",)),
        Shape(
            "two replicas, accumulating",
            two,
            micros=MICROS,
            sample=True,
            freedoms=("resize", "accumulate"),
        ),
        resumed(steps),
    )
