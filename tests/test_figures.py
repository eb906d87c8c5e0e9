"""Bars: those on time are wider if other tests run, and all others stay the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.runs import Measured
from tests.support.figures import SLACK, Figures

Demand = Callable[[float, float, str], None]  # reached, asked, unit


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """The report of a test that never runs, so its figures are not listed at the end."""
    return Figures(pytest.Function.from_parent(request.node.parent, name="made_up", callobj=lambda: None))


@pytest.fixture(params=["at_most", "all"])
def demand(request: pytest.FixtureRequest, figures: Figures) -> Demand:
    """Both ways to a bar."""

    def at_most(reached: float, asked: float, unit: str) -> None:
        figures.at_most("made up", reached, asked, unit)

    def of_all(reached: float, asked: float, unit: str) -> None:
        figures.all([Measured("made up", reached, at_most=asked, unit=unit)])

    return at_most if request.param == "at_most" else of_all


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_a_bar_on_time_is_noted_as_asked_and_checked_wider(
    demand: Demand, unit: str, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPQ_BARS", raising=False)
    demand(5.0 * SLACK, 5.0, unit)
    [(_, noted)] = figures.item.user_properties
    assert str(noted).strip() == f"made up: 30 {unit} (asked: at most 5)"
    with pytest.raises(AssertionError, match=r"made up: 30\.1"):
        demand(5.0 * SLACK + 0.1, 5.0, unit)
    with pytest.raises(AssertionError, match=r"made up: 0\.001"):
        demand(0.001, 0.0, unit)


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_without_other_tests_a_bar_is_checked_as_asked(
    demand: Demand, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPQ_BARS", "1")
    demand(5.0, 5.0, unit)
    with pytest.raises(AssertionError, match=r"made up: 5\.1"):
        demand(5.1, 5.0, unit)


@pytest.mark.parametrize("bars", ["", "1"])
@pytest.mark.parametrize("unit", ["", "MB", "%"])
def test_other_bars_stay_as_they_are(demand: Demand, unit: str, bars: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPQ_BARS", bars)
    demand(5, 5, unit)
    with pytest.raises(AssertionError, match="made up: 6"):
        demand(6, 5, unit)


@pytest.mark.parametrize("bars", ["", "1"])
def test_a_lower_bound_does_not_depend_on_the_machines_load(
    figures: Figures, bars: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault lasts this long. A slow machine makes it longer, if anything."""
    monkeypatch.setenv("GPQ_BARS", bars)
    with pytest.raises(AssertionError, match="made up"):
        figures.all([Measured("made up", 4.9, at_least=5.0, unit="s")])
