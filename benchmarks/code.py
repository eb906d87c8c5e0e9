"""Prints how dense the code of gpq and its agent is, next to the figures of well-kept Python
projects.

Runs as `make measure-code`. Complexity is McCabe's cyclomatic complexity. Each `and` or `or`, each
part of a comprehension, each conditional expression and each `assert` counts as a branch. Closures
count in the function around them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("gpq", "agent/gpq_agent")
GENERATED = {"completion_data.py"}
COMPLEX = 10
COLUMNS = 100
# Names that do not say what they hold. Peers bind 0 to 0.9 of them in 1,000 lines.
VAGUE = {
    *(
        "each",
        "one",
        "ones",
        "other",
        "others",
        "this",
        "that",
        "these",
        "those",
        "it",
        "who",
        "some",
        "such",
        "rest",
    ),
    *(
        "found",
        "said",
        "told",
        "known",
        "wanted",
        "held",
        "made",
        "given",
        "asked",
        "taken",
        "seen",
        "kept",
        "left",
    ),
    *(
        "named",
        "shown",
        "sent",
        "got",
        "had",
        "done",
        "gone",
        "meant",
        "used",
        "noted",
        "thought",
        "lost",
        "chosen",
    ),
}
# The range of the figures of httpx, h11, import-linter, sqlite-utils, pluggy, distributed and
# dstack.
PEERS = {
    "complexity per 100 lines of function": "19 to 24",
    "functions over complexity 10, %": "1.8 to 6.1, sqlite-utils 15.6",
    "conditional expressions per 1,000 lines": "1 to 11",
    "lines over 100 columns": "0 to 0.8%",
    "vague names per 1,000 lines": "0 to 0.9",
}


def branches(node: ast.AST) -> int:
    """The number of branches that `node` adds, without those of its children."""
    match node:
        case (
            ast.If()
            | ast.IfExp()
            | ast.Assert()
            | ast.Lambda()
            | ast.ExceptHandler()
            | ast.match_case()
        ):
            return 1
        case ast.For() | ast.AsyncFor() | ast.While():
            return 1 + bool(node.orelse)
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.comprehension():
            return 1 + len(node.ifs)
        case _:
            return 0


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods that are not inside another function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        else:
            yield from functions(node)


def bound_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def main() -> None:
    lines = long = ternaries = vague = 0
    sizes: list[tuple[int, int]] = []  # complexity and lines of each function
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        if path.name in GENERATED:
            continue
        text = path.read_text()
        tree = ast.parse(text)
        lines += len(text.splitlines())
        long += sum(len(line) > COLUMNS for line in text.splitlines())
        ternaries += sum(isinstance(node, ast.IfExp) for node in ast.walk(tree))
        vague += sum(name in VAGUE for name in bound_names(tree))
        for node in functions(tree):
            body = len((ast.get_source_segment(text, node) or "").splitlines())
            sizes.append((1 + sum(map(branches, ast.walk(node))), body))
    complexity, body = (sum(column) for column in zip(*sizes, strict=True))
    figures = {
        "complexity per 100 lines of function": f"{100 * complexity / body:.1f}",
        "functions over complexity 10, %": (
            f"{100 * sum(c > COMPLEX for c, _ in sizes) / len(sizes):.1f}"
        ),
        "conditional expressions per 1,000 lines": f"{1000 * ternaries / lines:.1f}",
        "lines over 100 columns": f"{long} ({100 * long / lines:.1f}%)",
        "vague names per 1,000 lines": f"{1000 * vague / lines:.1f}",
    }
    print(f"{lines} lines, {len(sizes)} functions\n")
    print(f"{'':42}{'gpq':>14}  peers")
    for name, figure in figures.items():
        print(f"{name:42}{figure:>14}  {PEERS[name]}")


if __name__ == "__main__":
    main()
