"""The hosts that ~/.ssh/config names: its concrete Host entries, also those of included files.
Never a pattern."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterator

from gpq.config_rules import HOST

DEEPEST = 16  # includes within includes, as ssh has it


def listed(path: str) -> list[str]:
    """In the order of the file, each once."""
    return list(dict.fromkeys(name for name in _hosts(path, 0) if HOST.fullmatch(name)))


def default() -> str:
    """ssh takes the home directory from the password database, whatever $HOME says."""
    import pwd

    return os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".ssh", "config")


def _hosts(path: str, depth: int) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return
    for line in lines:
        words = _words(line)
        if not words:
            continue
        keyword = words[0].lower()
        if keyword == "host" and not any(word.startswith("!") for word in words[1:]):
            yield from (word for word in words[1:] if not set(word) & set("*?"))
        elif keyword == "include" and depth < DEEPEST:
            for pattern in words[1:]:
                full_pattern = os.path.join(os.path.dirname(default()), os.path.expanduser(pattern))
                for file in sorted(glob.glob(full_pattern)):
                    yield from _hosts(file, depth + 1)


def _words(line: str) -> list[str]:
    """`Host a b`, `Host=a`, `Host "a b"`; nothing for a comment."""
    match = re.fullmatch(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*)", line)
    if match is None:
        return []
    try:
        return [match[1], *shlex.split(match[2])]
    except ValueError:
        return []
