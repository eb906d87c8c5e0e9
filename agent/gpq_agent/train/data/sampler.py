"""Says which examples come next: one cursor over one order per epoch, for any number of replicas.

Every replica runs its own copy. The copies agree because they see the same orders at the same
issued step. Data sets without a length are refused, because their examples cannot be visited
exactly once.
"""

from bisect import bisect_right
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Sequence

import torch

from gpq_agent.train.data.batches import Configuration, Step, next_total, shape_step
from gpq_agent.train.data.epoch_orders import Cursor, EpochOrders
from gpq_agent.train.data.order import Order, OwnOrder
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


class GlobalSampler:
    """The steps of one replica, in order: `next_step`. Iterating yields what to fetch for each of
    their micro-batches, as a batch sampler does, perhaps ahead.

    Both end with the pass over the data. It counts separately what was issued and what was
    consumed, and saves only the second. seeks: how often the place of the next step was set. What
    was fetched before is of no use then. base_steps: optimizer steps of the running pass at the
    base batch size, which only an own sampler can change.
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
        self.seeks = 0
        self._cursor = Cursor(0, 0)
        self._order: Optional[Order] = None  # of the running epoch, once a step of it was issued
        self._next = 0  # the place in the epoch where the next step to issue starts
        self._issued: Deque[Step] = deque()  # but not returned by `next_step` yet
        self._unfetched: Deque[Step] = deque()  # issued, but nobody has asked what to fetch for it
        # A part of the order that starts at `ahead_start`, as integers of Python.
        self._ahead: List[int] = []
        self._ahead_start = 0
        self._steps_issued = 0
        self._samples_issued = 0
        self.base_steps = self.steps_per_epoch = self._orders.steps(self._cursor, self._base)

    @property
    def cursor(self) -> Cursor:
        return self._cursor

    def seek(self, epoch: int, consumed: int = 0) -> None:
        """Continue from here. Forgets what was issued but not consumed."""
        self._cursor = Cursor(epoch, consumed)
        self._order, self._next = None, consumed
        self._ahead, self._ahead_start = [], consumed
        self._issued.clear()
        self._unfetched.clear()
        self.seeks += 1

    def configure(self, configuration: Configuration) -> None:
        """Takes effect with the next issued step. Prefetched steps keep their size."""
        self.configuration = configuration

    def keep_whole(self) -> None:
        """From the next issued step no step is cut, whatever fits at once."""
        self._most = max(self._most, 1 << 60)

    def next_step(self) -> Optional[Step]:
        """The next one, or None if all steps of the epoch were issued. Collective for the first
        step of an epoch if the script has its own sampler. Raises GpqTrainError."""
        if not self._issued:
            self._issue()
        return self._issued.popleft() if self._issued else None

    def commit(self, step: Step) -> bool:
        """The optimizer step is done. Returns False if its pass was over by then."""
        if step.epoch != self._cursor.epoch:
            return False
        self._cursor = Cursor(step.epoch, step.start + step.total)
        return True

    def next_pass(self) -> None:
        """Continue with the first step of the next pass."""
        self.seek(self._cursor.epoch + 1)

    @property
    def size(self) -> int:
        """Examples in the running epoch: where it ends unless the batch size changes."""
        if self._order is None:
            length = self._orders.length(self._cursor, self._base)
        else:
            length = len(self._order.indices)
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

    def __iter__(self) -> Iterator[Sequence[int]]:
        while self._unfetched or self._issue():
            for micro in self._unfetched.popleft().micros:
                yield micro.batch

    def _issue(self) -> bool:
        """Shape the next step of the epoch. Returns False if there is none."""
        epoch, start = self._cursor.epoch, self._next
        if self._order is None:
            self._order = self._orders.of(self._cursor)
            self._orders.hold_together(self._cursor)
            if self._orders.own is not None and not self._orders.own.batched:
                self.base_steps = self._orders.base_steps(len(self._order.indices), self._base)
        order, ends, _ = self._order
        size = len(order)
        if size - start < (self._base if self._drop_last else 1):
            return False
        if ends is not None:
            total = ends[bisect_right(ends, start)] - start
        elif self._drop_last:
            total = min(self.configuration.total, size - start)
        else:
            total = next_total(size, start, self.configuration, self._base)
        self._steps_issued += 1
        if start + total > self._ahead_start + len(self._ahead):
            self._ahead_start = start
            self._ahead = order[start : start + max(total, AHEAD)].tolist()
        place = start - self._ahead_start
        step = shape_step(
            epoch,
            start,
            self._ahead[place : place + total],
            self.configuration,
            self._replicas,
            self.rank,
            bool(self.sample_every) and self._steps_issued % self._interval() == 0,
            most=self._most,
        )
        # A batch of a batch sampler is a whole step, whatever its size.
        if ends is not None and start + total < size:
            step = step._replace(full=True)
        self._samples_issued += step.sampled
        self._next = start + total
        self._issued.append(step)
        self._unfetched.append(step)
        return True

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
