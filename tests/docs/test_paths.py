"""Files that the pages for contributors name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.words.texts import ROOT

PAGES = [*sorted((ROOT / "docs" / "internals").glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md"]
# A path with a folder.
PATH = re.compile(r"`((?:[\w.*-]+/)+[\w.*-]+\.(?:py|md|toml|json))`")
BELOW = ("", "gpq", "agent", "agent/gpq_agent", "tests", "tests/agent")


def named() -> list[tuple[str, str]]:
    found = {(str(page.relative_to(ROOT)), path) for page in PAGES for path in PATH.findall(page.read_text())}
    return sorted((page, path) for page, path in found if "NAME" not in Path(path).name)


@pytest.mark.parametrize(("page", "path"), named())
def test_a_file_that_a_page_names_exists(page: str, path: str) -> None:
    assert any(list((ROOT / folder).glob(path)) for folder in BELOW)
