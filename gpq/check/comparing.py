"""Holds a run against the reference: when do two tensors differ by more than rounding?

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

An optimizer amplifies rounding: where a gradient is zero but for that, Adam's first steps depend on
it, and another order of the same sums may show none of it. So a few tensors (FEW) that are off by
no more than AMPLIFIED allowances, while every gradient and all others are right, are let pass: what
a loop does wrongly shows in gradients, in rates, or in most tensors.

Where another order alone takes most tensors far (MIXED), the examples of a batch are mixed with
each other, or random numbers fall on them by their place: that is no rounding, and n counts for
nothing.

Weights in half precision are rounded in each part of a batch by more than all this, and steps
amplify it. So there the first step alone is judged that is not bit for bit the reference's, whose
weights are still the same. It differs where d is above COARSE machine epsilons of half precision of
s, and above COARSE * n: right runs lay at a third of that. A tensor that another order alone takes
as far is rounding, and may differ by NOISE * n. A few gradients (FEW) may be off by CANCELLED
allowances: examples nearly cancel there. Weights and states that follow from gradients rounded
otherwise are let pass: the first step of Adam is made of signs. A script that only runs in half
precision is judged in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from gpq.check.records import GRADIENT, Run, Sketch, Step
from gpq.check.sketches import ONE_FACTOR, apart, epsilon, norm, one_factor

SIZE, MOVED, NOISE = 1e-4, 1e-3, 10.0
ULPS = 16
COARSE = 3
FEW, AMPLIFIED, CANCELLED = 0.1, 100.0, 10.0  # of the tensors; times the allowance
SIGNS = 2.0  # of the norm: all signs the other way
MIXED = 0.05  # of the way
BFLOAT16 = 2.0**-7  # its machine epsilon
NUMBER = 1e-6  # relative, of plain numbers
METRIC = 1e-3


@dataclass(frozen=True, slots=True)
class Difference:
    """`excess`: how many times the allowance; `relative`: to the tensor's norm."""

    what: str
    kind: str  # "tensor" | "number"
    excess: float
    relative: float


@dataclass
class Finding:
    """Of one run. `step`: the first that differs in anything, None where none does."""

    step: int | None = None
    samples: int | None = None  # the first step with other examples
    rates: int | None = None
    uneven: bool = False  # there, the optimizer made more steps, or fewer
    tensors: int | None = None
    missing: bool = False  # it made fewer steps
    differences: list[Difference] = field(default_factory=list)  # at `tensors`, the largest first
    largest: float | None = None
    metrics: list[str] = field(default_factory=list)


