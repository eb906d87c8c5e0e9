"""Words of `gpq submit` -> the options and flags of sbatch in them. Imports no typer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gpq.rpc.submit_table import BY_WORD, Option

if TYPE_CHECKING:  # a plain command does not need it
    from gpq.options import sbatch

HERE = "the command line"


class Parsed(msgspec.Struct):
    """`fields` of SubmitTexts and of HOW that were given, `pairs` of sbatch, and the words after
    them."""

    fields: dict[str, Any] = {}
    words: list[str] = []
    black_box: bool = False  # the words were after `--`
    pairs: list[tuple[str, str]] = []


def parse(argv: Sequence[str]) -> Parsed | None:
    """None if typer must handle the options: help, mistakes."""
    parsed = Parsed()
    words = list(argv)
    while words:
        if words[0] == "--" or not words[0].startswith("-") or words[0] == "-":
            parsed.black_box = words[0] == "--"
            parsed.words = words[parsed.black_box :]
            break
        count = _own(parsed.fields, words)
        if count is None:
            count = _foreign(parsed.pairs, words)
        if not count:
            return None
        del words[:count]
    return parsed


def plain(argv: Sequence[str], pairs: list[sbatch.Pair]) -> list[str]:
    """The words without flags of sbatch, which go to `pairs`, up to a word that is not an option,
    or a wrong one."""
    words, gpq_words = list(argv), []
    while words and words[0] != "--" and words[0].startswith("-"):
        count = _own({}, words)
        if count:
            gpq_words += words[:count]
        elif count is not None or not (count := _foreign(pairs, words)):
            break
        del words[:count]
    return [*gpq_words, *words]


def _own(fields: dict[str, Any], words: list[str]) -> int | None:
    """How many of the words were an option of gpq. 0 for a wrong one, None if there is none."""
    name, assigned, value = words[0].partition("=")
    attached = not words[0].startswith("--") and len(words[0]) > 2  # -g2
    if attached:
        name, assigned, value = words[0][:2], "=", words[0][2:]
    option = BY_WORD.get(name)
    if option is None:
        return None
    if option.kind == "flag":
        fields[option.name] = True
        return 0 if assigned else 1
    if not assigned and len(words) < 2:
        return 0
    if not _store(fields, option, value if assigned else words[1]):
        return 0
    return 1 if assigned else 2


def _foreign(pairs: list[sbatch.Pair], words: list[str]) -> int:
    """How many of the words were a flag of sbatch, written in full."""
    from gpq.options import sbatch

    name = sbatch.name_of(words[0])
    if not name or (words[0].startswith("--") and words[0][2:].partition("=")[0] != name):
        return 0
    alone = (
        "=" in words[0]
        or not sbatch.takes_value(name)
        or (words[0][1] != "-" and len(words[0]) > 2)
    )
    if not alone and len(words) < 2:
        return 0
    count = 1 if alone else 2
    pairs += sbatch.pairs(words[:count], HERE)
    return count


def _store(fields: dict[str, Any], option: Option, value: str) -> bool:
    """False for a value that does not have its option's type."""
    if option.typed == "list[str]":
        fields.setdefault(option.name, []).append(value)
    elif option.typed == "str":
        fields[option.name] = value
    elif value.removeprefix("-").isdecimal():
        fields[option.name] = int(value)
    else:
        return False
    return True
