"""Gradient noise scale: smoothed statistics of the gradient of one example, as the probe measures
them."""

import math
from typing import Any, Dict, Optional

WINDOW = 100  # in base batches: after this many examples a weight in the averages has fallen to 1/e
TINY = 1e-30


class NoiseScale:
    """Averages of the two gradient statistics of one example: sqr = |E g|^2 and var = tr(Cov g).

    From K independent micro-gradients of b examples each, with L the mean of their squared norms
    and A the squared norm of their mean (McCandlish et al. 2018, appendix A, and Pollux,
    OSDI'21, section 3.1):

        tr = (L - A) b K / (K - 1)        g2 = (K A - L) / (K - 1)        noise scale = tr / g2

    tr and g2 are averaged separately, over a window counted in examples, and divided last. An epoch
    draws its examples without replacement, which biases g2 by exactly -tr / N: `sqr` has that
    corrected.
    """

    def __init__(self, base_batch: int, dataset_size: int, *, window: Optional[int] = None) -> None:
        """`base_batch`: examples of the user's own batch. `dataset_size`: N, 0 if unknown.
        `window`: in examples."""
        self._base = base_batch
        self._size = dataset_size
        self._window = window or WINDOW * base_batch
        self.preconditioned = False  # were gradients weighed by Adam's preconditioner?
        self._forget()

    def _forget(self) -> None:
        self._weight = 0.0  # examples that still count: the debiasing weight of both sums
        self._trace = self._square = 0.0

    def observe(
        self,
        local_sqr: float,
        mean_sqr: float,
        *,
        batch: float,
        count: float,
        preconditioned: bool = False,
        steps: int = 1,
    ) -> None:
        """Add the averages of L and A over `steps` steps, from `count` micro-gradients of `batch`
        examples each. Values that are not finite change nothing. A change of preconditioning
        replaces all averages, because it changes the unit."""
        if not (math.isfinite(local_sqr) and math.isfinite(mean_sqr)):
            return
        if preconditioned != self.preconditioned:
            self._forget()
            self.preconditioned = preconditioned
        trace = (local_sqr - mean_sqr) * batch * count / (count - 1)
        square = (count * mean_sqr - local_sqr) / (count - 1)
        examples = batch * count * steps
        decay = math.exp(-examples / self._window)
        self._weight = self._weight * decay + examples
        self._trace = self._trace * decay + trace * examples
        self._square = self._square * decay + square * examples

    @property
    def var(self) -> float:
        """tr(Cov g) of one example, never negative. 0.0 while nothing is known."""
        return max(self._trace / self._weight, 0.0) if self._weight else 0.0

    @property
    def sqr(self) -> float:
        """|E g|^2, positive. 0.0 while nothing is known.

        n examples tell a squared gradient from noise only down to var / n. When the estimate is not
        above that, it is the answer, and `capped` says so.
        """
        if not self._weight:
            return 0.0
        return max(self._corrected(), self._resolution(), TINY)

    @property
    def samples(self) -> int:
        """Examples in the window."""
        return int(self._weight)

    @property
    def noise_scale(self) -> float:
        """var / sqr, examples. A lower bound when `capped`, 0.0 while nothing is known."""
        return self.var / self.sqr if self._weight else 0.0

    @property
    def capped(self) -> bool:
        """Whether the noise scale is a lower bound: the squared gradient drowned in the noise."""
        return self._weight > 0 and self._corrected() <= self._resolution()

    def gain(self, total_batch: int) -> float:
        """Progress of a step of `total_batch` examples, in steps of the base batch. As in AdaScale
        and Pollux (section 2.2). Between 1 and total_batch / base_batch for batches from the base
        upwards, and 1.0 while nothing is known."""
        if not self._weight or total_batch == self._base:
            return 1.0
        ratio = total_batch / self._base
        gain = (self.var / self._base + self.sqr) / (self.var / total_batch + self.sqr)
        return min(max(gain, min(1.0, ratio)), max(1.0, ratio))

    def state_dict(self) -> Dict[str, Any]:
        """Sums with their debiasing weight: plain numbers."""
        return {
            "weight": self._weight,
            "trace": self._trace,
            "square": self._square,
            "preconditioned": self.preconditioned,
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._weight, self._trace, self._square = state["weight"], state["trace"], state["square"]
        self.preconditioned = state["preconditioned"]

    def _corrected(self) -> float:
        square = self._square / self._weight
        return square + self._trace / self._weight / self._size if self._size > 0 else square

    def _resolution(self) -> float:
        return self.var / self._weight
