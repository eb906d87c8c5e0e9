"""Proves that every pass over the data visits every example exactly once, across resizes and batch
changes.

Each replica adds up the indices that it gave to the script and that went into a step. At the end of
a pass, and before a stop, the sums of all replicas are compared with the order of the pass. If a
crash loses part of a pass, that part is visited twice by some count, so such a pass is not exact.
"""

from operator import mul
from typing import Any, Dict, List, Sequence

import torch

TOGETHER = 1024  # examples to add up at once
WRAP = 1 << 52  # sums stay below this, so that those of two thousand replicas fit in 64 bits


class Ledger:
    """One per replica. `passes` have ended, and `exact` of them visited each example exactly
    once."""

    def __init__(self) -> None:
        self.passes = 0
        self.exact = 0
        # Examples at the start of the running pass that are proven to be visited once.
        self._proven_end = 0
        self._part_start = 0  # start of the part that is being counted
        self._pending_indices: List[int] = []  # not added up yet
        self._sums = [0, 0, 0]  # number, sum, sum of squares

    def record_step(self, indices: Sequence[int]) -> None:
        """A step trained on these examples."""
        self._pending_indices += indices
        if len(self._pending_indices) >= TOGETHER:
            self._add_up()

    def _add_up(self) -> None:
        indices, self._pending_indices = self._pending_indices, []
        moments = (len(indices), sum(indices), sum(map(mul, indices, indices)))
        for place, value in enumerate(moments):
            self._sums[place] = (self._sums[place] + value) % WRAP

    def counted(self) -> List[int]:
        """This replica's sums. The sums over all replicas go into `compare`."""
        self._add_up()
        return list(self._sums)

    def compare(self, totals: Sequence[int], order: torch.Tensor, end: int) -> None:
        """Compare the part of `order` up to `end` with the count of all replicas.

        `order` has shape (examples,), int64.
        """
        part = order[self._part_start : end]
        # Sums of 64 bits wrap, and WRAP divides what they wrap at.
        moments = (len(part), int(part.sum()), int(torch.dot(part, part)))
        expected_sums = [value % WRAP for value in moments]
        sums = [value % WRAP for value in totals]
        if self._part_start == self._proven_end and sums == expected_sums:
            self._proven_end = end
        self._part_start = end
        self._sums = [0, 0, 0]

    def close(self, size: int) -> None:
        """The pass is over after `size` examples, and compared to its end."""
        self.passes += 1
        self.exact += int(self._proven_end == size)
        self._proven_end = self._part_start = 0

    def resume(self, consumed: int) -> None:
        """Continue to count at this place of the running pass, from the checkpoint."""
        self._part_start = consumed
        self._pending_indices = []
        self._sums = [0, 0, 0]

    def state_dict(self) -> Dict[str, int]:
        return {"epochs": self.passes, "exact": self.exact, "proven": self._proven_end}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        counts = [int(state[key]) for key in ("epochs", "exact", "proven")]
        self.passes, self.exact, self._proven_end = counts
