"""The messages in Python sources: string literals that a person may come to read."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

# What a placeholder of an f-string or of a template counts as: a word of one syllable.
VALUE = "x"
MESSAGE_WORDS = 3


def literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each string literal that is not a docstring, an f-string as one text."""
    skipped = {id(node) for node in docstring_nodes(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in ast.walk(node) if part is not node)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(_piece(part) for part in node.values)


def _piece(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    return VALUE


def docstring_nodes(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0].value if node.body and isinstance(node.body[0], ast.Expr) else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first


def is_message(text: str) -> bool:
    """At least three words between blanks, so no name, path, key or format."""
    words = re.findall(r"(?<!\S)[A-Za-z][a-z']*(?=[\s,.:;?!]|$)", text)
    return len(words) >= MESSAGE_WORDS


def messages(path: Path) -> Iterator[tuple[int, str]]:
    for line, text in literals(ast.parse(path.read_text(encoding="utf-8"))):
        if is_message(text):
            yield line, text


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in docstring_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        yield node.lineno, str(node.value)


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Comments, neighbouring lines of one column as one text."""
    block: list[str] = []
    start, last, column = 0, 0, 0
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("#:! ").rstrip()
        line, at = token.start
        if block and line == last + 1 and at == column:
            block.append(text)
        else:
            if block:
                yield start, " ".join(block)
            block, start, column = [text], line, at
        last = line
    if block:
        yield start, " ".join(block)
