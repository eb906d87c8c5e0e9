"""The code contains nothing that a reader must take apart first."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.cli.conftest import ROOT


def nested(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.IfExp) and sum(isinstance(part, ast.IfExp) for part in ast.walk(node)) > 1:
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_no_conditional_expression_contains_another() -> None:
    modules = [path for folder in ("gpq", "agent/gpq_agent") for path in (ROOT / folder).rglob("*.py")]
    assert [place for path in modules for place in nested(path)] == []
