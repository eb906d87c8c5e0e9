"""The result of `gpq check`: a public format, printed with `--json` and saved."""

from __future__ import annotations

import msgspec

SAME, TOLD, DIFFERS, FAILED = "same", "told", "differs", "failed"


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
