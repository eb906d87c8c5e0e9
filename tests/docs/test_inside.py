"""The page about gpq's inside names every room, and every room has a contract."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT

INSIDE = (ROOT / "docs" / "internals" / "index.md").read_text()


PACKAGES = (ROOT / "gpq", ROOT / "agent" / "gpq_agent")
ROOMS = sorted({path.parent for package in PACKAGES for path in package.rglob("__init__.py")} - {*PACKAGES})


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_every_room_has_a_contract(room: Path) -> None:
    """A room has a docstring that names only existing files."""
    contract = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    assert len(contract.split()) >= 8
    names = re.findall(r"`([a-z_/]+\.py)`", contract)
    assert [name for name in names if not (room / name).is_file()] == []


def test_every_room_is_in_the_tour() -> None:
    tour = INSIDE.partition("| Room | What it owns |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z_/]+)`", tour))
    rooms = {str(room.relative_to(ROOT / "gpq")) for room in ROOMS if room.is_relative_to(ROOT / "gpq")}
    assert {room for room in rooms if room not in named and room.partition("/")[0] not in named} == {"core"}
