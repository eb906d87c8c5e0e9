"""The pages for teams and monitoring contain valid pieces of config.toml, and name every word of `--notify-on`."""

from __future__ import annotations

import re

import pytest

from gpq.config import parse
from gpq.outward import WORDS
from gpq.policies.registry import POLICIES
from tests.cli.conftest import ROOT

DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", ["teams", "monitoring"])
def test_excerpts_of_the_file_are_valid(page: str) -> None:
    pieces = re.findall(r"```toml\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    assert pieces
    for piece in pieces:
        parse(piece, policies=POLICIES)


def test_every_word_of_notify_on_has_a_row() -> None:
    text = (DOCS / "monitoring.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z]+)` \|", text, re.MULTILINE) == list(WORDS)
