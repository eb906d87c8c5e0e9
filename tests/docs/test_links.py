"""Links between the documents lead to an existing file, and to an existing heading in it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.words.texts import ROOT, documents

PARSER = MarkdownIt("commonmark").enable("table")
# Pages of the site that include a document from the root, so that pages can link to it.
INCLUDED = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


def links(path: Path) -> Iterator[tuple[int, str]]:
    for token in PARSER.parse(path.read_text(encoding="utf-8")):
        line = token.map[0] + 1 if token.map else 0
        for child in token.children or ():
            target = child.attrGet("href") or child.attrGet("src")
            if target and not re.match(r"[a-z]+:", str(target)):
                yield line, str(target)


def anchors(path: Path) -> set[str]:
    """The anchors of the headings, as git hosts and the site generate them."""
    tokens = PARSER.parse(path.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", _text(inline).lower()).strip().replace(" ", "-")
        for opening, inline in itertools.pairwise(tokens)
        if opening.type == "heading_open"
    }


def _text(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())


ALL = [(str(path.relative_to(ROOT)), line, target) for path in documents() for line, target in links(path)]


@pytest.mark.parametrize(("document", "line", "target"), ALL)
def test_a_link_leads_somewhere(document: str, line: int, target: str) -> None:
    file, _, anchor = target.partition("#")
    path = ((ROOT / document).parent / file).resolve() if file else ROOT / document
    assert path.exists(), f"{document}:{line}"
    if anchor:
        included = INCLUDED.get(path.name) if path.parent.name == "docs" else None
        assert anchor in anchors(ROOT / included if included else path), f"{document}:{line}"
