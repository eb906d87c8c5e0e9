"""The values of `--sweep NAME=VALUES`: texts between commas, and ranges of whole numbers. Brackets
and quotes keep a text together. Ambiguous values are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpq.errors import UsageError

MOST = 10_000
QUOTES = "\"'"
CLOSING = {"(": ")", "[": "]", "{": "}"}
QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
RANGE = re.compile(r"(-?)(\d{1,18})\.\.(-?)(\d{1,18})")
BETWEEN = re.compile(r"[,:=;/()\[\]{}]")  # the parts of a value, such as the folders of a path


def read(text: str, option: str) -> list[str]:
    """Each value, in order. Raises UsageError, which names `option`."""
    return [value for piece in _pieces(text, option) for value in _values(piece, option)]


def _pieces(text: str, option: str) -> Iterator[str]:
    """The texts between commas outside of brackets and quotes, without surrounding blanks."""
    quote, closing, begin = "", [], 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in QUOTES:
            quote = letter
        elif letter in CLOSING:
            closing.append(CLOSING[letter])
        elif letter in CLOSING.values():
            if not closing or closing.pop() != letter:
                raise UsageError(f"{option}: {letter} has no opening bracket", _as_it_is(letter))
        elif letter == "," and not closing:
            yield text[begin:place].strip()
            begin = place + 1
    if quote:
        raise UsageError(f"{option}: a {quote} is not closed", _as_it_is(quote))
    if closing:
        raise UsageError(f"{option}: a {closing[-1]} is missing", _as_it_is(closing[-1]))
    yield text[begin:].strip()


def _as_it_is(letter: str) -> str:
    quote = QUOTES[letter == QUOTES[0]]
    return f"close it, or put a value that contains {letter} in quotes: {quote}a{letter}b{quote}"


def _values(piece: str, option: str) -> list[str]:
    if not piece:
        raise UsageError(
            f"{option}: a value is empty", 'remove the comma, or write "" for an empty value'
        )
    if piece[0] in QUOTES:
        return [_unquote(piece, option)]
    bounds = RANGE.fullmatch(piece)
    if bounds:
        return _numbers(bounds, option)
    bare = QUOTED.sub("", piece)
    if any(".." in part and part.strip() != ".." for part in BETWEEN.split(bare)):
        # `../data` is a path
        raise UsageError(
            f"{option}: {piece[:80]} is not a range of whole numbers",
            f'list the values, as in 0.1,0.2,0.3, or quote a single value: "{piece[:80]}"',
        )
    return [piece]


def _unquote(piece: str, option: str) -> str:
    end = piece.index(piece[0], 1)
    if end + 1 < len(piece):
        raise UsageError(
            f"{option}: {piece[end + 1 :][:80]} follows a value in quotes",
            "put a comma after the closing quote",
        )
    return piece[1:end]


def _numbers(bounds: re.Match[str], option: str) -> list[str]:
    """Both ends and everything between, padded to their width if one starts with a zero."""
    first, last = bounds[2], bounds[4]
    low, high = int(bounds[1] + first), int(bounds[3] + last)
    if high < low:
        raise UsageError(
            f"{option}: range end is below its start in {bounds[0]}",
            f"did you mean {bounds[3]}{last}..{bounds[1]}{first}?",
        )
    padded = any(digits.startswith("0") and len(digits) > 1 for digits in (first, last))
    width = max(len(first), len(last))
    if padded and len(first) != len(last):
        raise UsageError(
            f"{option}: the ends of {bounds[0]} have different widths",
            f"use {bounds[1]}{first.zfill(width)}..{bounds[3]}{last.zfill(width)}, or"
            f" {low}..{high} without zeros",
        )
    if high - low >= MOST:
        raise UsageError(f"{option} has more than {MOST} jobs", "submit it in parts")
    return [_zero_padded(number, width if padded else 1) for number in range(low, high + 1)]


def _zero_padded(number: int, width: int) -> str:
    return f"{'-' if number < 0 else ''}{abs(number):0{width}d}"
