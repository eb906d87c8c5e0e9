"""Saved verdicts: one file per script and arguments, in the state directory, and the proof that
travels with a job. Needs no daemon.

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
from gpq_agent.wire import FREEDOMS

from gpq import paths
from gpq.check.shapes import LEAST_STEPS, compared_shapes
from gpq.check.verdict import SAME, TOLD
from gpq.folders import make_private
from gpq.rpc.requests import ProofMessage

MOST = 200  # verdicts. Older ones are removed
MOST_READ = 1 << 26  # bytes of a file
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])")
SIZE = "#"  # any number except 0 and 1
RETUNE = "retune"
NEEDED = {shape.name: shape.freedoms for shape in compared_shapes(LEAST_STEPS)}
MOST_CHARACTERS = 300


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
    for path, content in files_of(verdict).items():
        try:
            with open(path, "rb") as stream:
                digest = hashlib.sha256(stream.read(MOST_READ)).hexdigest()
        except OSError:
            digest = ""
        if digest != content:
            return path
    return ""


def files_of(verdict: dict[str, object]) -> dict[str, str]:
    """SHA-256 by path of the files that a verdict covers."""
    files = verdict.get("files")
    if not isinstance(files, dict) or not all(
        isinstance(item, str) for pair in files.items() for item in pair
    ):
        return {}
    return files


def _size(number: re.Match[str]) -> str:
    value = float(number[0])
    if value in (0.0, 1.0):
        return f"{value:g}"
    return SIZE


def proof(verdict: dict[str, object]) -> ProofMessage | None:
    """The proof, or None if the verdict has no readable row."""
    shapes = verdict.get("shapes")
    rows = [
        row
        for row in (shapes if isinstance(shapes, list) else [])
        if isinstance(row, dict) and row.get("shape") in NEEDED and "verdict" in row
    ]
    if not rows:
        return None
    bad_rows = [row for row in rows if row["verdict"] != SAME]
    # A shape that needs several freedoms takes them only if none of them is lost already. If
    # accumulating differs, two replicas that accumulate differ too.
    lost_freedoms: set[str] = set()
    for row in sorted(bad_rows, key=lambda row: len(_freedoms(row))):
        if row["verdict"] == TOLD or lost_freedoms.isdisjoint(_freedoms(row)):
            lost_freedoms.update(_freedoms(row))
    same_freedoms = {freedom for row in rows for freedom in _freedoms(row)}
    same_freedoms.difference_update(*map(_freedoms, bad_rows))
    if same_freedoms and not bad_rows and not verdict.get("coarse"):
        same_freedoms.add(RETUNE)
    return ProofMessage(
        program=str(verdict.get("program"))[:64],
        same=_in_order(same_freedoms),
        lost=_in_order(lost_freedoms),
        message=" / ".join(f"{row['shape']}: {_explanation(row)}" for row in bad_rows)[
            :MOST_CHARACTERS
        ],
        at=str(verdict.get("at"))[:25],
    )


def _in_order(freedoms: set[str]) -> list[str]:
    return [freedom for freedom in FREEDOMS if freedom in freedoms]


def _freedoms(row: dict[str, object]) -> tuple[str, ...]:
    """The freedoms of its shape. If the library reported a habit, all freedoms that the habit
    takes."""
    habit = row.get("habit")
    if (
        row["verdict"] == TOLD
        and isinstance(habit, dict)
        and isinstance(habit.get("freedoms"), list)
    ):
        return tuple(freedom for freedom in FREEDOMS if freedom in habit["freedoms"])
    return NEEDED[str(row["shape"])]


def _explanation(row: dict[str, object]) -> str:
    habit = row.get("habit")
    code = habit.get("code") if row["verdict"] == TOLD and isinstance(habit, dict) else ""
    if code:
        return f"{row['verdict']} ({code})"
    return str(row["verdict"])