class Judge:
    """Knows the reference and what rounding does to it."""

    def __init__(self, reference: Run, *reorderings: Run, exact: bool = True) -> None:
        """`reorderings`: the reference with its batches in other orders; `exact`: in full
        precision."""
        self.reference, self._reorderings = reference, reorderings
        self.mixed = False  # another order changes by more than rounding what is trained
        # the first step, where it does so there: no part of a batch is as the whole
        self.ordered: int | None = None
        self.coarse = COARSE * _half_epsilon(reference, exact)  # relative; 0 in full precision
        self._typical: dict[int, float] = {}
        met = False
        for number in sorted(reference.steps):
            shares = self._shares(number)
            self._typical[number] = median(shares.values()) if shares else 0.0
            gradients = [share for name, share in shares.items() if name.startswith(GRADIENT)]
            if gradients and not met:
                met = True  # weights are still the same
                if not self.coarse and median(gradients) > MOVED:
                    self.ordered = number
        if not self.coarse and self._typical and max(self._typical.values()) > MIXED:
            self.mixed = True

    def judge(self, run: Run) -> Finding:
        finding = Finding(missing=run.last < self.reference.last)
        coarse_step = None  # the only step, of weights in half precision
        for number, expected in sorted(self.reference.steps.items()):
            actual = run.steps.get(number)
            if actual is None:
                continue
            if finding.samples is None and expected.indices != actual.indices:
                finding.samples = number
            if finding.rates is None and not _same_rates(expected.rates, actual.rates):
                finding.rates, finding.uneven = number, len(expected.rates) != len(actual.rates)
            if finding.tensors is None and coarse_step is None:
                differences = self.differences(number, actual)
                gaps = [difference for difference in differences if difference.excess > 1]
                if gaps and not self._is_amplified(gaps, differences):
                    finding.tensors, finding.differences = number, gaps
                if self.coarse and any(difference.excess for difference in differences):
                    coarse_step = number
            finding.metrics += [
                name for name in self._metrics(number, actual) if name not in finding.metrics
            ]
        last = self.reference.last if coarse_step is None else coarse_step
        if last in run.steps:
            largest = self._largest(last, run.steps[last])
            finding.largest = largest if math.isfinite(largest) else None
        firsts = [
            step for step in (finding.samples, finding.rates, finding.tensors) if step is not None
        ]
        finding.step = min(firsts) if firsts else None
        return finding

    def _is_amplified(self, gaps: Sequence[Difference], differences: Sequence[Difference]) -> bool:
        """Are these a few tensors, a little off, whose gradients are all right? In half precision
        any number may be, as long as they follow from gradients that are rounded otherwise."""
        if self.coarse:
            gradients = {
                gap.what: gap.excess for gap in differences if gap.what.startswith(GRADIENT)
            }
            excesses = [excess for excess in gradients.values() if excess > 1]
            if len(excesses) > max(1, FEW * len(gradients)) or max(excesses, default=0) > CANCELLED:
                return False
            sources = {what for what, excess in gradients.items() if excess}
            gaps = [gap for gap in gaps if gap.relative > SIGNS or _source(gap.what) not in sources]
        few = len(gaps) <= max(1, FEW * sum(gap.kind == "tensor" for gap in differences))
        return few and all(
            gap.kind == "tensor" and not gap.what.startswith(GRADIENT) and gap.excess <= AMPLIFIED
            for gap in gaps
        )

    def differences(self, number: int, step: Step) -> list[Difference]:
        """All tensors and numbers of that step: first gradients, from which all else follows, last
        plain numbers; those that differ most first."""
        expected = self.reference.steps[number]
        differences = [
            self._tensor(name, sketch, step.tensors.get(name), number)
            for name, sketch in expected.tensors.items()
            if not _private(name)
        ]
        differences += [
            _number(
                name,
                value,
                step.numbers.get(name),
                self._reordered_number(number, name, value),
                self.coarse,
            )
            for name, value in expected.numbers.items()
            if not _private(name)
        ]
        return sorted(
            differences,
            key=lambda difference: (
                difference.kind == "number",
                not difference.what.startswith(GRADIENT),
                -difference.excess,
            ),
        )

    def factor(self, number: int, step: Step) -> float | None:
        """By which the gradients of step `number` are too large, if it is one factor for all of
        them."""
        expected = self.reference.steps[number].tensors
        names = [name for name in expected if name.startswith(GRADIENT) and name in step.tensors]
        steady_names = [
            name
            for name in names
            if norm(expected[name]) and self._is_steady(name, expected[name], number, MOVED)
        ]
        candidates = [one_factor(expected[name], step.tensors[name]) for name in steady_names]
        factors = [factor for factor in candidates if factor is not None]
        if not factors or len(factors) < len(candidates):
            return None
        typical = median(factors)
        return (
            typical if all(abs(factor / typical - 1) < ONE_FACTOR for factor in factors) else None
        )

    def _tensor(
        self, name: str, expected: Sketch, actual: Sketch | None, number: int
    ) -> Difference:
        if actual is None:
            return Difference(name, "tensor", math.inf, math.inf)
        distance, size = apart(expected, actual), norm(expected)
        if not distance:
            return Difference(name, "tensor", 0.0, 0.0)
        allowance = self._allowed(name, expected, number)
        relative = distance / size if size else math.inf
        return Difference(name, "tensor", distance / allowance if allowance else math.inf, relative)

    def _allowed(self, name: str, expected: Sketch, number: int) -> float:
        size, noise = norm(expected), self._noise(name, expected, number)
        if self.coarse:
            is_steady = self._is_steady(name, expected, number, 0.0)
            return max(self.coarse * size, COARSE / NOISE * noise) if is_steady else noise
        way = min(SIZE * size, MOVED * self._moved(name, expected))
        return max(way, ULPS * epsilon(expected) * size, noise)

    def _is_steady(self, name: str, expected: Sketch, number: int, share: float) -> bool:
        """Is it by no more than this `share` rounding? In half precision: in the first step by no
        more than that allows."""
        if self.coarse:
            number = sorted(self.reference.steps)[:2][-1]
            expected, share = (
                self.reference.steps[number].tensors.get(name, expected),
                NOISE * self.coarse,
            )
        return self._noise(name, expected, number) <= share * norm(expected)

    def _noise(self, name: str, expected: Sketch, number: int) -> float:
        if self.mixed:
            return 0.0
        sketches = [
            step.tensors[name] for step in self._reordered_steps(number) if name in step.tensors
        ]
        furthest = max((apart(expected, sketch) for sketch in sketches), default=0.0)
        typical = 0.0 if self.coarse else self._typical.get(number, 0.0)
        return NOISE * max(furthest, typical * self._moved(name, expected))

    def _reordered_steps(self, number: int) -> list[Step]:
        return [run.steps[number] for run in self._reorderings if number in run.steps]

    def _reordered_number(self, number: int, name: str, expected: float | None) -> float | None:
        """Of the runs in another order, what is furthest from the reference's."""
        values = [step.numbers.get(name) for step in self._reordered_steps(number)]
        finite_values = [value for value in values if value is not None]
        if expected is None or not finite_values:
            return expected if not values else None
        return max(finite_values, key=lambda value: abs(value - expected))

    def _moved(self, name: str, expected: Sketch) -> float:
        start = self.reference.steps[min(self.reference.steps)].tensors.get(name)
        return apart(start, expected) if start is not None else norm(expected)

    def _shares(self, number: int) -> dict[str, float]:
        """Of each tensor that moved: how far another order takes it at most, as a part of the way
        it went."""
        shares: dict[str, float] = {}
        for name, expected in self.reference.steps[number].tensors.items():
            way = self._moved(name, expected)
            sketches = [
                step.tensors[name] for step in self._reordered_steps(number) if name in step.tensors
            ]
            if sketches and way > 0:
                shares[name] = min(1.0, max(apart(expected, sketch) for sketch in sketches) / way)
        return shares

    def _largest(self, number: int, last: Step) -> float:
        """Of gradients in half precision, else of all others; without what is mostly rounding."""
        coarse = bool(self.coarse)
        distances = [
            self._tensor(name, sketch, last.tensors.get(name), number).relative
            for name, sketch in self.reference.steps[number].tensors.items()
            if name.startswith(GRADIENT) == coarse and self._is_steady(name, sketch, number, SIZE)
        ]
        return max(distances, default=0.0)

    def _metrics(self, number: int, step: Step) -> list[str]:
        """Names of those whose mean over the step's examples is another."""
        names = []
        for name, values in self.reference.steps[number].metrics.items():
            expected, actual = _mean(values), _mean(step.metrics.get(name, []))
            if expected is None or actual is None:
                continue
            means = [_mean(run.metrics.get(name, [])) for run in self._reordered_steps(number)]
            rounding = max(
                (abs(expected - mean) for mean in means if mean is not None), default=0.0
            )
            if abs(expected - actual) > max(METRIC * abs(expected), NOISE * rounding, 1e-9):
                names.append(name)
        return names


