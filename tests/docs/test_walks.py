"""Every stop of the walks through the code exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STOPS = sorted(set(re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", (ROOT / "docs/internals/walks.md").read_text())))


def defined(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from defined(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.Assign):
            yield from (prefix + target.id for target in node.targets if isinstance(target, ast.Name))


@pytest.mark.parametrize(("path", "name"), STOPS)
def test_each_stop_of_a_walk_exists(path: str, name: str) -> None:
    package = "agent/gpq_agent" if path.startswith(("node/", "train/")) else "gpq"
    source = ROOT / package / path
    assert source.exists()
    assert not name or name in set(defined(ast.parse(source.read_text()).body))
