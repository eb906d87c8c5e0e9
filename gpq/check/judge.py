"""Compares a run with the reference: when do two tensors differ by more than rounding?

`rounding` says how far a tensor may be from the reference. This module says what passes anyway.

An optimizer amplifies rounding. If a gradient is zero except for rounding, Adam's first steps
depend on that, and a different order of the same sums may not show it. So a few tensors (FEW) may
be off by up to AMPLIFIED allowances if every gradient and all other tensors are right. A real
mistake of a loop shows in gradients, in rates or in most tensors.

With weights in half precision, rounding in each part of a batch is larger than all this, and steps
amplify it. So only the first step counts that is not bit for bit the reference's, because its
weights are still the same. A few gradients (FEW) may be off by CANCELLED allowances, because
examples nearly cancel there. Weights and states pass if they follow from gradients with different
rounding, because Adam's first step consists of signs. The same rules apply to a script that only
runs in half precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median

from gpq.check.records import GRADIENT, Run, Sketch, Step
from gpq.check.rounding import MOVED, NOISE, ONE_FACTOR, SIZE, Rounding, apart, norm, one_factor

FEW, AMPLIFIED, CANCELLED = 0.1, 100.0, 10.0  # share of the tensors, and multiples of the allowance
SIGNS = 2.0  # of the norm: every sign is flipped
NUMBER = 1e-6  # relative, for plain numbers
METRIC = 1e-3


@dataclass(frozen=True, slots=True)
class Difference:
    """`excess`: in multiples of the allowance. `relative`: to the norm of the tensor."""

    what: str
    kind: str  # "tensor" | "number"
    excess: float
    relative: float

    @property
    def is_gradient(self) -> bool:
        return self.what.startswith(GRADIENT)


@dataclass
class Finding:
    """What one run showed. `step`: the first that differs in anything, or None."""

    step: int | None = None
    samples: int | None = None  # the first step with different examples
    rates: int | None = None
    uneven: bool = False  # there the optimizer made more or fewer steps
    tensors: int | None = None
    missing: bool = False  # the run made fewer steps
    differences: list[Difference] = field(
        default_factory=list
    )  # in step `tensors`, the largest first
    largest: float | None = None
    metrics: list[str] = field(default_factory=list)


class Judge:
    """Knows the reference, and what rounding does to it (`rounding`)."""

    def __init__(self, reference: Run, *reorderings: Run, exact: bool = True) -> None:
        """`reorderings`: the reference with its batches in other orders. `exact`: in full
        precision."""
        self.reference = reference
        self.rounding = Rounding(reference, reorderings, exact)

    def judge(self, run: Run) -> Finding:
        finding = Finding(missing=run.last < self.reference.last)
        pairs = [  # (number, the reference's step, the step of this run)
            (number, step, run.steps[number])
            for number, step in sorted(self.reference.steps.items())
            if number in run.steps
        ]
        finding.samples = next(
            (number for number, step, actual in pairs if step.indices != actual.indices), None
        )
        for number, step, actual in pairs:
            if not _same_rates(step.rates, actual.rates):
                finding.rates, finding.uneven = number, len(step.rates) != len(actual.rates)
                break
        last = self._compare_tensors(finding, pairs)
        metrics = (self._metrics(number, actual) for number, _, actual in pairs)
        finding.metrics = list(dict.fromkeys(chain.from_iterable(metrics)))
        if last in run.steps:
            finding.largest = self._largest(last, run.steps[last])
        firsts = (finding.samples, finding.rates, finding.tensors)
        finding.step = min((step for step in firsts if step is not None), default=None)
        return finding

    def differences(self, number: int, step: Step) -> list[Difference]:
        """All tensors and numbers of that step: gradients first, because the rest follows from
        them, and plain numbers last. The largest difference comes first."""
        expected = self.reference.steps[number]
        tensors = [
            self._tensor(name, sketch, step.tensors.get(name), number)
            for name, sketch in expected.tensors.items()
            if not _private(name)
        ]
        numbers = [
            self._number(name, value, step.numbers.get(name), number)
            for name, value in expected.numbers.items()
            if not _private(name)
        ]
        return sorted(
            tensors + numbers,
            key=lambda gap: (gap.kind == "number", not gap.is_gradient, -gap.excess),
        )

    def factor(self, number: int, step: Step) -> float | None:
        """The factor by which all gradients of step `number` are too large, if there is one."""
        candidates = [
            one_factor(sketch, step.tensors[name])
            for name, sketch in self.reference.steps[number].tensors.items()
            if name.startswith(GRADIENT)
            and name in step.tensors
            and norm(sketch)
            and self.rounding.is_steady(name, sketch, number, MOVED)
        ]
        factors = [factor for factor in candidates if factor is not None]
        if not factors or len(factors) < len(candidates):
            return None
        typical = median(factors)
        is_common = all(abs(factor / typical - 1) < ONE_FACTOR for factor in factors)
        return typical if is_common else None

    def _compare_tensors(self, finding: Finding, pairs: Iterable[tuple[int, Step, Step]]) -> int:
        """Compare up to the first step that differs. In half precision that is the first step
        that is not the reference's bit for bit. Returns the last step that shows how far the run
        is off."""
        for number, _, actual in pairs:
            differences = self.differences(number, actual)
            gaps = [difference for difference in differences if difference.excess > 1]
            if gaps and not self._is_amplified(gaps, differences):
                finding.tensors, finding.differences = number, gaps
            if self.rounding.coarse and any(difference.excess for difference in differences):
                return number
            if finding.tensors is not None:
                break
        return self.reference.last

    def _is_amplified(self, gaps: Sequence[Difference], differences: Sequence[Difference]) -> bool:
        """Are these a few tensors, slightly off, whose gradients are all right? In half precision
        any number of tensors may be off, if they follow from gradients with different rounding."""
        if self.rounding.coarse:
            gradients = {gap.what: gap.excess for gap in differences if gap.is_gradient}
            large = [excess for excess in gradients.values() if excess > 1]
            if len(large) > _few(len(gradients)) or max(large, default=0) > CANCELLED:
                return False
            inexact = {name.removeprefix(GRADIENT) for name in gradients if gradients[name]}
            gaps = [
                gap
                for gap in gaps
                if gap.relative > SIGNS or gap.what.rpartition(" of ")[2] not in inexact
            ]
        tensors = sum(difference.kind == "tensor" for difference in differences)
        return len(gaps) <= _few(tensors) and all(
            gap.kind == "tensor" and not gap.is_gradient and gap.excess <= AMPLIFIED for gap in gaps
        )

    def _tensor(
        self, name: str, expected: Sketch, actual: Sketch | None, number: int
    ) -> Difference:
        if actual is None:
            return Difference(name, "tensor", math.inf, math.inf)
        distance = apart(expected, actual)
        if not distance:
            return Difference(name, "tensor", 0.0, 0.0)
        allowance = self.rounding.allowance(name, expected, number)
        excess, relative = _ratio(distance, allowance), _ratio(distance, norm(expected))
        return Difference(name, "tensor", excess, relative)

    def _number(
        self, name: str, expected: float | None, actual: float | None, number: int
    ) -> Difference:
        if expected is None or actual is None:
            gap = 0.0 if expected == actual else math.inf
            return Difference(name, "number", gap, gap)
        size, distance = abs(expected), abs(expected - actual)
        noise = self.rounding.number_noise(number, name, expected)
        allowance = max(NUMBER * size, self.rounding.coarse * size, NOISE * noise, 1e-12)
        relative = distance / size if size else distance
        return Difference(name, "number", distance / allowance, relative)

    def _largest(self, number: int, last: Step) -> float | None:
        """The largest difference of gradients in half precision, else of all other tensors, without
        those that are mostly rounding. None if it is not finite."""
        coarse = bool(self.rounding.coarse)
        distances = [
            self._tensor(name, sketch, last.tensors.get(name), number).relative
            for name, sketch in self.reference.steps[number].tensors.items()
            if name.startswith(GRADIENT) == coarse
            and self.rounding.is_steady(name, sketch, number, SIZE)
        ]
        largest = max(distances, default=0.0)
        return largest if math.isfinite(largest) else None

    def _metrics(self, number: int, step: Step) -> list[str]:
        """Names of metrics whose mean over the examples of the step differs."""
        names = []
        for name, values in self.reference.steps[number].metrics.items():
            expected, actual = _mean(values), _mean(step.metrics.get(name, []))
            if expected is None or actual is None:
                continue
            means = [_mean(run.metrics.get(name, [])) for run in self.rounding.steps(number)]
            rounding = max(
                (abs(expected - mean) for mean in means if mean is not None), default=0.0
            )
            if abs(expected - actual) > max(METRIC * abs(expected), NOISE * rounding, 1e-9):
                names.append(name)
        return names


def _few(count: int) -> float:
    return max(1, FEW * count)


def _ratio(distance: float, whole: float) -> float:
    return distance / whole if whole else math.inf


def _private(name: str) -> bool:
    """Private flags of schedulers."""
    return any(part.startswith("_") for part in name.split("."))


def _same_rates(expected: Sequence[Sequence[float]], actual: Sequence[Sequence[float]]) -> bool:
    expected_flat, actual_flat = list(chain(*expected)), list(chain(*actual))
    return len(expected_flat) == len(actual_flat) and all(
        math.isclose(a, b, rel_tol=NUMBER) for a, b in zip(expected_flat, actual_flat, strict=True)
    )


def _mean(values: Sequence[tuple[float, int, int]]) -> float | None:
    """The mean over the examples behind each value, or the last value if it was logged outside the
    loop."""
    weight = sum(count for _, count, _ in values)
    if weight:
        return sum(value * count for value, count, _ in values) / weight
    logged_values = [value for value, _, rank in values if rank == 0]
    return logged_values[-1] if logged_values else None
