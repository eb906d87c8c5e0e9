"""Saved verdicts: one file per script and arguments, in the state directory. Needs no daemon.

A verdict holds for the script and its modules as they were. Numbers among the arguments do not make
another program: `--lr 0.1` counts as `--lr 0.3`. Only 0 and 1 count as themselves, because they
turn things off and on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re

from gpq_agent import wire

from gpq import paths
from gpq.folders import make_private

MOST = 200  # verdicts. Older ones are removed
MOST_READ = 1 << 26  # bytes of a file
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])")
SIZE = "#"  # any number except 0 and 1


def place(script: str, arguments: list[str]) -> str:
    """The path of the verdict for this script and such arguments."""
    key = json.dumps([os.path.realpath(script), [NUMBER.sub(_size, word) for word in arguments]])
    return os.path.join(paths.verdicts(), hashlib.sha256(key.encode()).hexdigest()[:32] + ".json")


def keep(path: str, verdict: dict[str, object]) -> None:
    """Save it durably, in place of an older one. Raises OSError, Refused."""
    make_private(os.path.dirname(path))
    wire.write_json(path, verdict)
    folder = os.path.dirname(path)
    entries = [entry for entry in os.scandir(folder) if entry.name.endswith(".json")]
    for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime)[:-MOST]:
        with contextlib.suppress(OSError):
            os.unlink(entry.path)


def current(script: str, arguments: list[str]) -> dict[str, object] | None:
    """The saved verdict, if neither the script nor a module has changed since."""
    verdict = saved_verdict(script, arguments)
    return verdict if verdict is not None and not changed_file(verdict) else None


def saved_verdict(script: str, arguments: list[str]) -> dict[str, object] | None:
    """The saved verdict for this script and such arguments. The script may have changed since. None
    if there is none, or if it cannot be read."""
    try:
        verdict = wire.read_json(place(script, arguments))
    except (OSError, ValueError):
        return None
    return verdict if verdict is not None and files_of(verdict) else None


def changed_file(verdict: dict[str, object]) -> str:
    """The path of a file that has changed since the verdict, or ""."""
    return next(
        (path for path, content in files_of(verdict).items() if _digest(path) != content), ""
    )


def files_of(verdict: dict[str, object]) -> dict[str, str]:
    """SHA-256 by path of the files that a verdict covers."""
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
