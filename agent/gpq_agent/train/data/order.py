"""The order of the examples of each epoch, drawn once per epoch.

It is our own permutation, or what the script's sampler yields. It depends on the job's seed and the
epoch, so every replica and every attempt draws the same order. Samplers are refused if they split
the data themselves, do not end, or yield indices that are not integers.
"""

import functools
import hashlib
import operator
import random
import sys
from array import array
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch.utils.data.distributed import DistributedSampler

from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.process.rng import stable_seed

SLACK = 1 << 20  # a sampler may yield this many indices,
PASSES = 16  # and this many times the data set, before it counts as endless
LONGEST = 1 << 31  # most indices that the length of a sampler may announce
NESTED = 4  # depth of samplers within samplers


class Order(NamedTuple):
    """The indices of an epoch, and where its batches end.

    indices: shape (examples,), int64.
    ends: where each batch of a batch sampler ends, None if gpq makes the batches.
    digest: 48 bits of both, 0 for our own permutation.
    """

    indices: torch.Tensor
    ends: Optional[List[int]] = None
    digest: int = 0

    def longest(self) -> int:
        """Examples in the largest batch, 0 if gpq makes the batches."""
        ends = self.ends or [0]
        return max(end - begin for begin, end in zip([0, *ends], ends))


def permutation(seed: int, epoch: int, size: int, shuffle: bool) -> torch.Tensor:
    """The examples of an epoch in order, shape (size,), int64. Depends only on the arguments."""
    if not shuffle:
        return torch.arange(size)
    generator = torch.Generator()
    generator.manual_seed(stable_seed(seed, epoch))
    return torch.randperm(size, generator=generator)


class OwnOrder:
    """A script's own sampler, or batch sampler (`batched`), over a data set of `examples`."""

    def __init__(self, sampler: Any, examples: int, *, batched: bool) -> None:
        self.name = type(sampler).__name__
        self.batched = batched
        self._sampler = sampler
        self._examples = examples
        self._chain = _chain(sampler)
        self._latest: Tuple[int, int, Optional[Order]] = (0, -1, None)
        for member in self._chain:
            if isinstance(member, DistributedSampler) or getattr(member, "num_replicas", 1) != 1:
                words = "{} splits the data over replicas, which job.loader() does itself"
                raise GpqTrainError(
                    words.format(type(member).__name__),
                    "leave it out (job.loader() takes shuffle= and drop_last=), or pass the "
                    "sampler that it wraps",
                )

    def length(self) -> Optional[int]:
        """The sampler's own length, in indices or batches. None if it has none."""
        try:
            length = len(self._sampler)
        except (TypeError, NotImplementedError, AttributeError):
            return None
        return length if length > 0 else None

    def batch_size(self) -> Optional[int]:
        """The batch size that a batch sampler states."""
        value = getattr(self._sampler, "batch_size", None)
        return value if isinstance(value, int) and value > 0 else None

    def draw(self, seed: int, epoch: int) -> Order:
        """The order of `epoch`. Restores every generator that it can reach. Raises
        GpqTrainError."""
        latest = self._latest[2]
        if latest is not None and self._latest[:2] == (seed, epoch):
            return latest
        for member in self._chain:
            if callable(getattr(member, "set_epoch", None)):
                member.set_epoch(epoch)
        with _seed_generators(stable_seed(seed, epoch), self._chain):
            indices, ends = self._read_sampler()
        if not indices:
            problem = "the sampler {} yields nothing in epoch {}".format(self.name, epoch)
            raise GpqTrainError(problem)
        content = hashlib.blake2b(indices.tobytes(), digest_size=6)
        content.update(array("q", ends or []).tobytes())
        digest = int.from_bytes(content.digest(), "big")
        order = Order(torch.frombuffer(indices, dtype=torch.int64), ends, digest)
        self._latest = (seed, epoch, order)
        return order

    def _read_sampler(self) -> Tuple["array[int]", Optional[List[int]]]:
        """Its indices, and where each batch ends if it yields batches."""
        result = array("q")
        ends: Optional[List[int]] = [] if self.batched else None
        limit = PASSES * self._examples + SLACK
        if ends is None:
            limit = max(limit, min(self.length() or 0, LONGEST))
        for item in self._sampler:
            try:
                batch = [item] if ends is None else list(item)
            except TypeError:
                words = "batch_sampler= needs lists of indices, but {} yields a {}"
                hint = "pass a sampler of single indices as sampler="
                raise GpqTrainError(words.format(self.name, type(item).__name__), hint) from None
            if not batch:
                raise GpqTrainError("the batch sampler {} yields an empty batch".format(self.name))
            for index in batch:
                try:
                    result.append(operator.index(index))
                except TypeError:
                    words = "job.loader() needs integer indices, but {} yields a {}"
                    words = words.format(self.name, type(index).__name__)
                    hint = "pass a sampler of lists of indices as batch_sampler="
                    raise GpqTrainError(words, hint if ends is None else "") from None
            if ends is not None:
                ends.append(len(result))
            if len(result) > limit:
                words = (
                    "the sampler {} does not end: it yielded more than {} indices for {} examples"
                )
                hint = "an epoch is one pass over the sampler, so let it stop after one"
                raise GpqTrainError(words.format(self.name, limit, self._examples), hint)
        return result, ends


def hold_together(
    order: Order, gather: Callable[[List[float]], List[List[float]]], name: str, epoch: int
) -> None:
    """Raises GpqTrainError on every replica if replicas drew different orders. Collective."""
    rows = gather([float(order.digest), float(len(order.indices))])  # 48 bits fit a double
    if any(row != rows[0] for row in rows):
        words = "the sampler {} yields a different order on each replica (epoch {})"
        raise GpqTrainError(
            words.format(name, epoch),
            "make it depend on set_epoch(epoch) or the generators of torch, numpy and random, "
            "not on the rank or the clock",
        )


def _chain(sampler: Any) -> List[Any]:
    """The sampler and the samplers within it, as in torch's BatchSampler."""
    chain: List[Any] = []
    while sampler is not None and len(chain) < NESTED:
        if any(sampler is member for member in chain):
            break
        chain.append(sampler)
        sampler = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)
    return chain


@contextmanager
def _seed_generators(seed: int, holders: List[Any]) -> Iterator[None]:
    """Seed every generator that a sampler may use: the global ones (on the CPU), and its own."""
    numpy = sys.modules.get("numpy")
    generators: List[Any] = [torch.default_generator, random._inst]
    if numpy is not None:
        generators.append(numpy.random.mtrand._rand)
    for holder in holders:
        attributes = list(getattr(holder, "__dict__", {}).values())
        generators += [
            value for value in attributes if all(value is not generator for generator in generators)
        ]
    undo: List[Callable[[], Any]] = []
    try:
        for item in generators:
            if isinstance(item, torch.Generator):
                undo.append(functools.partial(item.set_state, item.get_state()))
                item.manual_seed(seed)
            elif isinstance(item, random.Random) and not isinstance(item, random.SystemRandom):
                undo.append(functools.partial(item.setstate, item.getstate()))
                item.seed(seed)
            elif numpy is not None and isinstance(item, numpy.random.RandomState):
                undo.append(functools.partial(item.set_state, item.get_state()))
                item.seed(seed % 2**32)
            elif numpy is not None and isinstance(item, numpy.random.Generator):
                bits = item.bit_generator
                undo.append(functools.partial(setattr, bits, "state", bits.state))
                bits.state = type(bits)(seed).state
        yield
    finally:
        for restore in undo:
            restore()
