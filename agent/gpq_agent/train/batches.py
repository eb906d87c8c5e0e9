"""Batch arithmetic: from limits and an order to the batch sizes in force, and from those to the shares of one step.

Pure. Every replica computes the same answers from the same arguments, so nothing here is ever communicated.
"""

from typing import List, NamedTuple


class Limits(NamedTuple):
    """What the script allows, in examples; `replicas` is K of this attempt."""

    base_batch: int
    max_batch: int
    max_local: int
    replicas: int
    fixed: bool = False  # the total batch is always `base_batch`


class Configuration(NamedTuple):
    """Batch sizes in force. `total` may be a little less than replicas * atomic * (accum + 1): it need not divide."""

    seq: int
    atomic_batch: int
    accum_steps: int
    total: int


class Step(NamedTuple):
    """One optimiser step as one replica sees it. Gradients come out as the mean over `total` examples.

    `counts` are the examples of each micro-batch that count; a replica without enough examples has empty ones, and runs
    them on a repeated example that weighs nothing.
    """

    epoch: int
    start: int
    total: int
    counts: List[int]
    configuration: Configuration
    sampled: bool = False
    full: bool = True  # not the tail of an epoch, not split for sampling: its time stands for the configuration

    def weight(self, index: int, replicas: int) -> float:
        """K * n_local / n_total: summed over micro-batches and averaged over K replicas, a mean over the step."""
        return replicas * self.counts[index] / self.total

    def inverse(self, replicas: int) -> float:
        """Mean over micro-gradients of one over their examples; 0.0 where one has none. A micro-gradient is what one of
        several replicas accumulates over the step, of a single one each micro-batch."""
        parts = len(self.counts) if replicas == 1 else replicas
        return parts / self.total if self.total % parts == 0 and self.total else 0.0


def ceil_div(numerator: int, denominator: int) -> int:
    """The smallest integer not below numerator / denominator."""
    return -(-numerator // denominator)


def spread(limits: Limits, seq: int, total: int, bound: int) -> Configuration:
    """`total` examples over the replicas with micro-batches of at most `bound`, in as few micro-batches as possible."""
    share = ceil_div(total, limits.replicas)
    micros = ceil_div(share, max(bound, 1))
    return Configuration(seq, ceil_div(share, micros), micros - 1, total)


def starting(limits: Limits) -> Configuration:
    """Without an order: exactly the user's own total batch, accumulated where it does not fit."""
    return spread(limits, 0, limits.base_batch, limits.max_local)


def ordered(limits: Limits, seq: int, atomic_batch: int, accum_steps: int) -> Configuration:
    """The configuration that obeys an order as far as the limits allow; `atomic_batch` 0 leaves the choice to us."""
    if atomic_batch <= 0:
        return starting(limits)._replace(seq=seq)
    atomic = min(atomic_batch, limits.max_local)
    if limits.fixed:
        return spread(limits, seq, limits.base_batch, atomic)
    block = atomic * limits.replicas
    total = block * (max(accum_steps, 0) + 1)
    if total < limits.base_batch:
        total = block * ceil_div(limits.base_batch, block)
    if total > limits.max_batch:
        total = block * (limits.max_batch // block)
    if total == 0:  # one micro-batch each is already more than the maximum
        return spread(limits, seq, limits.max_batch, atomic)
    return Configuration(seq, atomic, total // block - 1, total)


def split_evenly(count: int, parts: int) -> List[int]:
    """`parts` sizes that differ by at most one, with the sum `count`, the empty ones first."""
    small, larger = divmod(count, parts)
    return [small] * (parts - larger) + [small + 1] * larger


def shape_step(
    epoch: int, start: int, remaining: int, configuration: Configuration, replicas: int, rank: int, sample: bool
) -> Step:
    """The next step of `rank` when `remaining` examples of the epoch are left.

    A sampled step gives every micro-batch the same size, so it may take a few examples less than others; with one
    replica and one micro-batch it is split in two, which makes the noise estimate unbiased.
    """
    total = min(configuration.total, remaining)
    micros = ceil_div(ceil_div(total, replicas), configuration.atomic_batch)
    full = total == configuration.total
    if sample and full:
        parts = 2 if replicas * micros == 1 and total >= 2 else micros
        even = total - total % (replicas * parts)
        # Dropping a few examples from the step is fine, changing what the step is would not be.
        if replicas * parts > 1 and even * 4 >= total * 3:
            counts = [even // (replicas * parts)] * parts
            return Step(epoch, start, even, counts, configuration, True, parts == micros)
    share = (total - rank + replicas - 1) // replicas
    return Step(epoch, start, total, split_evenly(share, micros), configuration, False, full)
