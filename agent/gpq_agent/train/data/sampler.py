"""Says which examples come next: one cursor over one order per epoch, for any number of replicas.

Every replica runs its own copy. The copies agree because they see the same orders at the same
issued step. Data sets without a length are refused, because their examples cannot be visited
exactly once.
"""

from bisect import bisect_right
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional

import torch

from gpq_agent.train.data.batches import (
    FEWEST,
    Configuration,
    Step,
    next_total,
    shape_step,
)
from gpq_agent.train.data.epoch_orders import Cursor, EpochOrders
from gpq_agent.train.data.order import OwnOrder
from gpq_agent.train.errors import GpqTrainError

# How often a step is sampled for the gradient noise scale. The engine adapts it to the cost of
# sampling here.
SAMPLE_EVERY = 20
AHEAD = 4096  # examples of the order to convert at once
EARLY_SAMPLES = 20  # this many at first, one step in two, while the window is empty
# One replica splits the batch of a sampled step. On a GPU that waits for its host, such a step
# takes twice as long. After every EARLY_SAMPLES it samples less often, in the end this many times
# less.
MOST_RARELY = 5


class MicroBatch(NamedTuple):
    """One micro-batch for the data loader: its step, and its place in the step from 0."""

    step: Step
    place: int
    last: bool
    indices: List[int] = []  # examples that count, in order


class GlobalSampler:
    """Batch sampler of one replica. Iterating yields the index lists of micro-batches.

    It ends when the epoch is used up. It counts separately what was issued (perhaps prefetched) and
    what was consumed, and saves only the second.
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
        own_order: Optional[OwnOrder] = None,
        gather: Callable[[List[float]], List[List[float]]] = lambda values: [values],
        tell: Callable[[str], None] = lambda line: None,
    ):
        """`size`: examples in the data set. Raises GpqTrainError.

        base: the batch size of the learning rate, by default the configuration's.
        most: examples that fit on a device at once, by default the configuration's.
        drop_last: an epoch ends when less than a base batch is left.
        own_order: the script's own sampler. `gather`, a collective, compares its orders.
        tell: prints a line to the user.
        """
        if size <= 0:
            raise GpqTrainError("the data set is empty", "job.loader() needs at least one example")
        self.configuration = configuration
        self.sample_every = 0  # 0: never
        self.rank = rank
        self._base = base or configuration.total
        self._most = most
        self._drop_last = drop_last
        self._replicas = replicas
        self._orders = EpochOrders(
            size,
            own_order,
            seed,
            shuffle=shuffle,
            least=self._base if drop_last else 1,
            gather=gather,
            tell=tell,
        )
        self._cursor = Cursor(0, 0)
        self._queue: Deque[MicroBatch] = deque()
        self._steps_issued = 0
        self._samples_issued = 0
        self.steps_per_epoch = self._orders.steps(self._cursor, self._base)

    @property
    def cursor(self) -> Cursor:
        return self._cursor

    def seek(self, epoch: int, consumed: int = 0) -> None:
        """Continue from here. Forgets what was issued but not consumed."""
        self._cursor = Cursor(epoch, consumed)
        self._queue.clear()

    def configure(self, configuration: Configuration) -> None:
        """Takes effect with the next issued step. Prefetched steps keep their size."""
        self.configuration = configuration

    def keep_whole(self) -> None:
        """From the next issued step no step is cut, whatever fits at once."""
        self._most = max(self._most, 1 << 60)

    def received(self) -> MicroBatch:
        """The micro-batch that just arrived. Batches arrive in the order of issue."""
        return self._queue.popleft()

    def consumed(self, step: Step) -> None:
        """The optimizer step is done."""
        self._cursor = Cursor(step.epoch, step.start + step.total)

    @property
    def size(self) -> int:
        """Examples in the running epoch: where it ends unless the batch size changes."""
        length = self._orders.length(self._cursor, self._base)
        if not self._drop_last:
            return length
        return length - (length - self._cursor.consumed) % self._base

    @property
    def is_over(self) -> bool:
        """Is the running epoch over?"""
        return self._cursor.consumed >= self.size

    def order(self) -> torch.Tensor:
        """The order of the running epoch."""
        return self._orders.of(self._cursor).indices

    def state_dict(self) -> Dict[str, Any]:
        epoch, consumed = self._cursor
        state = self._orders.state_dict(self._cursor)
        return {"epoch": epoch, "consumed": consumed, **state}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Raises GpqTrainError if the data set or its order differs from the checkpoint."""
        self._orders.load_state_dict(state)
        self.seek(state["epoch"], state["consumed"])

    def __iter__(self) -> Iterator[List[int]]:
        self._queue.clear()
        epoch, position = self._cursor
        order, ends, _ = self._orders.of(self._cursor)
        self._orders.hold_together(self._cursor)
        size = len(order)
        # A part of the order that starts at `ahead_start`, as integers of Python.
        ahead: List[int] = []
        ahead_start = position
        least = self._base if self._drop_last else 1
        while size - position >= least:
            total = self._next_total(size, position, ends)
            most = max(self._most, self.configuration.atomic_batch)
            step = shape_step(
                epoch, position, size - position, self.configuration, self._replicas, self.rank,
                self._sample_now(), total=total, most=most,
            )  # fmt: skip
            # A batch of a batch sampler is a whole step, whatever its size.
            if ends is not None and position + total < size:
                step = step._replace(full=True)
            self._samples_issued += step.sampled
            if position + step.total > ahead_start + len(ahead):
                ahead_start = position
                ahead = order[position : position + max(step.total, AHEAD)].tolist()
            place = position - ahead_start
            begin, stride = place + step.first, step.stride
            last = len(step.counts) - 1
            for index, count in enumerate(step.counts):
                indices = ahead[begin : begin + count * stride : stride]
                self._queue.append(MicroBatch(step, index, index == last, indices))
                # An empty micro-batch still takes part in the all-reduce: repeat examples, with
                # weight zero.
                yield indices or ahead[place : place + min(FEWEST, most, step.total)]
                begin += count * stride
            position += step.total

    def _next_total(self, size: int, position: int, ends: Optional[List[int]]) -> int:
        if ends is not None:
            return ends[bisect_right(ends, position)] - position
        if self._drop_last:
            return min(self.configuration.total, size - position)
        return next_total(size, position, self.configuration, self._base)

    def _sample_now(self) -> bool:
        self._steps_issued += 1
        if not self.sample_every:
            return False
        return self._steps_issued % self._interval() == 0

    def sampled(self, number: int) -> None:
        """Continue as if this many steps had been sampled."""
        self._samples_issued = number

    def _interval(self) -> int:
        """Steps from one sample to the next.

        Depends only on what was issued, never on time, so a script that runs twice takes the same
        steps.
        """
        samples = self._samples_issued
        if samples < EARLY_SAMPLES:
            return 2
        if self._replicas > 1:
            return self.sample_every
        return self.sample_every * min(samples // EARLY_SAMPLES, MOST_RARELY)
