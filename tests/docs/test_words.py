"""Texts for people are in plain English: short sentences, no semicolons, no private dialect."""

from __future__ import annotations

import pytest

from tests.words import reading, texts

KINDS = texts.kinds(inside=False)
MEDIAN_WORDS = 16
READING_EASE = 55


@pytest.mark.parametrize("kind", KINDS)
def test_every_sentence_is_plain(kind: str) -> None:
    faults = [
        f"{passage.path}:{passage.line}: {fault}" for passage in KINDS[kind] for fault in texts.faults(passage.text)
    ]
    assert faults == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_reads_easily(kind: str) -> None:
    figures = reading.figures(passage.text for passage in KINDS[kind])
    assert figures.median <= MEDIAN_WORDS
    assert figures.ease >= READING_EASE
    assert figures.semicolons == 0


def test_the_rules_find_the_faults_they_are_made_for() -> None:
    assert list(texts.faults("A lock sees to it that no two jobs get the same GPU.")) != []
    assert list(texts.faults("gpq starts the job; it then waits.")) != []
    assert list(texts.faults("word " * 31)) != []
    assert list(texts.faults("A lock keeps two jobs from using the same GPU.")) == []
