"""The documents name what there is: every policy, every key of the file, every room."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from gpq.cli.shared.commands import COMMANDS
from gpq.config import FileConfig, NodeConfig, parse
from gpq.options.completion_data import GRAMMAR
from gpq.options.directives import sbatch
from gpq.policies.registry import POLICIES
from gpq.sim.replay.outcomes import Summary
from gpq.views import accounts, comparison
from tests.cli.conftest import ROOT

README = (ROOT / "README.md").read_text()
EXAMPLE, *PIECES = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
INSIDE = (ROOT / "docs" / "internals" / "index.md").read_text()


def test_the_table_of_policies_is_the_registrys() -> None:
    rows = [
        f"| `{name}` | {each.sentence} | {'gang' if each.gang else 'elastic'} |\n" for name, each in POLICIES.items()
    ]
    assert "|---|---|---|\n" + "".join(rows) + "\n" in README


@pytest.mark.parametrize("key", [each.name for kind in (FileConfig, NodeConfig) for each in fields(kind)])
def test_every_key_of_the_file_is_in_the_example(key: str) -> None:
    assert re.search(rf"^(# )?{key} = |^\[{key}[.\]]", EXAMPLE, re.MULTILINE), f"README.md says nothing of {key}"


PACKAGES = (ROOT / "gpq", ROOT / "agent" / "gpq_agent")
ROOMS = sorted({path.parent for package in PACKAGES for path in package.rglob("__init__.py")} - {*PACKAGES})


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_every_room_has_a_contract(room: Path) -> None:
    """A docstring, which names no file that is not there, and at most 15 files."""
    contract = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    assert len(contract.split()) >= 8
    names = re.findall(r"`([a-z_/]+\.py)`", contract)
    assert [name for name in names if not (room / name).is_file()] == []
    assert len(list(room.glob("*.py"))) <= 15


def test_every_room_is_in_the_tour() -> None:
    tour = INSIDE.partition("| Room | What it owns |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z_/]+)`", tour))
    rooms = {str(room.relative_to(ROOT / "gpq")) for room in ROOMS if room.is_relative_to(ROOT / "gpq")}
    assert {room for room in rooms if room not in named and room.partition("/")[0] not in named} == {"core"}


def test_every_column_of_a_simulation_is_explained() -> None:
    section = README.partition("## Simulator")[2].partition("\n## ")[0]
    told = {word for line in section.splitlines() for word in re.split(r"[,|]", line.replace("`", ""))}
    named = {word.strip() for word in told}
    assert {column.title for column in comparison.columns([])} <= named
    assert {"cluster", *(each.name for each in fields(Summary))} <= named


def test_other_pieces_of_the_file_are_right() -> None:
    for piece in PIECES:
        parse(piece, policies=POLICIES)


def test_every_figure_of_history_and_report_is_explained() -> None:
    section = README.partition("## Who had what")[2].partition("\n## ")[0]
    told = {word.strip() for line in section.splitlines() for word in re.split(r"[,|]", line)}
    plain = {
        "USER",
        "JOB",
        "NAME",
        "OWNER",
        "JOBS",
        "ID",
        "STATE",
        "EXIT",
        "SUBMITTED",
        "ENDED",
        "RAN",
        "GPUS",
        "REASON",
    }
    columns = [*accounts.report_columns([], "user"), *accounts.history_columns([])]
    assert {column.title for column in columns} - plain <= told


def test_what_the_example_sets_are_the_defaults() -> None:
    assert parse(EXAMPLE, policies=POLICIES) == FileConfig()


def test_what_the_table_for_slurm_names_is_there() -> None:
    section = README.partition("## From Slurm, and from task-spooler\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `") or line.startswith("| the")]
    assert len(rows) > 12
    for _, ours in rows:
        for code in re.findall(r"`([^`]+)`", ours):
            words = code.split()
            if words[0] == "gpq":
                assert words[1] in COMMANDS, code
            known = GRAMMAR["edit" if "edit" in words else "submit"][1]
            options = [word.partition("=")[0] for word in words if word[:2] == "--" and word != "--"]
            assert all(option in known or sbatch.name_of(option) for option in options), code
