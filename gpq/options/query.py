"""Which words are queries for `gpq status` and `gpq history`. Light: both answer without typer."""

from __future__ import annotations


def is_query(word: str) -> bool:
    """`user=ana`, `age>2h`. No name or selector of a job has such signs."""
    return any(sign in word.replace("@~", "") for sign in "=~<>")
