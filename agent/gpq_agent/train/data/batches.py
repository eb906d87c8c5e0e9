"""Batch arithmetic: from limits and an order to batch sizes, and from those to shares of a step.

Pure. Every replica computes the same answers from the same arguments, so nothing is communicated.
"""

from functools import lru_cache
from itertools import islice
from typing import List, NamedTuple, Sequence

FEWEST = 2  # examples in a micro-batch: batch norm refuses one, and one alone says little


class Limits(NamedTuple):
    """What the script allows, in examples. `replicas` is K of this attempt."""

    base_batch: int
    max_batch: int
    max_local: int
    replicas: int
    fixed: bool = False  # the total is always `base_batch`
    group: int = 0  # of batch norm, which no micro-batch cuts. 0: examples are dealt one by one


class Configuration(NamedTuple):
    """The current batch sizes. `total` may be slightly less than replicas * atomic * (accum +
    1)."""

    seq: int
    atomic_batch: int
    accum_steps: int
    total: int


class Micro(NamedTuple):
    """A micro-batch of a step, as one replica runs it.

    place: in the step, from 0. last: of the step.
    in_pieces: the step has several micro-batches, or replicas have unequal shares. The same on
    every replica.
    weight: the factor on the gradient of a mean loss. Summed over the micro-batches and averaged
    over the replicas, it gives the mean over the step.
    indices: its examples in order. A replica without enough examples has none at an epoch's end.
    batch: what to fetch: `indices`, or repeated examples, of weight 0.
    """

    place: int
    last: bool
    in_pieces: bool
    weight: float
    indices: Sequence[int]
    batch: Sequence[int]


class Step(NamedTuple):
    """One optimizer step, as one replica sees it. Gradients are the mean over `total` examples,
    which start at `start` of the order of the epoch."""

    epoch: int
    start: int
    total: int
    micros: Sequence[Micro]
    configuration: Configuration
    sampled: bool = False
    # Not the end of an epoch, and not split for sampling, so its time is typical of the
    # configuration.
    full: bool = True
    # For a sampled step, the same on every replica, else 0: the mean of 1 / examples over
    # micro-gradients. A micro-gradient is a replica's whole share of the step. With one replica,
    # each micro-batch is one.
    inverse: float = 0.0

    @property
    def counts(self) -> List[int]:
        """Examples of each micro-batch that count."""
        return [len(micro.indices) for micro in self.micros]


class Share(NamedTuple):
    """One replica's part of a step. See Step."""

    counts: List[int]
    first: int
    stride: int


