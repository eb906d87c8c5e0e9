"""docs/configuration.md lists every key of the file, and its example shows the defaults."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from gpq import outward
from gpq.config import FileConfig, NodeConfig, parse
from gpq.policies.registry import POLICIES
from tests.cli.conftest import ROOT
from tests.generated import pages

PAGE = (ROOT / "docs" / "configuration.md").read_text()
EXAMPLE, *PIECES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
KEYS = [each.name for kind in (FileConfig, NodeConfig) for each in fields(kind)]


@pytest.mark.parametrize("key", KEYS)
def test_the_example_has_every_key(key: str) -> None:
    assert re.search(rf"^(# )?{key} = |^\[{key}[.\]]", EXAMPLE, re.MULTILINE), f"the example lacks {key}"


def test_the_example_sets_the_defaults() -> None:
    assert parse(EXAMPLE, policies=POLICIES) == FileConfig()


def test_the_other_examples_are_valid() -> None:
    assert len(PIECES) > 3
    for piece in PIECES:
        parse(piece, policies=POLICIES)


def test_keys_in_comments_of_the_example_are_valid() -> None:
    text = re.sub(r"^# (?=[a-z_]+ = |\")", "", EXAMPLE, flags=re.MULTILINE).replace('"local" ', '"ssh" ')
    config = parse(text, policies=POLICIES)
    assert config.metrics
    assert config.accept


@pytest.mark.parametrize("path", pages.TABLES)
def test_the_tables_are_up_to_date(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert (ROOT / path).read_text() == pages.tables()[path], "run make completions"


def test_every_field_is_explained_in_at_least_one_sentence() -> None:
    for kind in (FileConfig, NodeConfig):
        rows = pages.keys(kind).splitlines()[2:]
        assert len(rows) == len(fields(kind))
        for row in rows:
            meaning = row.split(" | ")[-1]
            assert len(meaning.split()) > 3, row


def test_the_page_explains_every_setting_of_notify() -> None:
    section = PAGE.partition("## Notifications")[2].partition("\n## ")[0]
    for key in (*outward.SETTINGS, *outward.WORDS):
        assert f"`{key}`" in section
