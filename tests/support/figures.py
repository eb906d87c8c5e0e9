"""Figures that tests measure, next to their limits. All are recorded and listed at the end of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.chaos.runs import Measured, number
from tests.support.promises import BrokenPromise

FIGURE = "figure"
TIMES = ("s", "ms")  # units
SLACK = 6


def demanded(asked: float, unit: str) -> float:
    """The value above which a test fails.

    A limit on time is enforced at six times its value, because other tests slow this one down. With GPQ_BARS=1, for
    tests that run alone, it is enforced as it is. All other limits (counts, bytes, ratios, a time of zero) always are.
    """
    return asked * SLACK if unit in TIMES and os.environ.get("GPQ_BARS") != "1" else asked


class Figures:
    """The figure of one test. `row`: the row in the table of faults that the test answers for, or ""."""

    def __init__(self, item: pytest.Item, row: str = "") -> None:
        self.item = item
        self.row = row

    def note(self, what: str, reached: str) -> None:
        """No limit."""
        self.item.user_properties.append((FIGURE, f"{self.row:>6}  {what}: {reached}"))

    def at_most(self, what: str, reached: float, asked: float, unit: str = "s") -> None:
        """Recorded, then enforced: see `demanded`."""
        self.note(what, f"{_text(reached)} {unit} (asked: at most {_text(asked)})")
        assert reached <= demanded(asked, unit), f"{what}: {reached} {unit}, asked: at most {asked}"

    def exactly(self, what: str, reached: object, asked: object) -> None:
        self.note(what, f"{reached} (asked: {asked})")
        if reached != asked:
            raise _error(asked)(f"{what}: {reached}, asked: {asked}")

    def all(self, measured: Iterable[Measured]) -> None:
        """What a run of `tests.chaos` measured. All of it is recorded, then enforced."""
        found = list(measured)
        for each in found:
            self.note(
                each.what,
                f"{number(each.reached)} {each.unit}".rstrip() + (f" (asked: {each.asked})" * bool(each.asked)),
            )
        for each in found:
            bar = None if each.at_most is None else demanded(each.at_most, each.unit)
            if not replace(each, at_most=bar).good:
                text = f"{each.what}: {each.reached} {each.unit}, asked: {each.asked}; {each.why}"
                raise _error(each.at_most)(text)


def _error(asked: object) -> type[AssertionError]:
    """If the limit is zero (lost, double, violations) and the value is not, a promise is broken."""
    return BrokenPromise if asked in (0, []) else AssertionError


def _text(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.3g}"


def listed(reports: Iterable[pytest.TestReport]) -> list[str]:
    """The lines of all tests."""
    return [str(value) for report in reports for name, value in report.user_properties if name == FIGURE]
