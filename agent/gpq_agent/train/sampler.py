"""Which examples come next: one cursor over one order per epoch, the same for any number of replicas.

Every replica runs its own copy and they agree because they see the same orders at the same issued step. Refuses data
sets without a length: what cannot be counted cannot be visited exactly once.
"""

from bisect import bisect_right
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from .batches import FEWEST, Configuration, Step, ceil_div, next_total, shape_step
from .errors import GpqTrainError
from .order import Drawn, Order, hold_together, permutation
from .order import stable_seed as stable_seed

# A step is sampled for the gradient noise scale this often; the session tunes it to what sampling costs here.
SAMPLE_EVERY = 20
AHEAD = 4096  # examples of the order that are converted at once
EARLY_SAMPLES = 20  # so many first, one step in two, while the window is empty
# One replica splits the batch of a sampled step, and on a GPU that waits for its host such a step takes twice as long. With
# each EARLY_SAMPLES more it samples more rarely, at last so many times.
MOST_RARELY = 5
MOST_KEPT = 1 << 22  # indices of a script's own order that a checkpoint holds


class Cursor(NamedTuple):
    """Where the job is in the data: `consumed` examples of `epoch` are done."""

    epoch: int
    consumed: int


class Issued(NamedTuple):
    """One micro-batch handed to the data loader: its step, and its place in it, from 0."""

    step: Step
    place: int
    last: bool
    indices: List[int] = []  # examples that count, in order


