"""What `gpq check` comes to: a public format, printed with `--json` and kept."""

from __future__ import annotations

import msgspec

SAME, TOLD, DIFFERS, FAILED = "same", "told", "differs", "failed"


class FoundHabit(msgspec.Struct, frozen=True):
    """Something that the loop does. Told by the library, or guessed from what differs."""

    code: str
    # that it takes from the allocator, of accumulate, split, resize and retune; empty for a guess
    freedoms: list[str]
    message: str
    cure: str


class ShapeView(msgspec.Struct, frozen=True):
    """One row: a shape, held against one replica alone."""

    shape: str
    # "same" | "told" (gpq takes the freedom away from itself that it needs) | "differs" | "failed"
    verdict: str
    largest: float | None  # relative difference after the last step (half precision: of a gradient)
    step: int | None  # the first that differs
    what: str  # differs first there: a tensor, a number, "samples", "learning rate"
    habit: FoundHabit | None  # the probable one, where it differs; what was told, where it is told
    # that were logged otherwise: no fault by itself, a part of a batch has another loss
    metrics: list[str]
    problem: str  # why it failed
    log: str  # what the process that failed printed


class Verdict(msgspec.Struct, frozen=True):
    """Answer of `gpq check`."""

    script: str
    arguments: list[str]
    program: str  # a digest of what was checked: `files`, `torch` and `library`
    files: dict[str, str]  # the script and modules that nobody installed: SHA-256 by path
    torch: str  # version
    library: str  # version of gpq's
    verdict: str  # the worst of the rows: "failed", else "differs", "told", "same"
    steps: int
    batch: int  # examples of a step, over all replicas; 0: the script has a loop of its own
    shapes: list[ShapeView]
    # that the library told, in any shape; those that it suspects where they show in one
    habits: list[FoundHabit]
    notes: list[str]
    # relative difference that may be rounding, where weights are in half precision; 0.0: they are
    # not
    coarse: float
    seconds: float
    at: str  # when it was found, UTC
    schema: int = 2
