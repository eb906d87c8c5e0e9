"""Proof that every epoch visits every example exactly once, across resizes and batch changes.

Each replica adds up the indices that it handed to the script and took a step on; at the end of an epoch, and before a
stop, the sums of all replicas are compared with what the order of the epoch says. A part that was lost to a crash and
done again from the last checkpoint was visited twice by somebody's count: such an epoch does not count as exact.
"""

from operator import mul
from typing import Any, Dict, List, Sequence

import torch

TOGETHER = 1024  # examples that are added up at once
WRAP = 1 << 52  # sums are kept below this, so that those of two thousand replicas fit 64 bits


class Ledger:
    """One per replica. `epochs` have ended, `exact` of them visited each example exactly once."""

    def __init__(self) -> None:
        self.epochs = 0
        self.exact = 0
        self._proven = 0  # examples of the running epoch's order, from its start, that are proven visited once
        self._begin = 0  # where the part that is counted now began
        self._held: List[int] = []  # of the step in hand
        self._stepped: List[int] = []  # of steps since, not added up yet
        self._sums = [0, 0, 0]  # number, sum, sum of squares

    def hand_out(self, indices: Sequence[int]) -> None:
        """The script was given these examples."""
        self._held.extend(indices)

    def begin_step(self) -> None:
        """A new step: what was handed out for one that the script left in the middle went into none."""
        self._held = []

    def step_done(self) -> None:
        """What was handed out since the last step has gone into one."""
        self._stepped += self._held
        self._held = []
        if len(self._stepped) >= TOGETHER:
            self._add_up()

    def _add_up(self) -> None:
        stepped, self._stepped = self._stepped, []
        for place, value in enumerate((len(stepped), sum(stepped), sum(map(mul, stepped, stepped)))):
            self._sums[place] = (self._sums[place] + value) % WRAP

    def counted(self) -> List[int]:
        """This replica's sums; those of all replicas, added up, go into `compare`."""
        self._add_up()
        return list(self._sums)

    def compare(self, totals: Sequence[int], order: torch.Tensor, end: int) -> None:
        """Compare the part of `order` (shape (examples,), int64) up to `end` with what all replicas counted."""
        part = order[self._begin : end].tolist()
        expected = [len(part), sum(part) % WRAP, sum(map(mul, part, part)) % WRAP]
        if self._begin == self._proven and [value % WRAP for value in totals] == expected:
            self._proven = end
        self._begin = end
        self._sums = [0, 0, 0]

    def close(self, size: int) -> None:
        """The epoch of `size` examples is over, compared to its end."""
        self.epochs += 1
        self.exact += int(self._proven == size)
        self._proven = self._begin = 0

    def resume(self, consumed: int) -> None:
        """Counting goes on at this place of the running epoch: that of the checkpoint."""
        self._begin = consumed
        self._held, self._stepped = [], []
        self._sums = [0, 0, 0]

    def state_dict(self) -> Dict[str, int]:
        return {"epochs": self.epochs, "exact": self.exact, "proven": self._proven}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.epochs, self.exact, self._proven = (int(state[key]) for key in ("epochs", "exact", "proven"))
