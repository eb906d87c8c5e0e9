"""Removes what luck and low precision add to a training while it is checked."""

from typing import Any, Sequence

from gpq_agent import wire
from gpq_agent.train.internals import is_compiled

from .determinism import Dropout, plain_attention
from .full_precision import FullPrecision
from .keyed import Keyed


class Conditions:
    """Random numbers belong to examples, and attention and matrix products are exact if
    possible."""

    def __init__(self, order: wire.CheckOrder) -> None:
        self._keyed = Keyed()
        self._dropout = Dropout()
        self._precision = FullPrecision(order.exact)
        plain_attention()

    @property
    def epsilon(self) -> float:
        """The precision of the training."""
        return self._precision.epsilon

    def begin_batch(self, epoch: int, start: int, rows: Sequence[Any]) -> None:
        """`rows`: indices of its examples, in their order. `start`: the start of its step."""
        self.renew()
        self._dropout.off = is_compiled()
        self._keyed.begin(epoch, start, rows)

    def end_batch(self) -> bool:
        """Was anything in it drawn at random?"""
        return self._keyed.end()

    def renew(self) -> None:
        """A script may set the precision in any line."""
        self._precision.renew()

    def give_up_precision(self) -> None:
        """The script's own weights are in half precision."""
        self._precision.give_up()
