"""The arguments of job.loader(): what they mean together, and which ones contradict each other."""

import operator
from typing import Any, Dict, List, NamedTuple, Optional

import torch

from gpq_agent.train.data.batches import Limits
from gpq_agent.train.data.order import OwnOrder
from gpq_agent.train.errors import GpqTrainError

USUAL_BATCH = "pass the usual number of examples per batch, the one that your learning rate is for"


class Source(NamedTuple):
    """Where examples come from."""

    dataset: Any
    options: Dict[str, Any]  # options of torch's DataLoader
    may_change: bool  # between attempts or replicas


class Ordering(NamedTuple):
    """The order in which an epoch visits examples, under the names of job.loader()."""

    shuffle: Optional[bool]
    sampler: Any
    batch_sampler: Any
    drop_last: bool
    generator: Optional[torch.Generator]

    @property
    def has_sampler(self) -> bool:
        """Does the script have its own sampler or batch sampler?"""
        return self.sampler is not None or self.batch_sampler is not None

    def own_order(self, size: int) -> Optional[OwnOrder]:
        """The script's own order of an epoch over `size` examples, or None.

        Raises GpqTrainError.
        """
        if self.batch_sampler is not None:
            rivals = {
                "sampler": self.sampler is not None,
                "shuffle": self.shuffle,
                "drop_last": self.drop_last,
            }
            _refuse_rivals(
                "batch_sampler=",
                "it decides that itself",
                [name for name, is_set in rivals.items() if is_set],
            )
            return OwnOrder(self.batch_sampler, size, batched=True)
        if self.sampler is None:
            return None
        rival = ["shuffle"] if self.shuffle else []
        _refuse_rivals("sampler=", "the sampler decides the order", rival)
        return OwnOrder(self.sampler, size, batched=False)


class BatchSizes(NamedTuple):
    """The current and largest batch sizes in examples, under the names of job.loader()."""

    batch_size: Optional[int]
    max_batch_size: Optional[int]
    max_local_batch: Optional[int]
    fixed_batch: bool

    def limits(self, replicas: int, own_order: Optional[OwnOrder], seed: int) -> Limits:
        """What the sizes allow `replicas`, with `own_order` of the script or None.

        `seed`: of that order, whose first epoch shows its longest batch. Raises GpqTrainError.
        """
        for name in ("batch_size", "max_batch_size", "max_local_batch"):
            _check(name, getattr(self, name))
        batched = own_order is not None and own_order.batched
        batch, max_batch = self.batch_size, self.max_batch_size
        if own_order is not None and batched:
            batch = self._batch_of_sampler(own_order.batch_size())
        if batch is None:
            raise GpqTrainError(
                "job.loader() needs batch_size",
                "the total over all replicas that your learning rate is for",
            )
        if max_batch is not None and max_batch < batch:
            raise GpqTrainError(
                "max_batch_size {} is below batch_size {}".format(max_batch, batch),
                "batch_size is the total over all replicas, and max_batch_size is how far it "
                "may grow",
            )
        if batched and max_batch is not None and max_batch > batch:
            raise GpqTrainError(
                "max_batch_size cannot be combined with batch_sampler=, whose batches are the "
                "steps",
                "leave it out, or use sampler= and let gpq make the batches",
            )
        if own_order is not None and batched:
            # One replica alone would process each of its batches at once.
            local = self.max_local_batch or max(batch, own_order.draw(seed, 0).longest())
            return Limits(batch, batch, local, replicas, True)
        max_total = batch if self.fixed_batch else max_batch or batch
        return Limits(batch, max_total, self.max_local_batch or batch, replicas, self.fixed_batch)

    def _batch_of_sampler(self, own_size: Optional[int]) -> int:
        """With a batch sampler. `own`: the batch size that it states."""
        if self.batch_size is None and own_size is None:
            words = (
                "job.loader() needs batch_size, because the batch sampler has no "
                "batch_size of its own"
            )
            raise GpqTrainError(words, USUAL_BATCH)
        if self.batch_size is not None and own_size is not None and self.batch_size != own_size:
            words = "batch_size {} differs from the {} of the batch sampler"
            raise GpqTrainError(words.format(self.batch_size, own_size), "leave batch_size out")
        batch = own_size if own_size is not None else self.batch_size
        assert batch is not None
        return batch


def _refuse_rivals(option: str, reason: str, rivals: List[str]) -> None:
    if rivals:
        words = "{} and {} were both given: {}"
        raise GpqTrainError(words.format(option, "=, ".join(rivals) + "=", reason), "leave one out")


def _check(name: str, value: Optional[int]) -> None:
    if value is None:
        return
    try:
        number = operator.index(value)
    except TypeError:
        words = "{} must be a whole number, not {!r}".format(name, value)
        raise GpqTrainError(words) from None
    if number < 1:
        raise GpqTrainError("{} must be at least 1, not {}".format(name, value))
