"""Verdicts that are kept: a file each in the state directory, by script, content and arguments. Needs no daemon."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os

from gpq_agent import wire

from gpq import paths

MOST = 200  # verdicts; older ones go
MOST_READ = 1 << 26  # bytes of a script


def digest(script: str) -> str:
    """SHA-256 of the script's content. Raises OSError."""
    with open(script, "rb") as stream:
        return hashlib.sha256(stream.read(MOST_READ)).hexdigest()


def place(script: str, arguments: list[str], content: str) -> str:
    """Where the verdict of this script, as it is now, with these arguments would be."""
    named = json.dumps([os.path.realpath(script), arguments, content])
    return os.path.join(paths.verdicts(), hashlib.sha256(named.encode()).hexdigest()[:32] + ".json")


def keep(path: str, verdict: dict[str, object]) -> None:
    """Durably, in the place of an older one. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    wire.write_json(path, verdict)
    folder = os.path.dirname(path)
    entries = [entry for entry in os.scandir(folder) if entry.name.endswith(".json")]
    for entry in sorted(entries, key=lambda each: each.stat().st_mtime)[:-MOST]:
        with contextlib.suppress(OSError):
            os.unlink(entry.path)


def kept(script: str, arguments: list[str]) -> dict[str, object] | None:
    """The verdict on this script as it is, with these arguments; None where there is none, or it cannot be read."""
    if not os.path.isdir(paths.verdicts()):
        return None
    try:
        return wire.read_json(place(script, arguments, digest(script)))
    except (OSError, ValueError):
        return None


def against(verdict: dict[str, object] | None) -> list[str]:
    """The shapes in which a kept verdict says that a script differs, or fails."""
    rows = (verdict or {}).get("shapes")
    if not isinstance(rows, list):
        return []
    bad = [row for row in rows if isinstance(row, dict) and row.get("verdict") in ("differs", "failed")]
    return [f"{str(row.get('shape'))[:60]}: {row['verdict']}" for row in bad][:8]
