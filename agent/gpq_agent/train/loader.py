"""What a script iterates over: an ordinary DataLoader fed by the global cursor, with the engine around it."""

import dis
import inspect
import sys
from typing import Any, Iterator, Optional, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset

from . import check
from .errors import GpqTrainError
from .sampler import GlobalSampler, Issued, stable_seed

# Of torch's DataLoader, with its meaning.
OPTIONS = (
    "num_workers", "collate_fn", "pin_memory", "pin_memory_device", "persistent_workers", "prefetch_factor", "timeout",
    "worker_init_fn", "multiprocessing_context", "in_order",
)  # fmt: skip


class Boundaries(Protocol):
    """What the engine does around each micro-batch."""

    def notice(self, message: str) -> None:
        """A line for the user."""

    def boundary(self) -> None:
        """Between two optimiser steps: orders, checkpoints, stops. May not return."""

    def fetch(self) -> None:
        """A micro-batch is about to be fetched."""

    def enter(self, micro: Issued, *, first: bool) -> bool:
        """It is about to be given to the script, `first` of a loop. False: not it, but the step anew."""

    def take_back(self, micro: Issued) -> bool:
        """The script has dropped the first micro-batch of a loop. True: after a look at it, no more."""

    def looks_over(self) -> bool:
        """Has the script trained on what was taken back? Then it counts after all."""

    def leave_micro(self, micro: Issued, *, abandoned: bool) -> bool:
        """The script is done with it. True: the step is to be made anew."""

    def renewed(self) -> bool:
        """Must what was fetched ahead be fetched anew, from the cursor? True once each time."""

    def pass_over_data(self, *, by_next: bool) -> Optional[int]:
        """The script begins a loop over the loader, or asks for batches `by_next`. Returns the epoch of job.epochs(), None if
        that does not count them."""


class Loader:
    """Iterating gives the micro-batches of the rest of an epoch, as the data set's DataLoader would collate them.

    `counted` says how many examples of the micro-batch in hand count: 0 for one that only keeps this replica in step
    with the others at the end of an epoch, else the length of the batch. `len(loader)` is `steps_per_epoch`.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: GlobalSampler,
        session: Boundaries,
        *,
        generator: Optional[torch.Generator] = None,
        **options: Any,
    ) -> None:
        """`generator`: seeds the worker processes; `options`: those of OPTIONS. Raises GpqTrainError."""
        self.dataset = dataset
        self.sampler = sampler
        self.counted = 0
        self._left = False  # the script has left the loop over it early
        self._look: Optional[Issued] = None  # that the script has dropped at once
        self._session = session
        # Not the script's own generator: what is drawn from it must not depend on how often a job was stopped.
        self._workers = None if generator is None else torch.Generator()
        self._seed = 0 if generator is None else generator.initial_seed()
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise GpqTrainError(
                "job.loader() has no option {}".format(", ".join(unknown)),
                "it has " + ", ".join(("generator", *OPTIONS)),
            )
        if options.pop("in_order", True) is False:
            session.notice("in_order=False: batches come in order all the same, so that each goes into its step")
        data, batches = check.recorder.sampler(dataset, sampler) if check.recorder else (dataset, sampler)
        try:
            self._data: Any = DataLoader(data, batch_sampler=batches, generator=self._workers, **options)
        except (ValueError, TypeError) as error:
            raise GpqTrainError("job.loader(): {}".format(" ".join(str(error).split()))) from None

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of an epoch at the base batch: what schedules are built from.

        A constant: replicas, accumulation, a change of the batch or a restart do not change it; schedulers advance in the
        same unit. A loop over the loader runs more often where steps accumulate.
        """
        return self.sampler.steps_per_epoch

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        sampler = self.sampler
        if self._session.looks_over():
            self._drop_look()
        epoch = self._session.pass_over_data(by_next=_is_called_by_next(sys._getframe(1)))
        over = sampler.cursor.consumed >= sampler.size
        if over and epoch is not None and sampler.cursor.epoch >= epoch:
            raise GpqTrainError(
                "a second loop over the loader in one epoch of job.epochs()",
                "one loop in each of job.epochs(2 * count); a DataLoader of its own for what is no training",
            )
        # A loop without job.epochs() begins the next epoch, also where it has left the last one early.
        if over or (self._left and epoch is None):
            sampler.seek(sampler.cursor.epoch + 1)
        self._left, self._look = False, None
        first = True
        self._session.boundary()
        self._session.renewed()
        self._seed_workers()
        batches = iter(self._data)
        while sampler.cursor.consumed < sampler.size:
            if self._session.renewed():
                del batches  # its workers end before others begin
                sampler.seek(*sampler.cursor)
                batches = iter(self._data)
            self._session.fetch()
            batch = next(batches)
            micro = sampler.received()
            self.counted = micro.step.counts[micro.place]
            if not self._session.enter(micro, first=first):
                continue
            abandoned, again = True, False  # the script breaks out of the loop, or fails in it
            try:
                yield batch
                abandoned = False
            finally:
                if abandoned and first and self._session.take_back(micro):
                    self._look = micro
                    sampler.seek(*sampler.cursor)
                else:
                    self._left = abandoned
                    again = self._session.leave_micro(micro, abandoned=abandoned)
                    if micro.last and not again:
                        sampler.consumed(micro.step)
            first = False
            if micro.last and sampler.cursor.consumed < sampler.size:
                self._session.boundary()

    def _drop_look(self) -> None:
        """The script has trained on the batch that it seemed to look at: it is used up, as any that a loop was left in."""
        look, self._look, self._left = self._look, None, True
        if look is not None and look.last:
            self.sampler.consumed(look.step)

    def _seed_workers(self) -> None:
        if self._workers is not None:
            epoch, consumed = self.sampler.cursor
            self._workers.manual_seed(stable_seed(self._seed, epoch, consumed, self.sampler.rank))


def _is_called_by_next(frame: Any) -> bool:
    """Is it next() that asks? A for loop asks for all of them, also through enumerate(), tqdm() and their like."""
    while frame is not None:
        code = frame.f_code
        passes_on = code.co_flags & inspect.CO_GENERATOR and "backward" not in code.co_names
        if not passes_on and code.co_name != "__next__":
            doing: str = dis.opname[code.co_code[frame.f_lasti]]
            return doing.startswith("CALL")
        frame = frame.f_back  # it only passes batches on: who asks that?
    return False


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
