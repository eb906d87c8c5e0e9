"""Between `gpq check` and the training processes that it starts."""

from typing import Any, Dict, List, NamedTuple, Optional


class CheckOrder(NamedTuple):
    """In which shape the script is to be trained for a few steps, and where to write what it came
    to.

    Each rank appends to `<folder>/<attempt>.<rank>.jsonl`: one line {"facts": {...}} and a
    CheckStep for each step.
    """

    folder: str
    steps: int  # optimizer steps after which the process ends
    epoch_steps: int = 0  # an epoch is cut to so many, the last with fewer examples; 0: as it is
    micros: int = 1  # micro-batches of each replica in a step
    sample: bool = False  # every second step is taken as one that the noise scale is measured in
    begin: int = 0  # steps that earlier attempts of this shape have done
    stop: int = 0  # stop as on an order once so many are done; 0: not
    reverse: bool = False  # the examples of a batch in reverse order: what rounding alone changes
    rotate: bool = False  # its second half first: the same, by other luck
    # a descriptor: once it is at its end, `gpq check` is gone, and so is this process
    lifeline: int = -1
    exact: bool = True  # in full precision; else autocast and TF32 are as the script has them


class CheckStep(NamedTuple):
    """What rank `rank` did in one step, and rank 0 what it came to."""

    step: int  # done so far
    attempt: int
    epoch: int
    epochs: int  # that job.epochs() was given; 0: the loop is outside it
    indices: List[int]  # the examples of this rank
    random: bool  # the body of the loop drew random numbers
    # [name, value, examples that it stands for; 0: it was logged outside the loop]
    metrics: List[Any]
    rates: List[List[float]]  # of each optimizer.step(): the learning rates of its groups
    tensors: Dict[str, List[Optional[float]]]  # a Fingerprint each, see train/prove/sketch.py
    numbers: Dict[str, Optional[float]]
