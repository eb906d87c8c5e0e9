"""Sentences, words and syllables, and what they say of how easily a text reads."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import pyphen

LONG = 30  # words: a longer sentence is to be cut in two
_HYPHENS = pyphen.Pyphen(lang="en_GB", left=1, right=1)
# The name of the program begins a sentence in lower case.
_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[`]?(?:[A-Z0-9`]|gpq\b))")
_ABBREVIATIONS = re.compile(r"\b(?:e\.g|i\.e|et al|vs|cf|etc|approx)\.")
_WORD = re.compile(r"[A-Za-z0-9](?:[\w'’.@/+-]*\w)?")
SEMICOLON = re.compile(r";(?=\s|$)")


@dataclass(frozen=True)
class Figures:
    """Of a set of texts: how many words, and how hard they are."""

    words: int
    sentences: int
    median: float  # words of a sentence
    long: int  # sentences of more than LONG words
    semicolons: int
    ease: float  # Flesch, 1948: 0 is a statute, 60 plain English, 100 a primer


def sentences(text: str) -> list[str]:
    """The sentences of a paragraph. A colon ends one where a list or a capital follows."""
    calm = _ABBREVIATIONS.sub(lambda match: match[0].replace(".", ""), " ".join(text.split()))
    return [piece for piece in _END.split(calm) if words(piece)]


def words(text: str) -> list[str]:
    return _WORD.findall(text)


def syllables(word: str) -> int:
    """By the hyphenation patterns of TeX: one more than the places where it may be broken."""
    return len(_HYPHENS.positions(word.lower())) + 1


def figures(texts: Iterable[str]) -> Figures:
    paragraphs = list(texts)
    parts = [part for paragraph in paragraphs for part in sentences(paragraph)]
    lengths = [len(words(part)) for part in parts]
    every_word = [word for part in parts for word in words(part)]
    sounds = sum(syllables(word) for word in every_word)
    return Figures(
        words=len(every_word),
        sentences=len(parts),
        median=statistics.median(lengths),
        long=sum(length > LONG for length in lengths),
        semicolons=sum(len(SEMICOLON.findall(paragraph)) for paragraph in paragraphs),
        ease=206.835 - 1.015 * len(every_word) / len(parts) - 84.6 * sounds / len(every_word),
    )
