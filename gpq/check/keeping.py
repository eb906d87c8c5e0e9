"""Verdicts that are kept: a file each in the state directory, by script and arguments. Needs no
daemon.

A verdict is of the script and its own modules as they were. Numbers among the arguments make no
other program: `--lr 0.1` is `--lr 0.3`, and 0 and 1 alone are themselves, since they turn things
off and on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re

from gpq_agent import wire

from gpq import paths

MOST = 200  # verdicts; older ones go
MOST_READ = 1 << 26  # bytes of a file
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])")
SIZE = "#"  # any number but 0 and 1


def place(script: str, arguments: list[str]) -> str:
    """Where the verdict of this script with such arguments would be."""
    key = json.dumps([os.path.realpath(script), [NUMBER.sub(_size, word) for word in arguments]])
    return os.path.join(paths.verdicts(), hashlib.sha256(key.encode()).hexdigest()[:32] + ".json")


def keep(path: str, verdict: dict[str, object]) -> None:
    """Durably, in the place of an older one. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    wire.write_json(path, verdict)
    folder = os.path.dirname(path)
    entries = [entry for entry in os.scandir(folder) if entry.name.endswith(".json")]
    for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime)[:-MOST]:
        with contextlib.suppress(OSError):
            os.unlink(entry.path)


def kept(script: str, arguments: list[str]) -> dict[str, object] | None:
    """The verdict on this script with such arguments, which may have changed since. None where
    there is none, or it cannot be read."""
    try:
        verdict = wire.read_json(place(script, arguments))
    except (OSError, ValueError):
        return None
    if verdict is not None and files_of(verdict):
        return verdict
    return None


def changed(verdict: dict[str, object]) -> str:
    """The path of a file that is not as it was when the verdict was found, "" where all are."""
    return next(
        (path for path, content in files_of(verdict).items() if _digest(path) != content), ""
    )


def files_of(verdict: dict[str, object]) -> dict[str, str]:
    """SHA-256 by path of what a verdict is of."""
    files = verdict.get("files")
    if not isinstance(files, dict) or not all(
        isinstance(item, str) for pair in files.items() for item in pair
    ):
        return {}
    return files


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read(MOST_READ)).hexdigest()
    except OSError:
        return ""


def _size(number: re.Match[str]) -> str:
    value = float(number[0])
    if value in (0.0, 1.0):
        return f"{value:g}"
    return SIZE
