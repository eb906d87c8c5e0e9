"""The hosts that ~/.ssh/config names: its concrete Host entries, also those of included files.
Never a pattern."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterable, Iterator

from gpq.config_rules import HOST

DEEPEST = 16  # includes within includes, as ssh has it


def hosts(path: str) -> list[str]:
    """In the order of the file, each once."""
    return list(dict.fromkeys(name for name in _hosts(path, 0) if HOST.fullmatch(name)))


def default() -> str:
    """ssh takes the home directory from the password database, whatever $HOME says."""
    import pwd

    return os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".ssh", "config")


def _hosts(path: str, depth: int) -> Iterator[str]:
    for keyword, *words in _entries(path):
        is_negated = any(word.startswith("!") for word in words)
        if keyword.lower() == "host" and not is_negated:
            yield from (word for word in words if not set(word) & set("*?"))
        elif keyword.lower() == "include" and depth < DEEPEST:
            for file in _included(words):
                yield from _hosts(file, depth + 1)


def _included(patterns: Iterable[str]) -> Iterator[str]:
    """Files that patterns of an Include stand for."""
    for pattern in patterns:
        full_pattern = os.path.join(os.path.dirname(default()), os.path.expanduser(pattern))
        yield from sorted(glob.glob(full_pattern))


def _entries(path: str) -> list[list[str]]:
    """The words of each line that has any; none where the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return []
    return [words for line in lines if (words := _words(line))]


def _words(line: str) -> list[str]:
    """`Host a b`, `Host=a`, `Host "a b"`; nothing for a comment."""
    match = re.fullmatch(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*)", line)
    if match is None:
        return []
    try:
        return [match[1], *shlex.split(match[2])]
    except ValueError:
        return []
