"""What a job has reported: what it declared, what was measured, and what it leaves to the next job
of its program.

Frozen data that fits nothing. Times in seconds, batches in examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from gpq.core.model.units import NodeId, Seconds

_replicas_of = attrgetter("replicas")

# What a training loop leaves open to gpq (wire.FREEDOMS): a step in several micro-batches, and a
# step in two to measure the noise scale. Also a restart with another number of GPUs, and another
# batch size.
ACCUMULATE, SPLIT, RESIZE, RETUNE = FREEDOMS = ("accumulate", "split", "resize", "retune")
NONE_LOST: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Declared:
    """What the script declared (wire.Declared), with options of the command line applied. In a
    profile, without what habits take away."""

    adaptive: bool  # False: fixed batch size, resizable only
    batch_size: int = 0
    max_batch_size: int = 0
    min_atomic_batch: int = 1
    max_atomic_batch: int = 0
    dataset_size: int = 0
    epochs: int = 0
    accumulation: bool = True
    rule: str = ""
    parameters: int = 0
    # one replica exceeds the base batch size only by accumulation, as in Pollux
    accumulate_alone: bool = False
    passes: bool = False  # epochs are passes over the data, at any batch size
    adapter: str = ""  # the framework that drives its loop, such as "transformers"
    # (GPU type, least, most) if they differ by type
    atomic_by_type: tuple[tuple[str, int, int], ...] = ()

    @property
    def statistical(self) -> bool:
        """Whether its length counts examples at the base batch size, so that goodput says when it
        ends. Otherwise it counts examples, and throughput does."""
        return self.adaptive and not self.passes

    @property
    def largest_batch(self) -> int:
        """The largest batch size that it may have."""
        if self.adaptive and self.max_batch_size > 0:
            return self.max_batch_size
        return self.batch_size


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """Mean measured times of one (servers, replicas, micro-batch), in seconds. `weight` counts
    steps and decays."""

    nodes: int
    replicas: int
    atomic_batch: int
    grad_time: Seconds  # one forward and backward pass without synchronisation
    step_time: Seconds  # the micro-batch that synchronises, including the optimizer
    weight: float
    gpu_type: str = ""  # of the measured devices. "" if not known

    @property
    def key(self) -> tuple[str, int, int, int]:
        """What was measured."""
        return self.gpu_type, self.nodes, self.replicas, self.atomic_batch


@dataclass(frozen=True, slots=True)
class Noise:
    """sqr = |E g|^2 and var = tr(Cov g) of one example, so the noise scale is var / sqr, in
    examples."""

    sqr: float
    var: float
    samples: int
    biased: bool = False
    capped: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    epoch: int
    epochs: int
    samples: int
    step: int
    base_steps: float
    fraction: float  # of the declared length, 0 to 1


@dataclass(frozen=True, slots=True)
class LossPoint:
    """Mean training loss around one moment. `base_steps` is the progress in steps at the base batch
    size."""

    base_steps: float
    loss: float
    weight: float = 1.0  # reports averaged in it


@dataclass(frozen=True, slots=True)
class NoisePoint:
    """The noise scale around one moment of the training. `base_steps` is the progress in steps at
    the base batch size."""

    base_steps: float
    scale: float  # examples
    jobs: float = 1.0  # reports averaged in it


@dataclass(frozen=True, slots=True)
class RankTime:
    """One replica over a window of about 30 s (wire.RankTimes)."""

    rank: int
    steps: int
    compute: Seconds  # median from the start of a step to its own last gradient
    p95: Seconds
    whole: Seconds  # mean of a step
    wait: Seconds  # mean part of it spent waiting for the others
    fetch: Seconds  # mean part of it spent waiting for data
    slow: int = 0  # consecutive windows in which it was slower than the others (stragglers.judge)


@dataclass(frozen=True, slots=True)
class RankPulse:
    """Where a replica is that has made no step for a while (wire.Pulse)."""

    rank: int
    node: NodeId
    step: int
    phase: str  # one of wire.PHASES
    since: Seconds  # of its latest step


@dataclass(frozen=True, slots=True)
class Habit:
    """What a job's loop does, and the freedoms that gpq loses by it (wire.Habit)."""

    code: str
    freedoms: tuple[str, ...]  # of FREEDOMS, in their order
    message: str = ""
    cure: str = ""  # the change to the script that gives them back
    suspected: bool = False  # not observed: its user may accept it
    until: int = (
        # an earlier job of the program had it. It goes away at this step of this job unless it
        # shows. 0: it showed
        0
    )


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything that was measured of a job."""

    declared: Declared | None = None
    rows: tuple[ProfileRow, ...] = ()
    noise: Noise | None = None
    progress: Progress | None = None
    atomic_batch: int = 0  # in use now, as reported
    accum_steps: int = 0
    # of the latest order that took effect, perhaps limited by what the script allows
    order_seq: int = 0
    batch_changes: int = 0  # that took effect without a restart
    samples_per_second: float = 0.0  # latest measured throughput
    ranks: tuple[RankTime, ...] = ()  # the latest window of this attempt
    metrics: tuple[tuple[str, float], ...] = ()  # latest values of job.log
    diverged: tuple[tuple[str, Seconds], ...] = ()  # since when, for those that are not finite
    checkpoints: int = 0
    checkpoint_seconds: Seconds = 0.0  # of the latest
    checkpoint_bytes: int = 0  # of the latest
    checkpoint_step: int = 0  # of the latest. 0: not reported
    losses: tuple[LossPoint, ...] = ()  # thinned, oldest first (measurements.MAX_LOSSES)
    # `rows` and `noise` as of the last update of the model. They
    model_rows: tuple[ProfileRow, ...] = ()
    model_noise: Noise | None = (
        None  # follow when something has changed by more than a measurement is worth (profiling)
    )
    # the first usable one: the noise scale grows while a model learns
    early_noise: Noise | None = None
    noise_curve: tuple[NoisePoint, ...] = ()  # how it has grown until now (noise_curve.record)
    habits: tuple[Habit, ...] = ()  # one for each code (habits.merge_habits)
    # what the script declared, if habits leave less of it in `declared`
    script: Declared | None = None

    @property
    def length(self) -> float | None:
        """The declared length in examples, as `Declared.statistical` counts them. None if the
        script declared none, or if its progress is unknown."""
        declared, progress = self.declared, self.progress
        if declared is None or progress is None or declared.dataset_size * progress.epochs <= 0:
            return None
        return float(declared.dataset_size) * progress.epochs

    @property
    def length_left(self) -> float | None:
        length, progress = self.length, self.progress
        if length is None or progress is None:
            return None
        return (1.0 - min(progress.fraction, 1.0)) * length

    @property
    def lost(self) -> frozenset[str]:
        """The freedoms that habits take away."""
        if not self.habits:
            return NONE_LOST
        return frozenset(freedom for habit in self.habits for freedom in habit.freedoms)

    @property
    def max_replicas(self) -> int:
        return max(map(_replicas_of, self.rows), default=0)

    @property
    def basis(self) -> tuple[ProfileRow, ...]:
        """The rows on which the throughput model is based."""
        return self.model_rows or self.rows

    @property
    def noise_basis(self) -> Noise | None:
        """The noise scale on which goodput is based."""
        return self.model_noise or self.noise


@dataclass(frozen=True, slots=True)
class Prior:
    """What earlier jobs of a program measured: their profile rows, the noise scale at their start,
    and their most replicas."""

    rows: tuple[ProfileRow, ...] = ()
    noise: Noise | None = None
    max_replicas: int = 0
    noise_curve: tuple[NoisePoint, ...] = ()  # how the noise scale grew after that
    habits: tuple[Habit, ...] = ()  # of its loop
