"""The code in the documents: fenced blocks, and gpq commands in running text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from tests.words.texts import ROOT, documents

_PARSER = MarkdownIt("commonmark").enable("table")
# Words that end a command in a shell.
_ENDS = {"|", "||", "&&", ";", ">", ">>", "<", "&", "#"}
# Marks a form that nobody types: a placeholder for several words.
_FORM = re.compile(r"\.\.\.|…")


@dataclass(frozen=True)
class Block:
    """A fence: its place, its language and its text."""

    page: str
    line: int
    language: str
    text: str


def pages() -> list[Path]:
    """Every document about today's gpq. Not messages.md, which shows commands that gpq refuses."""
    return [path for path in documents() if path.name not in ("CHANGELOG.md", "messages.md")]


def blocks(path: Path) -> Iterator[Block]:
    for token in _PARSER.parse(path.read_text(encoding="utf-8")):
        if token.type == "fence" and token.map:
            language = token.info.split()[0] if token.info else ""
            yield Block(str(path.relative_to(ROOT)), token.map[0] + 1, language, token.content)


def commands(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each gpq command that a page shows but does not run."""
    for token in _PARSER.parse(path.read_text(encoding="utf-8")):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "fence" and token.info == "console":
            typed = (text[2:] for text in token.content.splitlines() if text.startswith("$ gpq "))
            yield from ((line, text) for text in typed)
        for child in token.children or ():
            if child.type == "code_inline" and child.content.startswith("gpq "):
                yield line, child.content


def words(command: str) -> list[str] | None:
    """The words of `command`, up to the first that belongs to its shell. None for a form with `...`."""
    if _FORM.search(command):
        return None
    typed = shlex.split(command, comments=True)
    ends = [number for number, word in enumerate(typed) if word in _ENDS]
    return typed[: ends[0]] if ends else typed
