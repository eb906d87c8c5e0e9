"""What a script iterates over: an ordinary DataLoader fed by the global cursor, with the engine around it."""

from typing import Any, Callable, Iterator, Optional, Protocol

from torch.utils.data import DataLoader, IterableDataset

from . import check
from .errors import GpqTrainError
from .sampler import Cursor, GlobalSampler, Issued


class Boundaries(Protocol):
    """What the engine does around each micro-batch."""

    def boundary(self) -> None:
        """Between two optimiser steps: orders, checkpoints, stops. May not return."""

    def fetch(self) -> None:
        """A micro-batch is about to be fetched."""

    def enter(self, micro: Issued) -> None:
        """It is about to be given to the script."""

    def leave_micro(self, micro: Issued, *, abandoned: bool) -> None:
        """The script is done with it."""


class Loader:
    """Iterating gives the micro-batches of the rest of an epoch, as the data set's DataLoader would collate them.

    `counted` says how many examples of the micro-batch in hand count: 0 for one that only keeps this replica in step
    with the others at the end of an epoch, else the length of the batch.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: GlobalSampler,
        session: Boundaries,
        *,
        num_workers: int = 0,
        collate_fn: Optional[Callable[[Any], Any]] = None,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        prefetch_factor: Optional[int] = None,
        worker_init_fn: Optional[Callable[[int], None]] = None,
    ) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self.counted = 0
        self._given = Cursor(-1, 0)  # epoch of the present pass, and the micro-batches that it has given
        self._session = session
        data, batches = check.recorder.sampler(dataset, sampler) if check.recorder else (dataset, sampler)
        self._data: Any = DataLoader(
            data,
            batch_sampler=batches,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            persistent_workers=persistent_workers,
            prefetch_factor=prefetch_factor,
            worker_init_fn=worker_init_fn,
        )

    def __len__(self) -> int:
        """Micro-batches of the present pass: those given and those left, at the present batch size.

        So `total / len(loader)` after the loop is a mean, as with any loader, also in an epoch resumed in its midst.
        """
        epoch, given = self._given
        return len(self.sampler) + (given if epoch == self.sampler.cursor.epoch else 0)

    def __iter__(self) -> Iterator[Any]:
        sampler = self.sampler
        if sampler.cursor.consumed >= sampler.size:  # a loop without job.epochs()
            sampler.seek(sampler.cursor.epoch + 1)
        self._given = Cursor(sampler.cursor.epoch, 0)
        self._session.boundary()
        batches = iter(self._data)
        while sampler.cursor.consumed < sampler.size:
            self._session.fetch()
            batch = next(batches)
            micro = sampler.received()
            self.counted = micro.step.counts[micro.place]
            self._session.enter(micro)
            abandoned = True  # the script breaks out of the loop, or fails in it
            try:
                yield batch
                abandoned = False
            finally:
                self._session.leave_micro(micro, abandoned=abandoned)
                if micro.last:
                    sampler.consumed(micro.step)
                    self._given = Cursor(self._given.epoch, self._given.consumed + len(micro.step.counts))
            if micro.last and sampler.cursor.consumed < sampler.size:
                self._session.boundary()


def dataset_size(dataset: Any) -> int:
    """Number of examples. Raises GpqTrainError for a stream, whose examples cannot be visited exactly once."""
    if isinstance(dataset, IterableDataset):
        raise GpqTrainError(
            "job.loader() needs a data set with a length and an index; {} is an IterableDataset".format(
                type(dataset).__name__
            ),
            "give it a Dataset with __len__ and __getitem__, or keep your own loader and use job.should_stop()",
        )
    try:
        return len(dataset)
    except TypeError:
        raise GpqTrainError(
            "job.loader() needs a data set with a length; {} has none".format(type(dataset).__name__),
            "add __len__ and __getitem__ to it",
        ) from None