def _source(name: str) -> str:
    """The gradient that a weight or a state of the optimizer follows from."""
    return GRADIENT + name.rpartition(" of ")[2]


def _private(name: str) -> bool:
    """Flags that schedulers keep for themselves."""
    return any(part.startswith("_") for part in name.split("."))


def _half_epsilon(run: Run, exact: bool) -> float:
    """Machine epsilon of the coarsest half type, 0 where all is in full precision."""
    half = run.facts is not None and run.facts.half and run.steps
    weights = run.steps[min(run.steps)].tensors.values() if half else ()
    return max(run.epsilon, *map(epsilon, weights), 0.0) or (0.0 if exact else BFLOAT16)


def _number(
    name: str,
    expected: float | None,
    actual: float | None,
    reordered_value: float | None,
    coarse: float = 0.0,
) -> Difference:
    if expected is None or actual is None:
        return Difference(
            name,
            "number",
            0.0 if expected == actual else math.inf,
            0.0 if expected == actual else math.inf,
        )
    distance = abs(expected - actual)
    noise = abs(expected - reordered_value) if reordered_value is not None else 0.0
    allowance = max(NUMBER * abs(expected), coarse * abs(expected), NOISE * noise, 1e-12)
    return Difference(
        name, "number", distance / allowance, distance / abs(expected) if expected else distance
    )


def _same_rates(expected: Sequence[Sequence[float]], actual: Sequence[Sequence[float]]) -> bool:
    flat = (
        [rate for rates in expected for rate in rates],
        [rate for rates in actual for rate in rates],
    )
    return len(flat[0]) == len(flat[1]) and all(
        math.isclose(a, b, rel_tol=NUMBER) for a, b in zip(*flat, strict=True)
    )


def _mean(values: Sequence[tuple[float, int, int]]) -> float | None:
    """Over the examples that they stand for; the last, where it was logged outside the loop."""
    weight = sum(count for _, count, _ in values)
    if weight:
        return sum(value * count for value, count, _ in values) / weight
    logged_values = [value for value, _, rank in values if rank == 0]
    return logged_values[-1] if logged_values else None
