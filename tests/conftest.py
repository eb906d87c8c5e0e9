"""What holds for every test: in CI nothing is skipped. What needs root or a package fails there when it is missing."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from tests.figures import Figures, listed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure in CI: {reason}"
    return report


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
