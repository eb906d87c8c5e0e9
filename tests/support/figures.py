"""Figures that tests reach, beside those that are asked: recorded whether they suffice or not, listed at the end of a run."""

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
    """What a test fails over. A bar on time is noted as it is asked, and demanded six times as wide: a test that runs
    beside others is as slow as they make it. With GPQ_BARS=1, for tests that run alone, it is demanded as it is asked.
    All other bars, of counts, bytes and ratios, are so in any case, and so is a time of zero."""
    return asked * SLACK if unit in TIMES and os.environ.get("GPQ_BARS") != "1" else asked


class Figures:
    """Of one test. `row`: of the table of faults that the test answers for, "" for none."""

    def __init__(self, item: pytest.Item, row: str = "") -> None:
        self.item = item
        self.row = row

    def note(self, what: str, reached: str) -> None:
        """Nothing is asked."""
        self.item.user_properties.append((FIGURE, f"{self.row:>6}  {what}: {reached}"))

    def at_most(self, what: str, reached: float, asked: float, unit: str = "s") -> None:
        """Recorded, then demanded: see `demanded`."""
        self.note(what, f"{_text(reached)} {unit} (asked: at most {_text(asked)})")
        assert reached <= demanded(asked, unit), f"{what}: {reached} {unit}, asked: at most {asked}"

    def exactly(self, what: str, reached: object, asked: object) -> None:
        self.note(what, f"{reached} (asked: {asked})")
        if reached != asked:
            raise _error(asked)(f"{what}: {reached}, asked: {asked}")

    def all(self, measured: Iterable[Measured]) -> None:
        """What a run of `tests.chaos` gave: all of it recorded, then demanded."""
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
    """Where none is asked for (lost, double, violations) and there is one, a promise is broken."""
    return BrokenPromise if asked in (0, []) else AssertionError


def _text(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.3g}"


def listed(reports: Iterable[pytest.TestReport]) -> list[str]:
    """The lines of all tests."""
    return [str(value) for report in reports for name, value in report.user_properties if name == FIGURE]
