"""Hooks of pytest that choose what runs: one part of the files, and in the everyday tier only some of the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .groups import GROUPS, ROOT, drawn, stale, turn

# Tests that train, or import torch themselves. All others mostly wait, so many of them run side by side.
TRAINS = (
    "tests/agent/train",
    "tests/benchmarks/test_lab.py",
    "tests/check",
    "tests/cli/check/test_check.py",
    "tests/cli/doctor/test_gpu_report.py",
    "tests/cli/lab/test_library.py",
    "tests/docs/test_blocks.py",
    "tests/docs/test_examples.py",
    "tests/docs/test_habits.py",
    "tests/docs/test_messages.py",
    "tests/e2e/test_endings.py",
    "tests/e2e/test_multi_node.py",
    "tests/e2e/test_policies.py",
    "tests/e2e/test_replica_faults.py",
    "tests/e2e/test_training.py",
    "tests/frameworks",
    "tests/gpu",
    "tests/habits",
    "tests/lab/test_multi_node.py",
    "tests/lab/test_training.py",
    "tests/test_demo.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    options = parser.getgroup("tiers")
    options.addoption(
        "--tier", choices=["test", "long"], default="long",
        help="test: a tenth of the long tests and of each proven group; long: everything (the default)",
    )  # fmt: skip
    options.addoption(
        "--part", choices=["system", "torch", "all"], default="all",
        help="system: the files that need no torch; torch: those that do; all (the default)",
    )  # fmt: skip


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of the other part are not even imported."""
    part = config.getoption("--part")
    if part == "all" or not collection_path.is_relative_to(ROOT):
        return None
    path = str(collection_path.relative_to(ROOT))
    trains = any(path == place or path.startswith(f"{place}/") for place in TRAINS)
    if part == "system":
        return trains or None
    return None if trains or collection_path.is_dir() else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop what this turn does not run. Every worker chooses the same."""
    if config.getoption("--tier") == "long":
        return
    whole, number = stale(), turn()
    dropped = [item for item in items if not _runs(item, whole, number)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        gone = set(dropped)
        items[:] = [item for item in items if item not in gone]


def _runs(item: pytest.Item, whole: list[str], number: int) -> bool:
    if drawn(item.nodeid, number):
        return True
    if item.get_closest_marker("long"):
        return False
    path = item.nodeid.partition("::")[0]
    group = next((group.name for group in GROUPS if group.has(path)), None)
    return group is None or group in whole


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("--part") == "system" and "torch" in sys.modules:
        raise pytest.UsageError("a test outside TRAINS (tests/tiers/selection.py) imports torch")
