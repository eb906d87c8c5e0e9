"""docs/simulator.md explains every column of a comparison, and its commands are valid."""

from __future__ import annotations

import re
from dataclasses import fields

from gpq.lab import comparison
from gpq.lab.simulator.outcomes import Summary
from gpq.options.completion_data import GRAMMAR
from tests.cli.conftest import ROOT

PAGE = (ROOT / "docs" / "simulator.md").read_text()
TABLE = PAGE.partition("## Read the result")[2].partition("\n\n|")[2].partition("\n\n")[0]


def test_every_column_is_explained() -> None:
    rows = [re.split(r" \| ", line.strip("| ")) for line in TABLE.splitlines()[2:]]
    assert all(len(row) == 3 for row in rows), rows
    titles = {title.strip() for row in rows for title in row[0].split(",")}
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert titles == {column.title for column in comparison.columns([])}
    assert names == {"cluster", *(each.name for each in fields(Summary))}


def test_every_option_on_the_page_exists() -> None:
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert len(options) > 10
    assert options <= {*GRAMMAR["simulate"][1]}
