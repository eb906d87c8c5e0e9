"""Between daemon and training process: the order that comes down, the reports that go up."""

from typing import List, NamedTuple


class Control(NamedTuple):
    """`control.json`. The training process obeys the highest `seq` of its own attempt and ignores
    the rest."""

    attempt: int
    seq: int
    stop: bool = False  # checkpoint at the next step boundary and exit
    atomic_batch: int = 0  # examples per replica per forward/backward; 0 = the library's own choice
    accum_steps: int = 0  # extra micro-batches before the one that synchronises


REPORT_KINDS = (
    "declared",  # once per attempt: a Declared
    "ready",  # {"seconds": from exec to the end of the first step, "restore_seconds"}
    "timing",  # sums since the last one, per configuration: a Timing
    "ranks",  # about every 30 s: times of all replicas beside each other: a RankTimes
    "noise",  # current estimate of the gradient statistics: a Noise
    "progress",  # a Progress
    "retuned",  # {"atomic_batch", "accum_steps", "lr_factor", "seq"}: an order took effect
    "checkpoint",  # {"step", "seconds", "bytes", "why": "periodic" | "stop" | "end"}
    "metrics",  # {"step", "values": {name: float, or "nan", "inf", "-inf"}}: what job.log was given
    "loss",  # mean of the metric `loss` since the last one: a Loss
    # {"message"}: a line for the user, e.g. out of memory at an atomic batch, and what was done
    "notice",
    # what the loop was seen to do that takes freedoms away, once per attempt and habit: a Habit
    "habit",
)  # A kind that the daemon does not know is skipped: a new one needs no new VERSION.


# What a loop leaves open to the allocator, until a habit of it is seen that is not safe there:
# "accumulate" (a step as several micro-batches), "split" (two of them on one replica, to measure
# the noise scale), "resize" (a restart with another number of replicas), "retune" (another total
# batch).
FREEDOMS = ("accumulate", "split", "resize", "retune")


class Habit(NamedTuple):
    """Something that a training loop does, and the freedoms that it takes away: for good for this
    job."""

    # one of train/habits/table.py, e.g. "two-passes"; a code that the daemon does not know counts
    # all the same
    code: str
    freedoms: List[str]  # of FREEDOMS
    # what the loop does, one line, e.g. "the loop clears gradients between two backward passes"
    message: str
    cure: str  # the change that gives the freedoms back, one line
    evidence: str = "observed"  # "suspected": its user may accept it; "proven" by gpq check


class Proof(NamedTuple):
    """What `gpq check` found of a job's program before it was submitted."""

    program: str  # a digest of it: train/proof.py
    same: List[str]  # of FREEDOMS: in all shapes that need one the training was the same
    lost: List[str]  # of FREEDOMS: some shape that needs one trains something else
    message: str = ""  # which shapes, one line


class Declared(NamedTuple):
    """What the script says of itself."""

    level: str  # "resizable" (fixed batch) | "adaptive"
    # M0: the user's total batch size, for which the learning rate is right; 0 = not declared
    batch_size: int = 0
    max_batch_size: int = 0  # M
    min_atomic_batch: int = 1
    max_atomic_batch: int = 0
    dataset_size: int = 0
    epochs: int = 0
    accumulation: bool = True
    rule: str = ""  # learning-rate rule in use
    parameters: int = 0  # model size


class Timing(NamedTuple):
    """Step times of one configuration since the last report, seconds; the max over replicas where
    they differ.

    `accum_sum` sums the micro-batches that did not synchronise (or the part of a step before its
    last gradient was ready, where nothing accumulates), `step_sum` the micro-batches that did.
    Squares go along for the variance.
    """

    nodes: int
    replicas: int
    atomic_batch: int
    accum_steps: int
    accum_count: int
    accum_sum: float
    accum_sqr: float
    step_count: int
    step_sum: float
    step_sqr: float


class RankTimes(NamedTuple):
    """Of each rank, in the order of ranks, over the same window: where they wait for each other,
    step times are the same, and who makes them wait shows in what comes before."""

    step: int
    steps: List[int]  # measured
    # median seconds from the start of a step to its last local gradient, and from there to its end
    compute: List[float]
    compute_p95: List[float]
    whole: List[float]  # mean seconds of a step
    wait: List[float]  # mean seconds of it that went into waiting for the others' gradients
    fetch: List[float]  # mean seconds of it that went into waiting for data


class Noise(NamedTuple):
    """Smoothed gradient statistics: sqr = |E g|^2, var = tr(Cov g) of ONE example (so noise scale =
    var / sqr, examples)."""

    sqr: float
    var: float
    samples: int  # examples that the window has seen
    biased: bool = False  # from consecutive steps of a single replica
    preconditioned: bool = False
    # sqr came out <= 0: the noise scale is at least var / (small positive sqr)
    capped: bool = False


class Progress(NamedTuple):
    """Where the job is. `base_steps` counts steps at the base batch (the sum of gains), the
    scale-invariant progress."""

    epoch: int
    epochs: int
    samples: int  # consumed in this epoch
    step: int  # optimiser steps so far
    base_steps: float
    fraction: float  # of the declared length, 0 to 1


class Loss(NamedTuple):
    """A point of the loss curve: the mean over a report's window, at the mean progress of what was
    logged in it."""

    base_steps: float  # as in Progress; steps of the script where it has no loader of ours
    loss: float
