"""Hooks of pytest that write failures down the moment they happen. Owns the format of the list of failures."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.promises import CRASHES, BrokenPromise

LIST = "GPQ_TEST_FAILURES"  # names the file
PROMISE = "promise"
FAILED = pytest.StashKey[bool]()
# Of a process that no test driver started: a job of a daemon, or a worker of pytest itself.
CRASH = re.compile(r"\b(" + "|".join(name.name for name in sorted(CRASHES)) + r")\b|worker 'gw\d+' crashed")


class Failure(NamedTuple):
    """`promise`: the broken promise, or "". `text`: the traceback."""

    test: str
    promise: str
    message: str
    text: str


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI nothing is skipped. A test that lacks root or a package fails there."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure in CI: {reason}"
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    if report.failed and call.excinfo is not None and call.excinfo.errisinstance(BrokenPromise):
        report.user_properties.append((PROMISE, str(call.excinfo.value)))
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported has failed, with all its tests. Otherwise pytest shows that only by exit code 1."""
    _note(report)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure at once and keep it, because an interrupted run prints no summary."""
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.failed or "PYTEST_XDIST_WORKER" in os.environ:
        return
    failure = _failure(report)
    os.write(1, f"\n==== FAILED {failure.test}\n{failure.text}\n".encode())
    path = os.environ.get(LIST)
    if path:
        with Path(path).open("a") as stream:
            stream.write(json.dumps(failure._asdict()) + "\n")


def _failure(report: pytest.TestReport | pytest.CollectReport) -> Failure:
    text = report.longreprtext
    lines = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines() or [""]
    crash = CRASH.search(text)
    properties = getattr(report, "user_properties", [])
    promise = next((str(value) for name, value in properties if name == PROMISE), "")
    return Failure(report.nodeid, promise or (crash.group() if crash else ""), lines[0][1:].strip(), text)


def failures(path: Path) -> list[Failure]:
    """All failures of a run, in order. A test that fails in its body and its clean-up is there twice."""
    if not path.exists():
        return []
    return [Failure(**json.loads(line)) for line in path.read_text().splitlines()]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Leftovers of a failed test must not fail the next one, for example as a warning from its garbage."""
    answer = yield
    if item.stash.get(FAILED, False):
        sys.last_value = sys.last_traceback = sys.last_exc = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    return answer
