"""The hosts that ~/.ssh/config names: its Host entries without patterns, also those of included
files."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterable, Iterator

from gpq.config_rules import HOST

DEEPEST = 16  # levels of includes, as in ssh


def hosts(path: str) -> list[str]:
    """The hosts in the order of the file, each once."""
    return list(dict.fromkeys(name for name in _hosts(path, 0) if HOST.fullmatch(name)))


def default() -> str:
    """The path of the user's file. Like ssh, takes the home directory from the password database
    and not from $HOME."""
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
    """The files that match the patterns of an Include."""
    for pattern in patterns:
        full_pattern = os.path.join(os.path.dirname(default()), os.path.expanduser(pattern))
        yield from sorted(glob.glob(full_pattern))


def _entries(path: str) -> list[list[str]]:
    """The words of each line that has any. Empty if the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return []
    return [words for line in lines if (words := _words(line))]


def _words(line: str) -> list[str]:
    """The words of `Host a b`, `Host=a` or `Host "a b"`. Empty for a comment."""
    match = re.fullmatch(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*)", line)
    if match is None:
        return []
    try:
        return [match[1], *shlex.split(match[2])]
    except ValueError:
        return []
