"""The result of `gpq check`: a public format, printed with `--json` and saved, one file per script
and arguments, in the state directory. And its proof, which travels with a job. Needs no daemon.

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

import msgspec
from gpq_agent import wire
from gpq_agent.wire import FREEDOMS

from gpq import decoding, paths
from gpq.folders import make_private
from gpq.rpc import requests

SAME, TOLD, DIFFERS, FAILED = "same", "told", "differs", "failed"
# Shape -> gpq uses it only if a job has all of these freedoms.
NEEDED = {
    "accumulating": ("accumulate",),
    "split": ("split",),
    "two replicas": ("resize",),
    "two replicas, accumulating": ("resize", "accumulate"),
    "stopped and resumed on another number": ("resize",),
}
MOST = 200  # verdicts. Older ones are removed
MOST_READ = 1 << 26  # bytes of a file
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])")
SIZE = "#"  # any number except 0 and 1
RETUNE = "retune"
MOST_CHARACTERS = 300


class FoundHabit(msgspec.Struct, frozen=True):
    """A habit of the loop. The library reported it, or gpq guessed it from what differs."""

    code: str
    # that it takes, of accumulate, split, resize and retune. Empty for a guess
    freedoms: list[str]
    message: str
    cure: str


class ShapeView(msgspec.Struct, frozen=True):
    """One row: a shape, compared with one replica."""

    shape: str
    # "same" | "told" (gpq avoids the shape) | "differs" | "failed"
    verdict: str
    # relative difference after the last step (in half precision: of a gradient)
    largest: float | None
    step: int | None  # the first step that differs
    what: str  # what differs first there: a tensor, a number, "samples", "learning rate"
    habit: FoundHabit | None  # the reported habit if "told", the probable one if "differs"
    # that were logged with other values. Not a fault: part of a batch has another loss
    metrics: list[str]
    problem: str  # why it failed
    log: str  # the output of the process that failed


class Verdict(msgspec.Struct, frozen=True):
    """The answer of `gpq check`."""

    script: str
    arguments: list[str]
    program: str  # a digest of what was checked: `files`, `torch` and `library`
    files: dict[str, str]  # the script and its own modules: SHA-256 by path
    torch: str  # version
    library: str  # version of gpq's library
    verdict: str  # the worst of the rows: "failed", then "differs", "told", "same"
    steps: int
    batch: int  # examples per step, over all replicas. 0: the script has a loop of its own
    shapes: list[ShapeView]
    # habits that the library reported in any shape, and suspected ones that show in one
    habits: list[FoundHabit]
    notes: list[str]
    # relative difference that rounding may cause if weights are in half precision, else 0.0
    coarse: float
    seconds: float
    at: str  # when the check ran, UTC
    schema: int = 2


def place(script: str, arguments: list[str]) -> str:
    """The path of the verdict for this script and such arguments."""
    key = json.dumps([os.path.realpath(script), [NUMBER.sub(_size, word) for word in arguments]])
    return os.path.join(paths.verdicts(), hashlib.sha256(key.encode()).hexdigest()[:32] + ".json")


def keep(path: str, verdict: Verdict) -> None:
    """Save it durably, in place of an older one. Raises OSError, Refused."""
    make_private(os.path.dirname(path))
    wire.write_json(path, msgspec.to_builtins(verdict))
    folder = os.path.dirname(path)
    entries = [entry for entry in os.scandir(folder) if entry.name.endswith(".json")]
    for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime)[:-MOST]:
        with contextlib.suppress(OSError):
            os.unlink(entry.path)


def current(script: str, arguments: list[str]) -> Verdict | None:
    """The saved verdict, if neither the script nor a module has changed since."""
    verdict = saved_verdict(script, arguments)
    return verdict if verdict is not None and not changed_file(verdict) else None


def saved_verdict(script: str, arguments: list[str]) -> Verdict | None:
    """The saved verdict for this script and such arguments. The script may have changed since. None
    if there is none, or if it cannot be read."""
    try:
        with open(place(script, arguments), "rb") as stream:
            verdict = decoding.decode(stream.read(), Verdict)
    except (OSError, ValueError):
        return None
    return verdict if verdict.files else None


def changed_file(verdict: Verdict) -> str:
    """The path of a file that has changed since the verdict, or ""."""
    for path, content in verdict.files.items():
        try:
            with open(path, "rb") as stream:
                digest = hashlib.sha256(stream.read(MOST_READ)).hexdigest()
        except OSError:
            digest = ""
        if digest != content:
            return path
    return ""


def _size(number: re.Match[str]) -> str:
    value = float(number[0])
    if value in (0.0, 1.0):
        return f"{value:g}"
    return SIZE


def proof(verdict: Verdict) -> requests.ProofMessage | None:
    """The proof, or None if the verdict has no row of a known shape."""
    rows = [row for row in verdict.shapes if row.shape in NEEDED]
    if not rows:
        return None
    bad_rows = [row for row in rows if row.verdict != SAME]
    # A shape that needs several freedoms takes them only if none of them is lost already. If
    # accumulating differs, two replicas that accumulate differ too.
    lost_freedoms: set[str] = set()
    for row in sorted(bad_rows, key=lambda row: len(_freedoms(row))):
        if row.verdict == TOLD or lost_freedoms.isdisjoint(_freedoms(row)):
            lost_freedoms.update(_freedoms(row))
    same_freedoms = {freedom for row in rows for freedom in _freedoms(row)}
    same_freedoms.difference_update(*map(_freedoms, bad_rows))
    if same_freedoms and not bad_rows and not verdict.coarse:
        same_freedoms.add(RETUNE)
    return requests.ProofMessage(
        program=verdict.program[:64],
        same=_in_order(same_freedoms),
        lost=_in_order(lost_freedoms),
        message=" / ".join(map(_description, bad_rows))[:MOST_CHARACTERS],
        at=verdict.at[:25],
    )


def _in_order(freedoms: set[str]) -> list[str]:
    return [freedom for freedom in FREEDOMS if freedom in freedoms]


def _freedoms(row: ShapeView) -> tuple[str, ...]:
    """The freedoms of its shape. If the library reported a habit, all freedoms that the habit
    takes."""
    if row.verdict == TOLD and row.habit is not None:
        return tuple(row.habit.freedoms)
    return NEEDED[row.shape]


def _description(row: ShapeView) -> str:
    code = f" ({row.habit.code})" if row.verdict == TOLD and row.habit is not None else ""
    return f"{row.shape}: {row.verdict}{code}"
