"""How far rounding alone takes a tensor: the reference, run again with its batches in other orders.

The criterion. d is how far a tensor is from the reference's, n how far rounding alone takes it (the
reference run again, with the examples of each batch in three other orders: the furthest), s its
norm, m the distance that it has moved since the start. It differs where d is above both

    NOISE * n         rounding is not the same for all tensors: the gradient of an attention's key
                      bias is zero but for rounding, and Adam makes whole steps of it. n shows that.
                      By luck one tensor may come out too well in all, so at least the run's typical
                      n / m is taken.
    the lesser of SIZE * s and MOVED * m, but not less than ULPS of its type
                      1e-4 of the norm is what the promise says. In a few steps with a small rate a
                      tensor moves less than that, and a gradient that is wrong by 14% would hide in
                      it: so also 1e-3 of the way it went. A rate that is 1% off is 1e-2 of the way.
                      Below some units in the last place nothing can be told of weights; so
                      gradients, as the optimizer finds them, and the rates that it uses are
                      compared by themselves.

Where another order alone takes most tensors far (MIXED), the examples of a batch are mixed with
each other, or random numbers fall on them by their place: that is no rounding, and n counts for
nothing.

In half precision a tensor differs where d is above COARSE machine epsilons of s, and above
COARSE * n: right runs lay at a third of that. A tensor that another order alone takes as far is
rounding, and may differ by NOISE * n.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import median

from gpq.check.judgement.sketches import apart, epsilon, norm
from gpq.check.records import GRADIENT, Run, Sketch, Step

SIZE, MOVED, NOISE = 1e-4, 1e-3, 10.0
ULPS = 16
COARSE = 3
MIXED = 0.05  # of the way
BFLOAT16 = 2.0**-7  # its machine epsilon


class Rounding:
    """Of the reference. `coarse`: the relative difference that half precision makes, 0 in full
    precision; `mixed`: does another order change by more than rounding what is trained? `ordered`:
    the first step, where it does so there: no part of a batch is as the whole."""

    def __init__(self, reference: Run, reorderings: Sequence[Run], exact: bool) -> None:
        """`reorderings`: the reference with its batches in other orders; `exact`: in full
        precision."""
        self._reference, self._reorderings = reference, reorderings
        self.coarse = COARSE * _half_epsilon(reference, exact)
        shares = {number: self._shares(number) for number in sorted(reference.steps)}
        self._typical = {number: _typical(share.values()) for number, share in shares.items()}
        self.mixed = not self.coarse and max(self._typical.values(), default=0.0) > MIXED
        self.ordered = None if self.coarse else _first_reordered(shares)

    def allowance(self, name: str, expected: Sketch, number: int) -> float:
        """How far from `expected`, the reference's in step `number`, a right run may be."""
        size, noise = norm(expected), self._noise(name, expected, number)
        if not self.coarse:
            way = min(SIZE * size, MOVED * self._moved(name, expected))
            return max(way, ULPS * epsilon(expected) * size, noise)
        if self.is_steady(name, expected, number, 0.0):
            return max(self.coarse * size, COARSE / NOISE * noise)
        return noise

    def is_steady(self, name: str, expected: Sketch, number: int, share: float) -> bool:
        """Is it by no more than this `share` rounding? In half precision: in the first step by no
        more than that allows."""
        if self.coarse:
            number = sorted(self._reference.steps)[:2][-1]
            expected = self._reference.steps[number].tensors.get(name, expected)
            share = NOISE * self.coarse
        return self._noise(name, expected, number) <= share * norm(expected)

    def steps(self, number: int) -> list[Step]:
        """That step, in the other orders."""
        return [run.steps[number] for run in self._reorderings if number in run.steps]

    def furthest_number(self, number: int, name: str, expected: float | None) -> float | None:
        """Of the runs in another order, what is furthest from the reference's."""
        values = [step.numbers.get(name) for step in self.steps(number)]
        finite_values = [value for value in values if value is not None]
        if expected is not None and finite_values:
            return max(finite_values, key=lambda value: abs(value - expected))
        if values:
            return None
        return expected

    def _noise(self, name: str, expected: Sketch, number: int) -> float:
        if self.mixed:
            return 0.0
        furthest = max(
            (apart(expected, sketch) for sketch in self._sketches(name, number)), default=0.0
        )
        if self.coarse:
            return NOISE * furthest
        return NOISE * max(furthest, self._typical.get(number, 0.0) * self._moved(name, expected))

    def _sketches(self, name: str, number: int) -> list[Sketch]:
        return [step.tensors[name] for step in self.steps(number) if name in step.tensors]

    def _moved(self, name: str, expected: Sketch) -> float:
        start = self._reference.steps[min(self._reference.steps)].tensors.get(name)
        if start is None:
            return norm(expected)
        return apart(start, expected)

    def _shares(self, number: int) -> dict[str, float]:
        """Of each tensor that moved: how far another order takes it at most, as a part of the way
        it went."""
        shares: dict[str, float] = {}
        for name, expected in self._reference.steps[number].tensors.items():
            way = self._moved(name, expected)
            sketches = self._sketches(name, number)
            if sketches and way > 0:
                furthest = max(apart(expected, sketch) for sketch in sketches)
                shares[name] = min(1.0, furthest / way)
        return shares


def _typical(shares: Collection[float]) -> float:
    if shares:
        return median(shares)
    return 0.0


def _first_reordered(shares: Mapping[int, Mapping[str, float]]) -> int | None:
    """The first step with gradients, when weights are still the same, if another order changes
    most of them. `shares`: by step and tensor."""
    for number, share_by_name in shares.items():
        gradients = [share for name, share in share_by_name.items() if name.startswith(GRADIENT)]
        if gradients:
            if median(gradients) > MOVED:
                return number
            return None
    return None


def _half_epsilon(run: Run, exact: bool) -> float:
    """Machine epsilon of the coarsest half type, 0 where all is in full precision."""
    half = max(run.epsilon, _weight_epsilon(run), 0.0)
    if half or exact:
        return half
    return BFLOAT16


def _weight_epsilon(run: Run) -> float:
    """Of weights in half precision, 0 where they are not."""
    if run.facts is None or not run.facts.half or not run.steps:
        return 0.0
    weights = run.steps[min(run.steps)].tensors.values()
    return max(map(epsilon, weights), default=0.0)