class GlobalSampler:
    """Batch sampler of one replica: iterating yields the index lists of micro-batches until the epoch is used up.

    What has been issued (perhaps prefetched) and what has been consumed are counted apart; only the second is saved.
    """

    def __init__(
        self,
        size: int,
        configuration: Configuration,
        *,
        replicas: int,
        rank: int,
        seed: int,
        shuffle: bool,
        base: int = 0,
        most: int = 0,
        drop_last: bool = False,
        drawn: Optional[Drawn] = None,
        gather: Callable[[List[float]], List[List[float]]] = lambda values: [values],
        tell: Callable[[str], None] = lambda line: None,
    ):
        """`size`: examples of the data set; `base`: the batch of the learning rate, by default the configuration's;
        `most`: examples that fit a device at once, by default the configuration's; `drop_last`: an epoch ends with less
        than a base batch left; `drawn`: the script's own sampler, whose orders are held together by `gather`, a
        collective; `tell` says a line to the user. Raises GpqTrainError."""
        if size <= 0:
            raise GpqTrainError("the data set is empty", "job.loader() needs at least one example")
        self.examples = size
        self.seed = seed
        self.configuration = configuration
        self.sample_every = 0  # 0: never
        self._base = base or configuration.total
        self._most = most
        self._drop_last = drop_last
        self._drawn = drawn
        self._gather = gather
        self._tell = tell
        self._replicas = replicas
        self.rank = rank
        self._shuffle = shuffle
        self._cursor = Cursor(0, 0)
        self._issued: Deque[Issued] = deque()
        self._steps_issued = 0
        self._samples_issued = 0
        self._order: Tuple[int, Order] = (-1, Order(torch.empty(0)))
        self._kept: Tuple[int, Order] = self._order  # that of the checkpoint
        self._together = -1  # the epoch whose order all replicas are known to share
        self.steps_per_epoch = self._count_steps()

    @property
    def cursor(self) -> Cursor:
        return self._cursor

    def seek(self, epoch: int, consumed: int = 0) -> None:
        """Continue from here; what was issued and not consumed is forgotten."""
        self._cursor = Cursor(epoch, consumed)
        self._issued.clear()

    def configure(self, configuration: Configuration) -> None:
        """Takes effect with the next step to be issued; what is prefetched keeps its size."""
        self.configuration = configuration

    def keep_whole(self) -> None:
        """From the next step to be issued: no step is cut, whatever fits at once."""
        self._most = max(self._most, 1 << 60)

    def received(self) -> Issued:
        """What the batch just received is: batches arrive in the order in which they were issued."""
        return self._issued.popleft()

    def consumed(self, step: Step) -> None:
        """The optimiser step is done."""
        self._cursor = Cursor(step.epoch, step.start + step.total)

    @property
    def size(self) -> int:
        """Examples of the running epoch: where it ends, as far as can be told before a change of the batch."""
        length = self._length()
        if not self._drop_last:
            return length
        return length - (length - self._cursor.consumed) % self._base

    def order(self) -> torch.Tensor:
        """The order of the running epoch."""
        return self._now().indices

    def state_dict(self) -> Dict[str, Any]:
        epoch, consumed = self._cursor
        state: Dict[str, Any] = {"epoch": epoch, "consumed": consumed, "size": self.examples, "seed": self.seed}
        known = self._order if self._order[0] == epoch else self._kept
        if self._drawn is not None and consumed and known[0] == epoch:
            indices, ends, digest = known[1]
            # Redrawn it should be the same; should it not be, the epoch ends as it began.
            state["order"] = {
                "digest": digest,
                "indices": indices if len(indices) <= MOST_KEPT else None,
                "ends": None if ends is None else torch.tensor(ends),
            }
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Raises GpqTrainError when the data set, or the order of its sampler, is not that of the checkpoint."""
        if state["size"] != self.examples:
            raise GpqTrainError(
                "the data set has {} examples, the checkpoint was made with {}".format(self.examples, state["size"]),
                "restore the data set, or start a new job",
            )
        kept = state.get("order")
        if bool(kept) != (self._drawn is not None) and state["consumed"]:
            raise GpqTrainError(
                "the checkpoint is from the middle of an epoch {} a sampler".format("with" if kept else "without"),
                "continue with the sampler that the job began with, or start a new job",
            )
        self.seed = state["seed"]
        self._order = self._kept = (-1, Order(torch.empty(0)))
        self._together = -1
        if kept:
            indices = torch.empty(0) if kept["indices"] is None else kept["indices"]
            ends = None if kept["ends"] is None else kept["ends"].tolist()
            self._kept = (state["epoch"], Order(indices, ends, kept["digest"]))
        self.seek(state["epoch"], state["consumed"])

    def __iter__(self) -> Iterator[List[int]]:
        self._issued.clear()
        epoch, at = self._cursor
        order, ends, _ = self._now()
        self._hold_together()
        size = len(order)
        least = self._base if self._drop_last else 1
        ahead: List[int] = []  # a part of the order that starts at `begun`, as Python's own integers
        begun = at
        while size - at >= least:
            total = self._next_total(size, at, ends)
            most = max(self._most, self.configuration.atomic_batch)
            step = shape_step(
                epoch, at, size - at, self.configuration, self._replicas, self.rank, self._sample_now(),
                total=total, most=most,
            )  # fmt: skip
            if ends is not None and at + total < size:  # what a batch sampler yields is a whole step, whatever its size
                step = step._replace(full=True)
            self._samples_issued += step.sampled
            if at + step.total > begun + len(ahead):
                begun, ahead = at, order[at : at + max(step.total, AHEAD)].tolist()
            place = at - begun
            begin, stride = place + step.first, step.stride
            last = len(step.counts) - 1
            for index, count in enumerate(step.counts):
                indices = ahead[begin : begin + count * stride : stride]
                self._issued.append(Issued(step, index, index == last, indices))
                # An empty micro-batch still has to take part in the all-reduce: repeat examples, with weight zero.
                yield indices or ahead[place : place + min(FEWEST, most, step.total)]
                begin += count * stride
            at += step.total

    def _next_total(self, size: int, at: int, ends: Optional[List[int]]) -> int:
        if ends is not None:
            return ends[bisect_right(ends, at)] - at
        if self._drop_last:
            return min(self.configuration.total, size - at)
        return next_total(size, at, self.configuration, self._base)

    def _sample_now(self) -> bool:
        self._steps_issued += 1
        if not self.sample_every:
            return False
        return self._steps_issued % self._interval() == 0

    def sampled(self, number: int) -> None:
        """Go on as if so many steps had been sampled before."""
        self._samples_issued = number

    def _interval(self) -> int:
        """Steps from one sample to the next. By what was issued alone, never by time: a script that is run twice takes the same
        steps twice."""
        samples = self._samples_issued
        if samples < EARLY_SAMPLES:
            return 2
        if self._replicas > 1:
            return self.sample_every
        return self.sample_every * min(samples // EARLY_SAMPLES, MOST_RARELY)

    # -- orders --------------------------------------------------------------------------------------------------------

    def _now(self) -> Order:
        epoch, consumed = self._cursor
        if self._order[0] == epoch:
            return self._order[1]
        order = self._draw(epoch)
        kept = self._kept[1]
        if consumed and self._kept[0] == epoch and kept.digest != order.digest:
            assert self._drawn is not None
            if not len(kept.indices):
                raise GpqTrainError(
                    "the sampler {} yields another order of epoch {} than before the restart".format(
                        self._drawn.name, epoch
                    ),
                    "let it depend on set_epoch(epoch) or on the generators of torch, numpy or random only",
                )
            self._tell(
                "the sampler {} yields another order of epoch {} than before the restart: this epoch ends as it began; "
                "later ones are not those of an undisturbed run".format(self._drawn.name, epoch)
            )
            order = kept
        self._order = (epoch, order)
        return order

    def _draw(self, epoch: int) -> Order:
        if self._drawn is None:
            return Order(permutation(self.seed, epoch, self.examples, self._shuffle))
        order = self._drawn.draw(self.seed, epoch)
        if self._drop_last and len(order.indices) < self._base:
            raise GpqTrainError(
                "drop_last=True leaves nothing of epoch {}: the sampler {} yields {}, a batch is {}".format(
                    epoch, self._drawn.name, len(order.indices), self._base
                )
            )
        return order

    def _length(self) -> int:
        """Examples of the order of the running epoch; before it begins, those of the latest that is known."""
        epoch, consumed = self._cursor
        if self._drawn is None:
            return self.examples
        if consumed or self._order[0] == epoch:
            return len(self._now().indices)
        # Not drawn to be told: the epoch after the last one never comes, and a sampler may have side effects.
        return max(len(self._order[1].indices), self._base)

    def _hold_together(self) -> None:
        if self._drawn is not None and self._together != self._cursor.epoch:
            self._together = self._cursor.epoch
            hold_together(self._now(), self._gather, self._drawn.name, self._cursor.epoch)

    def _count_steps(self) -> int:
        """Optimiser steps of an epoch at the base batch, a constant. Draws epoch 0 if the sampler has no length."""
        length: Optional[int] = self.examples
        if self._drawn is not None:
            length = self._drawn.length()
            if length is None:
                order = self._now()
                length = len(order.indices if order.ends is None else order.ends)
            if self._drawn.batched:
                return length
        assert length is not None
        steps = length // self._base if self._drop_last else ceil_div(length, self._base)
        if steps == 0:
            raise GpqTrainError(
                "drop_last=True leaves nothing: an epoch has {} examples, a batch {}".format(length, self._base),
                "make the batch smaller, or leave drop_last out",
            )
        return steps
