"""Prints how dense the code of gpq and its agent is, next to the figures of well-kept Python
projects. Exits with 1 if a ratchet has risen.

Runs as `make measure-code`. Complexity is McCabe's cyclomatic complexity. Each `and` or `or`, each
part of a comprehension, each conditional expression and each `assert` counts as a branch. Closures
count in the function around them.

A ratchet is a figure that only falls. `--record` writes those that fell. One that must rise for a
feature is raised by hand in benchmarks/ratchets.json, in the commit that says why.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
RATCHETS = ROOT / "benchmarks" / "ratchets.json"
FOLDERS = ("gpq", "agent/gpq_agent")
GENERATED = {"completion_data.py"}
COMPLEX = 10
COLUMNS = 100
# A function is a verb or a noun. These do not end in -ed, or look as if they were participles.
IRREGULAR = {
    "begun", "born", "bought", "bound", "broken", "brought", "built", "caught", "chosen",
    "done", "drawn", "driven", "fallen", "fought", "found", "frozen", "given", "gone", "got",
    "grown", "heard", "held", "hidden", "hung", "kept", "laid", "led", "lent", "lit", "lost",
    "made", "meant", "met", "paid", "proven", "risen", "said", "seen", "sent", "shown", "shut",
    "slept", "sold", "sought", "spent", "spoken", "stood", "stuck", "swept", "taken", "taught",
    "thought", "told", "torn", "won", "worn", "wound", "written",
}  # fmt: skip
NO_PARTICIPLES = {
    "embed",
    "exceed",
    "feed",
    "need",
    "proceed",
    "reseed",
    "seed",
    "speed",
    "succeed",
}
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


def decisions(function: ast.AST) -> int:
    """Branches, without lambdas."""
    return sum(branches(node) for node in ast.walk(function) if not isinstance(node, ast.Lambda))


def code_lines(function: ast.AST, lines: list[str]) -> int:
    """Lines of a function that are neither blank nor a comment nor part of a docstring."""
    text: set[int] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = node.body[0]
            if isinstance(first, ast.Expr) and ast.get_docstring(node) is not None:
                text.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    begin, end = getattr(function, "lineno", 1), getattr(function, "end_lineno", 1)
    numbers = (number for number in range(begin, end + 1) if number not in text)
    return sum(bool(lines[number - 1].split("#")[0].strip()) for number in numbers)


def is_participle(name: str) -> bool:
    """Is the name of a function one bare participle?"""
    word = name.strip("_")
    regular = word.endswith("ed") and word not in NO_PARTICIPLES
    return "_" not in word and (regular or word in IRREGULAR)


def used_once(tree: ast.AST) -> list[str]:
    """The private functions and methods that their module names in exactly one place."""
    uses: Counter[str] = Counter()
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            uses[node.id] += 1
        elif isinstance(node, ast.Attribute):
            uses[node.attr] += 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
    private = (name for name in names if name.startswith("_") and not name.startswith("__"))
    return [name for name in private if uses[name] == 1]


def sources(folder: str) -> Iterator[str]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        if path.name not in GENERATED:
            yield path.read_text()


def ratchets() -> dict[str, float]:
    """The figures that only fall. Private functions with one use are those of gpq alone."""
    lines = branching = body = count = participles = single = of_gpq = 0
    for folder in FOLDERS:
        for text in sources(folder):
            tree, rows = ast.parse(text), text.splitlines()
            names = [
                node.name
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            lines += len(rows)
            count += len(names)
            participles += sum(map(is_participle, names))
            if folder == "gpq":
                single += len(used_once(tree))
                of_gpq += len(names)
            for function in functions(tree):
                branching += decisions(function)
                body += code_lines(function, rows)
    return {
        "lines": lines,
        "decisions per 100 code lines of function": round(100 * branching / body, 1),
        "private functions with one use, % of gpq's": round(100 * single / of_gpq, 1),
        "functions named by a lone participle, %": round(100 * participles / count, 1),
    }


def risen(figures: Mapping[str, float], limits: Mapping[str, float]) -> list[str]:
    """A line for each figure above its limit."""
    return [
        f"{name}: {figure:,}, and the ratchet is {limits[name]:,}"
        for name, figure in figures.items()
        if figure > limits[name]
    ]


def show_density() -> None:
    """Prints the table of gpq and its peers."""
    lines = long = ternaries = vague = 0
    sizes: list[tuple[int, int]] = []  # complexity and lines of each function
    for text in (text for folder in FOLDERS for text in sources(folder)):
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
    print(f"{'':42}{'gpq':>14}  peers")
    for name, figure in figures.items():
        print(f"{name:42}{figure:>14}  {PEERS[name]}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="write the ratchets that fell")
    options = parser.parse_args()
    figures, limits = ratchets(), json.loads(RATCHETS.read_text())
    if options.record:
        limits = {name: min(figure, limits[name]) for name, figure in figures.items()}
        RATCHETS.write_text(json.dumps(limits, indent=2) + "\n")
    show_density()
    print(f"\n{'':42}{'gpq':>14}  ratchet")
    for name, figure in figures.items():
        print(f"{name:42}{figure:>14,}  {limits[name]:,}")
    faults = risen(figures, limits)
    for fault in faults:
        print(f"a ratchet has risen: {fault}", file=sys.stderr)
    if faults:
        print(
            "hint: delete or rename something. If a feature needs it, raise the figure in"
            " benchmarks/ratchets.json and say why in the commit message",
            file=sys.stderr,
        )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
