"""Which words are queries for `gpq status` and `gpq top`. Light, because `gpq status` answers
without typer."""

from __future__ import annotations


def is_query(word: str) -> bool:
    """Whether a word is a condition, such as `user=ana` or `age>2h`. Names and selectors of jobs
    have no such signs."""
    return any(sign in word.replace("@~", "") for sign in "=~<>")
