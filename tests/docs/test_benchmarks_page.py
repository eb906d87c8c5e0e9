"""docs/benchmarks.md names result files and Makefile targets that exist."""

from __future__ import annotations

import re

from tests.cli.conftest import ROOT

PAGE = (ROOT / "docs" / "benchmarks.md").read_text()
LIST = (ROOT / "benchmarks" / "README.md").read_text()


def test_every_file_of_results_is_linked() -> None:
    results = {path.name for path in (ROOT / "benchmarks" / "results").glob("*.md")} - {"planted.md"}
    assert set(re.findall(r"\(\.\./benchmarks/results/([^)#]+)\)", PAGE)) == results


def test_every_command_is_a_target() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = set(re.findall(r"`make ([a-z-]+)", PAGE + LIST))
    assert len(named) > 12
    assert named <= {*targets}


def test_every_row_says_how_to_repeat_it() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what")]
    assert len(rows) > 20
    for row in rows:
        assert row.count(" | ") == 3, row
        assert "`make " in row or "see the results" in row, row
