"""The loss curve of a job in two lines: from where to where, and its form."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gpq.rpc.messages import LossView
from gpq.views.plain import wrapped

LEVELS = "▁▂▃▄▅▆▇█"
WIDEST = 80  # columns


def lines(points: Sequence[LossView], limit: int, bar: str = "█") -> list[str]:
    """`2.31 -> 0.42 over 12,000 base steps`, and the curve in block characters where `bar` says that these can be shown."""
    if not points:
        return []
    first, last = points[0], points[-1]
    if len(points) == 1:
        return wrapped(f"{first.loss:.3g} after {first.base_steps:,.0f} base steps", limit, "  ", "  ")
    said = wrapped(f"{first.loss:.3g} -> {last.loss:.3g} over {last.base_steps:,.0f} base steps", limit, "  ", "  ")
    if bar == "█":
        said.append("  " + spark([point.loss for point in points], min(limit or WIDEST, WIDEST) - 2))
    return said


def spark(values: Sequence[float], room: int) -> str:
    """One character each, neighbours averaged where there are more than `room`; the least is the lowest."""
    columns = min(len(values), max(room, 1))
    edges = [index * len(values) // columns for index in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(LEVELS[round((mean - low) * scale)] for mean in means)
