"""What a script asks of job.loader(): batch sizes and samplers, checked and made into limits. Refuses what contradicts itself."""

import operator
from typing import Any, NamedTuple, Optional

from .batches import Limits
from .errors import GpqTrainError
from .order import Drawn


class Intake(NamedTuple):
    """The arguments of job.loader(), in examples; `size`: of the data set."""

    size: int
    batch: Optional[int]
    largest: Optional[int]
    local: Optional[int]
    fixed: bool

    def drawn(self, sampler: Any, batch_sampler: Any, *, shuffle: Optional[bool], drop_last: bool) -> Optional[Drawn]:
        """The script's own order of an epoch, None without one. Raises GpqTrainError."""
        if batch_sampler is not None:
            given = [("sampler", sampler is not None), ("shuffle", shuffle), ("drop_last", drop_last)]
            _together("batch_sampler=", "it decides that itself", [name for name, is_given in given if is_given])
            return Drawn(batch_sampler, self.size, batched=True)
        if sampler is None:
            return None
        _together("sampler=", "the sampler decides on the order", ["shuffle"] if shuffle else [])
        return Drawn(sampler, self.size, batched=False)

    def limits(self, replicas: int, drawn: Optional[Drawn], seed: int) -> Limits:
        """Raises GpqTrainError."""
        for name, value in (
            ("batch_size", self.batch), ("max_batch_size", self.largest), ("max_local_batch", self.local),
        ):  # fmt: skip
            _check(name, value)
        batched = drawn is not None and drawn.batched
        batch = self.batch
        if drawn is not None and batched:
            batch = self._batch_of(drawn.batch_size())
        if batch is None:
            raise GpqTrainError(
                "job.loader() needs batch_size", "the total over all replicas for which the learning rate is right"
            )
        if self.largest is not None and self.largest < batch:
            raise GpqTrainError(
                "max_batch_size {} is below batch_size {}".format(self.largest, batch),
                "batch_size is the total over all replicas, max_batch_size how far it may grow",
            )
        if batched and self.largest is not None and self.largest > batch:
            raise GpqTrainError(
                "max_batch_size has no meaning with batch_sampler=: its batches are the steps",
                "leave it out, or give a sampler= and let gpq make the batches",
            )
        if drawn is not None and batched:
            # Alone, each of its batches would go through the device at once.
            local = self.local or max(batch, drawn.draw(seed, 0).longest())
            return Limits(batch, batch, local, replicas, True)
        return Limits(batch, batch if self.fixed else self.largest or batch, self.local or batch, replicas, self.fixed)

    def _batch_of(self, own: Optional[int]) -> int:
        """With a batch sampler, of which `own` is the batch size that it says it has."""
        if self.batch is None and own is None:
            raise GpqTrainError(
                "job.loader() needs batch_size: the batch sampler does not say it",
                "give the usual number of examples of a batch, for which the learning rate is right",
            )
        if self.batch is not None and own is not None and self.batch != own:
            raise GpqTrainError(
                "batch_size {} is not the {} of the batch sampler".format(self.batch, own), "leave batch_size out"
            )
        batch = own if own is not None else self.batch
        assert batch is not None
        return batch


def _together(which: str, why: str, given: Any) -> None:
    if given:
        raise GpqTrainError(
            "{} and {} were both given: {}".format(which, "=, ".join(given) + "=", why), "leave one out"
        )


def _check(name: str, value: Optional[int]) -> None:
    if value is None:
        return
    try:
        number = operator.index(value)
    except TypeError:
        raise GpqTrainError("{} must be a whole number, not {!r}".format(name, value)) from None
    if number < 1:
        raise GpqTrainError("{} must be at least 1, not {}".format(name, value))
