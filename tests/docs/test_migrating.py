"""docs/migrating.md names commands and options that gpq has."""

from __future__ import annotations

import re

from gpq.cli.app import names
from gpq.options import sbatch
from gpq.options.completion_data import GRAMMAR
from tests.cli.conftest import ROOT

PAGE = (ROOT / "docs" / "migrating.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The pieces of code in each second cell of the table below the heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    return [re.findall(r"`([^`]+)`", ours) for _, ours in lines]


def test_the_table_for_slurm_names_existing_commands_and_options() -> None:
    table = rows("Slurm to gpq")
    assert len(table) > 16
    for code in (code for row in table for code in row):
        words = code.split()
        if words[0] == "gpq":
            assert words[1] in names(), code
        known = GRAMMAR["edit" if "edit" in words else "submit"][1]
        options = [word.partition("=")[0] for word in words if word[:2] == "--" and word != "--"]
        assert all(option in known or sbatch.name_of(option) for option in options), code


def test_the_table_for_task_spooler_names_existing_commands_and_options() -> None:
    table = rows("Move from task-spooler")
    assert len(table) > 6
    for code in (code for row in table for code in row):
        _, command, *words = code.split()
        known = GRAMMAR[command][1]
        assert all(word in known for word in words if word.startswith("-") and word != "--"), code
