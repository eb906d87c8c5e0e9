"""What holds for every test, whoever starts it and however."""

from __future__ import annotations

import pytest

from tests.support import dispositions, examples
from tests.support.figures import Figures, listed

# Hooks: pytest finds them by their names here.
from tests.tiers.reporting import (
    pytest_collectreport,
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
)
from tests.tiers.selection import (
    pytest_addoption,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_ignore_collect,
)

__all__ = [
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_collectreport",
    "pytest_ignore_collect",
    "pytest_runtest_logreport",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
]

dispositions.restore()
examples.load_profile()


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """`@pytest.mark.row("13")` says which row of the table of faults a test answers for."""
    mark = request.node.get_closest_marker("row")
    return Figures(request.node, f"row {mark.args[0]}" if mark else "")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was measured, in a run of any number of processes."""
    reports = [report for key in ("passed", "failed") for report in terminalreporter.getreports(key)]
    lines = sorted(listed(report for report in reports if report.when == "call"))
    if lines:
        terminalreporter.section("figures")
        terminalreporter.line("\n".join(lines))
