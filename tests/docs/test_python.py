"""The page about Python has every name of `gpq.__all__`, and only names that exist."""

from __future__ import annotations

import re

import gpq
from tests.cli.conftest import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text()


def test_every_name_is_on_the_page() -> None:
    generated = re.findall(r"^\.\. auto(?:function|class):: gpq\.(\w+)$", PAGE, re.MULTILINE)
    types = re.findall(r"^\| `(Word|Duration|Gpus|Moment|Selector)` \|", PAGE, re.MULTILINE)
    assert sorted([*generated, *types, "errors"]) == sorted(gpq.__all__)


def test_every_error_is_on_the_page() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Errors")[2].partition("\n## ")[0], re.MULTILINE)
    assert set(named) == {kind.__name__ for kind in gpq.errors.BY_CODE.values()}


def test_the_first_tables_name_every_function_and_method() -> None:
    head = PAGE.partition("\n## ")[0]
    methods = {name for name, value in vars(gpq.Job).items() if callable(value) and not name.startswith("_")}
    functions = {name for name in gpq.__all__ if name.islower() and name != "errors"}
    assert functions | methods - {"log_pieces"} <= set(re.findall(r"`(\w+)`", head))
