"""docs/troubleshooting.md quotes what the program prints today: the sources contain the words of each heading."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.cli.conftest import ROOT
from tests.words import texts
from tests.words.messages import VALUE, literals

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
SECTIONS = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
SYMPTOMS = [section.partition("`")[2].partition("`")[0] for section in SECTIONS]
# Capital words that stand for themselves. All others are placeholders for values.
OWN_WORDS = {"GPU", "CPU", "TERM", "KILL", "MIG", "CUDA", "MB"}


@cache
def said() -> list[str]:
    """Every string literal of the sources, with one word in place of each value."""
    found = [text for path in texts.sources() for _, text in literals(ast.parse(path.read_text(encoding="utf-8")))]
    return [re.sub(r"\{[^{}]*\}|%s", VALUE, text) for text in found]


def as_pattern(symptom: str) -> re.Pattern[str]:
    parts = re.split(r"(\b[A-Z]{2,}\b)", symptom)
    pattern = "".join(".+" if part.isupper() and part not in OWN_WORDS else re.escape(part) for part in parts)
    return re.compile(pattern, re.DOTALL)


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_the_program_prints_each_symptom(symptom: str) -> None:
    pattern = as_pattern(symptom)
    assert any(pattern.search(text) for text in said()), f"no message of gpq says: {symptom}"


def test_there_are_at_least_twenty_symptoms_and_no_duplicates() -> None:
    assert len(SYMPTOMS) >= 20
    assert len(SYMPTOMS) == len(set(SYMPTOMS))


@pytest.mark.parametrize("section", SECTIONS, ids=SYMPTOMS)
def test_each_symptom_links_to_a_page_that_says_more(section: str) -> None:
    assert section.startswith(("`", "gpq `"))  # code that begins with gpq is a command
    assert re.search(r"\]\([a-z/-]+\.md[)#]", section)


def test_a_symptom_that_the_program_never_prints_is_found() -> None:
    assert not any(as_pattern("waits for the tide").search(text) for text in said())
    assert as_pattern("job JOB ends at TIME").search("job x ends at x")
