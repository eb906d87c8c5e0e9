"""How far rounding alone takes a tensor: runs the reference again with its batches in other orders.

The criterion: d is the distance of a tensor from the reference, and n is how far rounding alone
takes it. For n, the reference runs again with each batch in three other orders, and the furthest
counts. s is the norm of the tensor, and m the distance that it has moved since the start. The
tensor differs if d is above both of these:

    NOISE * n         Rounding differs between tensors. The gradient of an attention's key bias is
                      zero except for rounding, but Adam makes whole steps of it, and n shows that.
                      A tensor may come out too well by luck in all orders, so n is at least the
                      typical n / m of the run.
    the smaller of SIZE * s and MOVED * m, but at least ULPS of its type
                      gpq promises 1e-4 of the norm. In a few steps at a small rate a tensor moves
                      less than that, and would hide a gradient that is wrong by 14%. So the limit
                      is also 1e-3 of the distance moved. A rate that is 1% off is 1e-2 of it.
                      Below a few units in the last place weights show nothing. So gradients, as the
                      optimizer finds them, and its rates are compared separately. The gradient of a
                      bias before batch norm is zero except for rounding of larger gradients, and
                      groups of two examples amplify that. So a gradient may be off by NOISE * ULPS
                      of the largest one of its step.

If another order alone takes most tensors far (MIXED), the loss mixes the examples of a batch, or
random numbers depend on their place. That is not rounding, and n does not count.

In half precision a tensor differs if d is above COARSE machine epsilons of s and above COARSE * n.
Correct runs were at a third of that. If another order alone takes a tensor as far, that is
rounding, and it may differ by NOISE * n.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import median

from gpq.check.records import GRADIENT, Run, Sketch, Step

SIZE, MOVED, NOISE = 1e-4, 1e-3, 10.0
ULPS = 16
COARSE = 3
MIXED = 0.05  # of the distance moved
BFLOAT16 = 2.0**-7  # its machine epsilon
ONE_FACTOR = 0.25  # tolerance for one factor, because parts of a batch may be uneven


class Rounding:
    """Rounding in the reference.

    coarse: the relative difference that half precision makes, 0 in full precision.
    mixed: does another order change the result by more than rounding?
    ordered: the first step, if it does so there. Part of a batch is then never like the whole.
    """

    def __init__(self, reference: Run, reorderings: Sequence[Run], exact: bool) -> None:
        """`reorderings`: the reference with its batches in other orders. `exact`: in full
        precision."""
        self._reference, self._reorderings = reference, reorderings
        # Machine epsilon of the coarsest half type, 0 if everything is in full precision.
        half = reference.epsilon
        if reference.facts is not None and reference.facts.half and reference.steps:
            weights = reference.steps[min(reference.steps)].tensors.values()
            half = max([half, *map(epsilon, weights)])
        if not half and not exact:
            half = BFLOAT16
        self.coarse = COARSE * half
        shares = {number: self._shares(number) for number in sorted(reference.steps)}
        self._typical = {number: _typical(share.values()) for number, share in shares.items()}
        self.mixed = not self.coarse and max(self._typical.values(), default=0.0) > MIXED
        self.ordered = None if self.coarse else _first_reordered(shares)

    def allowance(self, name: str, expected: Sketch, number: int) -> float:
        """How far a correct run may be from `expected`, the reference in step `number`."""
        size, noise = norm(expected), self._noise(name, expected, number)
        if not self.coarse:
            way = min(SIZE * size, MOVED * self._shift(name, expected))
            if name.startswith(GRADIENT):
                size = NOISE * self._largest_gradient(number)
            return max(way, ULPS * epsilon(expected) * size, noise)
        if self.is_steady(name, expected, number, 0.0):
            return max(self.coarse * size, COARSE / NOISE * noise)
        return noise

    def is_steady(self, name: str, expected: Sketch, number: int, share: float) -> bool:
        """Is at most this `share` of it rounding? In half precision: at most what the first step
        allows."""
        if self.coarse:
            number = sorted(self._reference.steps)[:2][-1]
            expected = self._reference.steps[number].tensors.get(name, expected)
            share = NOISE * self.coarse
        return self._noise(name, expected, number) <= share * norm(expected)

    def steps(self, number: int) -> list[Step]:
        """That step in the other orders."""
        return [run.steps[number] for run in self._reorderings if number in run.steps]

    def number_noise(self, number: int, name: str, expected: float) -> float:
        """How far a plain number is from the reference, at most, in the other orders."""
        values = (step.numbers.get(name) for step in self.steps(number))
        return max((abs(expected - value) for value in values if value is not None), default=0.0)

    def _noise(self, name: str, expected: Sketch, number: int) -> float:
        if self.mixed:
            return 0.0
        furthest = max(
            (apart(expected, sketch) for sketch in self._sketches(name, number)), default=0.0
        )
        if self.coarse:
            return NOISE * furthest
        return NOISE * max(furthest, self._typical.get(number, 0.0) * self._shift(name, expected))

    def _largest_gradient(self, number: int) -> float:
        tensors = self._reference.steps[number].tensors.items()
        return max(norm(sketch) for name, sketch in tensors if name.startswith(GRADIENT))

    def _sketches(self, name: str, number: int) -> list[Sketch]:
        return [step.tensors[name] for step in self.steps(number) if name in step.tensors]

    def _shift(self, name: str, expected: Sketch) -> float:
        start = self._reference.steps[min(self._reference.steps)].tensors.get(name)
        return norm(expected) if start is None else apart(start, expected)

    def _shares(self, number: int) -> dict[str, float]:
        """For each tensor that moved: how far another order takes it at most, relative to the
        distance it moved."""
        shares: dict[str, float] = {}
        for name, expected in self._reference.steps[number].tensors.items():
            way = self._shift(name, expected)
            sketches = self._sketches(name, number)
            if sketches and way > 0:
                furthest = max(apart(expected, sketch) for sketch in sketches)
                shares[name] = min(1.0, furthest / way)
        return shares


def _typical(shares: Collection[float]) -> float:
    return median(shares) if shares else 0.0


def _first_reordered(shares: Mapping[int, Mapping[str, float]]) -> int | None:
    """The first step with gradients, in which weights are still the same, if another order changes
    most of them. `shares`: by step and tensor."""
    for number, share_by_name in shares.items():
        gradients = [share for name, share in share_by_name.items() if name.startswith(GRADIENT)]
        if gradients:
            return number if median(gradients) > MOVED else None
    return None


def apart(first: Sketch, second: Sketch) -> float:
    """|a - b| from the projections of a and b, or infinity if one of them is not finite."""
    pairs = _finite_pairs(first, second)
    if pairs and len(first) == len(second):
        return math.sqrt(sum((a - b) ** 2 for a, b in pairs) / len(pairs))
    return 0.0 if first == second else math.inf


def norm(sketch: Sketch) -> float:
    return (sketch[0] or 0.0) if sketch else 0.0


def epsilon(sketch: Sketch) -> float:
    """The machine epsilon of the tensor's type."""
    return (sketch[1] or 0.0) if len(sketch) > 1 else 0.0


def one_factor(first: Sketch, second: Sketch) -> float | None:
    """f with second = f * first, or None."""
    pairs = _finite_pairs(first, second)
    square = sum(a * a for a, _ in pairs)
    if not square:
        return None
    factor = sum(a * b for a, b in pairs) / square
    residual = sum((b - factor * a) ** 2 for a, b in pairs)
    if factor > 0 and residual <= ONE_FACTOR**2 * sum(b * b for _, b in pairs):
        return factor
    return None


def _finite_pairs(first: Sketch, second: Sketch) -> list[tuple[float, float]]:
    """Projections that both have. The first two numbers of a sketch are its norm and its
    epsilon."""
    pairs = zip(first[2:], second[2:], strict=False)
    return [(a, b) for a, b in pairs if a is not None and b is not None]
