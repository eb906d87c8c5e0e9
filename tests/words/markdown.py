"""The prose of a Markdown document: paragraphs, list items and cells of tables, without code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token

# What a piece of code counts as in a sentence: one word of one syllable.
CODE = "X"
_PARSER = MarkdownIt("commonmark", {"html": False}).enable("table")
_ROLE = re.compile(r"\{[a-z:-]+\}(?=`)")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each paragraph, list item, heading and cell of a table."""
    line = 0
    for token in _PARSER.parse(_ROLE.sub("", _without_comments(text))):
        if token.map:
            line = token.map[0] + 1
        if token.type == "inline":
            yield line, _plain(token)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Whole sentences only: no headings and no cells of tables, which are short by nature."""
    inside = ""
    line = 0
    for token in _PARSER.parse(_ROLE.sub("", _without_comments(text))):
        if token.map:
            line = token.map[0] + 1
        if token.type in ("heading_open", "th_open", "td_open"):
            inside = token.type
        elif token.type in ("heading_close", "th_close", "td_close"):
            inside = ""
        elif token.type == "inline" and not inside:
            yield line, _plain(token)


def _without_comments(text: str) -> str:
    return re.sub(r"<!--.*?-->", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)


def _plain(token: Token) -> str:
    pieces = []
    for child in token.children or ():
        if child.type == "text":
            pieces.append(child.content)
        elif child.type == "code_inline":
            pieces.append(CODE)
        elif child.type in ("softbreak", "hardbreak"):
            pieces.append(" ")
    return "".join(pieces)