def ceil_div(numerator: int, denominator: int) -> int:
    """The smallest integer not below numerator / denominator."""
    return -(-numerator // denominator)


def spread(limits: Limits, seq: int, total: int, bound: int) -> Configuration:
    """Spread `total` examples over the replicas, in as few micro-batches as possible.

    A micro-batch has at most `bound` examples.
    """
    replicas, most = limits.replicas, limits.max_local
    shares = [
        share_of(total, replicas, rank, max(bound, 1), most, limits.group)
        for rank in range(replicas)
    ]
    largest = max(max(share.counts) for share in shares)
    return Configuration(seq, largest, len(shares[0].counts) - 1, total)


def starting(limits: Limits) -> Configuration:
    """Without an order: exactly the user's own total, accumulated if it does not fit."""
    return spread(limits, 0, limits.base_batch, limits.max_local)


def ordered_configuration(
    limits: Limits, seq: int, atomic_batch: int, accum_steps: int
) -> Configuration:
    """The configuration that follows an order as far as the limits allow.

    With `atomic_batch` 0 the order leaves the choice to this function.
    """
    if atomic_batch <= 0:
        return starting(limits)._replace(seq=seq)
    atomic = min(atomic_batch, limits.max_local)
    if limits.group:
        atomic = max(atomic // limits.group, 1) * limits.group
    if limits.fixed:
        return spread(limits, seq, limits.base_batch, atomic)
    block = atomic * limits.replicas
    total = block * (max(accum_steps, 0) + 1)
    if total < limits.base_batch:
        total = block * ceil_div(limits.base_batch, block)
    if total > limits.max_batch:
        total = block * (limits.max_batch // block)
    if total == 0:  # one micro-batch per replica is already more than the maximum
        return spread(limits, seq, limits.max_batch, atomic)
    return Configuration(seq, atomic, total // block - 1, total)


def split_evenly(count: int, parts: int) -> List[int]:
    """`parts` sizes that differ by at most one and add up to `count`. The empty ones come first."""
    size, larger_parts = divmod(count, parts)
    return [size] * (parts - larger_parts) + [size + 1] * larger_parts


def cut(items: List[int], parts: int) -> List[List[int]]:
    """Neighbours stay together. The numbers of items differ by at most one, the smallest first."""
    rest = iter(items)
    return [list(islice(rest, count)) for count in split_evenly(len(items), parts)]


# -- groups of batch norm --------------------------------------------------------------------------


def group_sizes(count: int, group: int) -> List[int]:
    """The groups of a step of `count` examples: as many of `group` as possible, then what is left.
    If that is one example, which batch norm refuses, the last `group` + 1 are two halves, or one
    group of three. A batch of some groups, in order, has these groups again."""
    whole, rest = count // group, count % group  # torch.compile takes no divmod
    if rest != 1 or not whole:
        return [group] * whole + [rest] * (rest > 0)
    return [group] * (whole - 1) + ([3] if group == 2 else split_evenly(group + 1, 2))


def whole_groups(count: int, group: int) -> int:
    """How many groups of a batch of `count` examples are not smaller than others."""
    return group_sizes(count, group).count(group)


def by_group(examples: Sequence[int], group: int) -> List[int]:
    """The examples of a step, the first group first. Every n-th belongs to one of n whole groups,
    so a step in one piece keeps its order."""
    whole = whole_groups(len(examples), group)
    return _columns(examples, whole * group, whole)


def by_row(examples: Sequence[int], group: int) -> List[int]:
    """The inverse for the examples of a micro-batch, which are whole groups in order. Batch norm
    sees n interleaved groups as n times the channels, without a copy."""
    return _columns(examples, whole_groups(len(examples), group) * group, group)


def _columns(items: Sequence[int], end: int, count: int) -> List[int]:
    """Items before `end` are the rows of a table with `count` columns. The result has its columns
    one after the other, and then the other items."""
    columns = [item for first in range(count) for item in items[first:end:count]]
    return [*columns, *items[end:]]


def _share_of_groups(total: int, replicas: int, rank: int, bound: int, group: int) -> Share:
    shares, micros = cut(group_sizes(total, group), replicas), 0
    largest, most_groups = bound + 1, max(map(len, shares))
    while largest > bound and micros < most_groups:
        micros += 1
        counts = [list(map(sum, cut(share, micros))) for share in shares]
        largest = max(map(max, counts))
    return Share(counts[rank], sum(map(sum, counts[:rank])), 1)


# -- shares of a step ------------------------------------------------------------------------------


@lru_cache(maxsize=64)  # the answer is almost always that of the previous step. Only read it
def share_of(total: int, replicas: int, rank: int, bound: int, most: int, group: int = 0) -> Share:
    """How the `total` examples of a step are distributed, in micro-batches of at most `bound`.

    All replicas have the same number of micro-batches. None has only one example if there are two
    or more. For this, some are empty, and pairs (a group of three for an odd number) may exceed
    `bound`, but never `most`, the script's own limit. Only if `most` is 2, an odd example remains.

    group: of batch norm. Micro-batches consist of whole groups, of at least one even above `bound`.
    """
    if group:
        return _share_of_groups(total, replicas, rank, bound, group)
    micros = ceil_div(ceil_div(total, replicas), bound)
    if most < FEWEST or total < FEWEST or total >= FEWEST * replicas * micros:
        counts = split_evenly((total - rank + replicas - 1) // replicas, micros)
        return Share(counts, rank, replicas)
    groups, remainder = divmod(total, FEWEST)
    lone_example = remainder and most == FEWEST
    groups += lone_example
    quotient, larger_shares = divmod(groups, replicas)
    own_groups = quotient + (rank < larger_shares)
    counts = [0] * (ceil_div(groups, replicas) - own_groups) + [FEWEST] * own_groups
    if remainder and rank == min(groups, replicas) - 1:  # the last with examples: none has fewer
        counts[-1] += -1 if lone_example else 1
    return Share(counts, FEWEST * (rank * quotient + min(rank, larger_shares)), 1)


def next_total(size: int, position: int, configuration: Configuration, base: int) -> int:
    """Examples of the step at `position` of an epoch of `size`. The last step takes what is
    left."""
    remaining = size - position
    total = min(configuration.total, remaining)
    # Another batch size must not leave the last example alone if the base batch does not.
    if remaining - total == 1 and size % base != 1 and total > FEWEST:
        return total - 1
    return total


def shape_step(
    epoch: int,
    start: int,
    examples: Sequence[int],
    configuration: Configuration,
    replicas: int,
    rank: int,
    sample: bool,
    *,
    most: int = 0,
    group: int = 0,
) -> Step:
    """The step of `rank` on these examples, which all replicas share.

    most: examples that fit on a device at once, by default the configuration's.
    group: of batch norm. The groups of a step depend on nothing but its examples.

    A sampled step has the same examples as any other. With one replica and one micro-batch it is
    split in two, which makes the noise estimate unbiased. A step is not sampled if some replica
    would have no examples, or if its one replica has one group.
    """
    total = len(examples)
    most = max(most, configuration.atomic_batch)
    bound = configuration.atomic_batch if configuration.accum_steps else most
    share = share_of(total, replicas, rank, bound, most, group)
    counts, is_split, inverse = share.counts, False, 0.0
    if sample and total == configuration.total:
        halves = split_evenly(total, 2)
        if group:
            halves = list(map(sum, cut(group_sizes(total, group), 2)))
        is_split = replicas * len(counts) == 1 and total >= 2 * FEWEST and min(halves) > 0
        counts = halves if is_split else counts
        parts = counts
        if replicas > 1:
            shares = [
                share_of(total, replicas, other, bound, most, group) for other in range(replicas)
            ]
            parts = [sum(other_share.counts) for other_share in shares]
        if len(parts) > 1 and min(parts) > 0:
            inverse = sum(1 / part for part in parts) / len(parts)
    if group:
        examples = by_group(examples, group)
        is_even = total % (replicas * group) == 0 or replicas == 1
    else:
        is_even = replicas == 1 or (share.stride == replicas and total % replicas == 0)
    in_pieces = len(counts) > 1 or not is_even
    filler = examples[: min(FEWEST, most, total)]
    begin, micros = share.first, []
    for place, count in enumerate(counts):
        end = begin + count * share.stride
        indices = examples[begin : end : share.stride]
        indices = by_row(indices, group) if group else indices
        last, weight = place == len(counts) - 1, replicas * count / total
        micros.append(Micro(place, last, in_pieces, weight, indices, indices or filler))
        begin = end
    full = total == configuration.total and not is_split
    return Step(epoch, start, total, micros, configuration, inverse > 0.0, full, inverse)
