"""The loss curve of a job in two lines: first and last value, and the shape. The last logged value
is shown too, because the points are means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gpq.rpc.job_answers import LossView
from gpq.views.plain import wrapped

LEVELS = "▁▂▃▄▅▆▇█"
WIDEST = 80  # the widest curve in columns


def lines(
    points: Sequence[LossView], limit: int, bar: str = "█", last: float | None = None
) -> list[str]:
    """`2.31 -> 0.42 over 12,000 base steps, last 0.40`, and the curve in block characters if `bar`
    shows that the terminal has them. `last`: the last logged value, because the points are means
    over reports."""
    if not points:
        return []
    first, newest = points[0], points[-1]
    if last is not None and math.isclose(last, newest.loss, rel_tol=1e-5):
        last = None
    latest = ""
    if last is not None:
        latest = f", last {last:.3g}"
    if len(points) == 1:
        return wrapped(
            f"{first.loss:.3g} after {first.base_steps:,.0f} base steps{latest}", limit, "  ", "  "
        )
    summary = (
        f"{first.loss:.3g} -> {newest.loss:.3g} over {newest.base_steps:,.0f} base steps{latest}"
    )
    text = wrapped(summary, limit, "  ", "  ")
    if bar == "█":
        text.append(
            "  " + spark([point.loss for point in points], min(limit or WIDEST, WIDEST) - 2, last)
        )
    return text


def spark(values: Sequence[float], room: int, last: float | None = None) -> str:
    """One character per value, and one for `last`. If there are more than `room`, neighbours are
    averaged. The lowest value is the lowest character."""
    columns = min(len(values), max(room - (last is not None), 1))
    edges = [index * len(values) // columns for index in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    if last is not None:
        means.append(last)
    low, high = min(means), max(means)
    scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(LEVELS[round((mean - low) * scale)] for mean in means)
