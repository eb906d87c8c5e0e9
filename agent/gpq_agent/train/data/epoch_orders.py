"""The order of each epoch: drawn, or taken from the checkpoint if it resumes in that epoch. In this
room an epoch is one pass over the data."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from gpq_agent.train.data.batches import ceil_div
from gpq_agent.train.data.order import Order, OwnOrder, hold_together, permutation
from gpq_agent.train.errors import GpqTrainError

MOST_KEPT = 1 << 22  # most indices of a script's own order that a checkpoint holds
NO_ORDER = (-1, Order(torch.empty(0)))


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
        order = self._draw(epoch)
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
            raise GpqTrainError(
                "drop_last=True leaves nothing: an epoch has {} examples and a batch {}".format(
                    length, base
                ),
                "use a smaller batch, or leave out drop_last",
            )
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
            raise GpqTrainError(
                "the data set has {} examples, but it had {} when the checkpoint was "
                "written".format(self.examples, state["size"]),
                "restore the data set, or submit a new job",
            )
        order = state.get("order")
        if bool(order) != (self.own is not None) and state["consumed"]:
            raise GpqTrainError(
                "the checkpoint was written in the middle of an epoch {} a sampler".format(
                    "with" if order else "without"
                ),
                "use the sampler that the job started with, or submit a new job",
            )
        self.seed = state["seed"]
        self._newest = self._saved = NO_ORDER
        self._shared_epoch = -1
        if order:
            indices = torch.empty(0) if order["indices"] is None else order["indices"]
            ends = None if order["ends"] is None else order["ends"].tolist()
            self._saved = (state["epoch"], Order(indices, ends, order["digest"]))

    def _draw(self, epoch: int) -> Order:
        if self.own is None:
            return Order(permutation(self.seed, epoch, self.examples, self._shuffle))
        order = self.own.draw(self.seed, epoch)
        if len(order.indices) < self._least:
            raise GpqTrainError(
                "drop_last=True leaves nothing of epoch {}: the sampler {} yields {} examples "
                "and a batch has {}".format(epoch, self.own.name, len(order.indices), self._least)
            )
        return order
