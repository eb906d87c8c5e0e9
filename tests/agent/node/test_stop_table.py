"""Whatever runs above a program or works for it, the program gets its signal and its grace period to save."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.node import stop_table
from tests.agent.node.harness import NodeAgent
from tests.agent.node.stop_table import Cell


@pytest.mark.parametrize("name", stop_table.SIGNALS)
def test_every_cell_of_the_stop_table_is_saved(agent: Callable[..., NodeAgent], tmp_path: Path, name: str) -> None:
    rows = itertools.product(stop_table.LAUNCHERS, stop_table.WORKERS)
    cells = [Cell(launcher, name, workers) for launcher, workers in rows]
    cells.append(Cell("torchrun", name, "spawn"))  # it sends TERM to all workers of a rank
    found = stop_table.outcomes(agent("--slots", "100"), tmp_path, cells)
    assert found == dict.fromkeys(cells, "saved")
