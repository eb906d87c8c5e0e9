"""Messages between `gpq check` and the training processes that it starts, and the lines of `gpq
doctor --gpu`."""

from typing import Any, Dict, List, NamedTuple, Optional

# Habits that the library reports and `gpq check` guesses: what the loop does, and the cure.
HABIT_WORDS = {
    "own-rate": (
        "the loop sets the learning rate by its own count",
        "compute it from job.step, or give job.prepare() a scheduler",
    ),
    "state-in-pieces": (
        "something that job.state() keeps ({}) changes in every micro-batch instead of once per "
        "step",
        "update it only when job.at_step is true",
    ),
}

GPU_LIMIT = 110.0  # seconds for all lines about one server


class CheckOrder(NamedTuple):
    """The shape in which to train the script for a few steps, and where to write the results.

    Each rank appends to `<folder>/<attempt>.<rank>.jsonl`: one line {"facts": {...}} and a
    CheckStep for each step.
    """

    folder: str
    steps: int  # optimizer steps after which the process ends
    epoch_steps: int = 0  # length of an epoch in steps, the last with fewer examples. 0: unchanged
    micros: int = 1  # micro-batches of each replica in a step
    sample: bool = False  # measure the noise scale in every second step
    begin: int = 0  # steps that earlier attempts of this shape have done
    stop: int = 0  # stop after this many steps, as if ordered. 0: do not stop
    # reverse the examples of a batch, which shows what rounding alone changes
    reverse: bool = False
    rotate: bool = False  # put the second half of a batch first, for the same reason
    # a descriptor. At its end `gpq check` is gone, and this process ends too
    lifeline: int = -1
    # in full precision. Otherwise autocast and TF32 stay as the script sets them
    exact: bool = True


class CheckStep(NamedTuple):
    """What rank `rank` did in one step. From rank 0 also the result."""

    step: int  # done so far
    indices: List[int]  # the examples of this rank
    random: bool  # the body of the loop drew random numbers
    # [name, value, number of examples behind it, or 0 if it was logged outside the loop]
    metrics: List[Any]
    rates: List[List[float]]  # for each optimizer.step(): the learning rates of its groups
    tensors: Dict[str, List[Optional[float]]]  # each a Fingerprint, see train/prove/sketch.py
    numbers: Dict[str, Optional[float]]


class GpuLine(NamedTuple):
    """One check."""

    name: str
    verdict: str  # "PASS" | "FAIL" | "SKIP"
    figure: str  # the measurement, or why there is none
    seconds: float = 0.0  # duration of the check
    fix: str = ""  # what to do about a FAIL
