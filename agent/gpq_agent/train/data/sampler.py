"""Says which examples come next: one cursor over one order per epoch, for any number of replicas.

In this room an epoch is one pass over the data. Every replica runs its own copy. The copies agree
because they see the same orders at the same issued step. Data sets without a length are refused,
because their examples cannot be visited exactly once.
"""

from bisect import bisect_right
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch

from gpq_agent.train.data.batches import Configuration, Step, ceil_div, next_total, shape_step
from gpq_agent.train.data.order import Order, OwnOrder, hold_together, permutation
from gpq_agent.train.errors import GpqTrainError

MOST_KEPT = 1 << 22  # most indices of a script's own order that a checkpoint holds
NO_ORDER = (-1, Order(torch.empty(0)))

# How often a step is sampled for the gradient noise scale. The engine adapts it to the cost of
# sampling here.
SAMPLE_EVERY = 20
AHEAD = 4096  # examples of the order to convert at once
EARLY_SAMPLES = 20  # this many at first, one step in two, while the window is empty
# One replica splits the batch of a sampled step. On a GPU that waits for its host, such a step
# takes twice as long. After every EARLY_SAMPLES it samples less often, in the end this many times
# less.
MOST_RARELY = 5


class Cursor(NamedTuple):
    """Where the job is in the data: `consumed` examples of `epoch` are done."""

    epoch: int
    consumed: int


class EpochOrders:
    """The orders of one job.

    examples: in the data set. own: the script's own sampler.
    least: examples in the last step of an epoch: the base batch if a smaller rest is dropped.
    """

    def __init__(
        self,
        examples: int,
        own: Optional[OwnOrder],
        seed: int,
        *,
        shuffle: bool,
        least: int,
        gather: Callable[[List[float]], List[List[float]]],
        tell: Callable[[str], None],
    ) -> None:
        self.examples = examples
        self.own = own
        self.seed = seed
        self._shuffle = shuffle
        self._least = least
        self._gather = gather
        self._tell = tell
        self._newest: Tuple[int, Order] = NO_ORDER
        self._saved: Tuple[int, Order] = NO_ORDER  # from the checkpoint
        self._shared_epoch = -1  # all replicas are known to share the order of this epoch

    def of(self, cursor: Cursor) -> Order:
        """The order of the running epoch. Raises GpqTrainError."""
        epoch, consumed = cursor
        if self._newest[0] == epoch:
            return self._newest[1]
        if self.own is None:
            order = Order(permutation(self.seed, epoch, self.examples, self._shuffle))
        else:
            order = self.own.draw(self.seed, epoch)
            if len(order.indices) < self._least:
                raise GpqTrainError(
                    "drop_last=True leaves nothing of epoch {}: the sampler {} yields {} examples "
                    "and a batch has {}".format(
                        epoch, self.own.name, len(order.indices), self._least
                    )
                )
        saved = self._saved[1]
        if consumed and self._saved[0] == epoch and saved.digest != order.digest:
            assert self.own is not None
            if not len(saved.indices):
                raise GpqTrainError(
                    "the sampler {} yields a different order for epoch {} than before the "
                    "restart".format(self.own.name, epoch),
                    "make it depend only on set_epoch(epoch) or the generators of torch, numpy "
                    "and random",
                )
            self._tell(
                "the sampler {} yields a different order for epoch {} than before the restart. "
                "gpq finishes this epoch in the old order, but later epochs differ from an "
                "uninterrupted run".format(self.own.name, epoch)
            )
            order = saved
        self._newest = (epoch, order)
        return order

    def length(self, cursor: Cursor, base: int) -> int:
        """Examples in the running epoch, or in the newest one before it begins."""
        epoch, consumed = cursor
        if self.own is None:
            return self.examples
        if consumed or self._newest[0] == epoch:
            return len(self.of(cursor).indices)
        # Not drawn just to be counted: the epoch after the last one never starts, and a sampler may
        # have side effects.
        return max(len(self._newest[1].indices), base)

    def steps(self, cursor: Cursor, base: int) -> int:
        """Optimizer steps of an epoch at the base batch size, a constant.

        Draws epoch 0 if the sampler has no length. Raises GpqTrainError if there are none.
        """
        length: Optional[int] = self.examples
        if self.own is not None:
            length = self.own.length()
            if length is None:
                order = self.of(cursor)
                length = len(order.indices if order.ends is None else order.ends)
            if self.own.batched:
                return length
        assert length is not None
        steps = self.base_steps(length, base)
        if steps == 0:
            words = "drop_last=True leaves nothing: an epoch has {} examples and a batch {}"
            hint = "use a smaller batch, or leave out drop_last"
            raise GpqTrainError(words.format(length, base), hint)
        return steps

    def base_steps(self, length: int, base: int) -> int:
        """Steps of `base` examples in an order of this length."""
        return length // base if self._least > 1 else ceil_div(length, base)

    def hold_together(self, cursor: Cursor) -> None:
        """Do all replicas have the same order? Checked once per epoch. Collective if the script has
        its own sampler. Raises GpqTrainError."""
        if self.own is not None and self._shared_epoch != cursor.epoch:
            self._shared_epoch = cursor.epoch
            hold_together(self.of(cursor), self._gather, self.own.name, cursor.epoch)

    def state_dict(self, cursor: Cursor) -> Dict[str, Any]:
        state: Dict[str, Any] = {"size": self.examples, "seed": self.seed}
        epoch, consumed = cursor
        dated_order = self._newest if self._newest[0] == epoch else self._saved
        if self.own is not None and consumed and dated_order[0] == epoch:
            indices, ends, digest = dated_order[1]
            # A second draw should give the same order. If not, the epoch ends in its old order.
            state["order"] = {
                "digest": digest,
                "indices": indices if len(indices) <= MOST_KEPT else None,
                "ends": None if ends is None else torch.tensor(ends),
            }
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Raises GpqTrainError if the data set or its order differs from the checkpoint."""
        if state["size"] != self.examples:
            text = "the data set has {} examples, but it had {} when the checkpoint was written"
            fix = "restore the data set, or submit a new job"
            raise GpqTrainError(text.format(self.examples, state["size"]), fix)
        order = state.get("order")
        if bool(order) != (self.own is not None) and state["consumed"]:
            words = "the checkpoint was written in the middle of an epoch {} a sampler"
            hint = "use the sampler that the job started with, or submit a new job"
            raise GpqTrainError(words.format("with" if order else "without"), hint)
        self.seed = state["seed"]
        self._newest = self._saved = NO_ORDER
        self._shared_epoch = -1
        if order:
            indices = torch.empty(0) if order["indices"] is None else order["indices"]
            ends = None if order["ends"] is None else order["ends"].tolist()
            self._saved = (state["epoch"], Order(indices, ends, order["digest"]))


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
        self.group = 0  # of batch norm, as in Limits. Set before the first step is issued
        self.rank = rank
        self._base = base or configuration.total
        self._most = most
        self._drop_last = drop_last
        self._replicas = replicas
        least = self._base if drop_last else 1
        self._orders = EpochOrders(
            size, own_order, seed, shuffle=shuffle, least=least, gather=gather, tell=tell
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
        # How often a step is sampled depends only on what was issued, never on time, so a script
        # that runs twice takes the same steps.
        every, samples = self.sample_every, self._samples_issued
        if every and samples < EARLY_SAMPLES:
            every = 2
        elif self._replicas == 1:
            every *= min(samples // EARLY_SAMPLES, MOST_RARELY)
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
            every > 0 and self._steps_issued % every == 0,
            most=self._most,
            group=self.group,
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
