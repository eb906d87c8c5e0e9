"""The goodput model as a small bar chart, one line for each number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from gpq.rpc.job_answers import CurvePoint
from gpq.views.plain import number

MOST = 16  # lines. Longer curves leave out points


def lines(points: Sequence[CurvePoint], limit: int, bar: str = "█") -> list[str]:
    """`2 |██████ 241 (1.62x, batch 256) <- now`: bars as long as `limit` allows."""
    shown_points = thinned(points)
    if not shown_points:
        return []
    digits = max(len(str(point.gpus)) for point in shown_points)
    remarks = list(map(_remark, shown_points))
    room = min(max((limit or 100) - digits - 5 - max(map(len, remarks)), 4), 40)
    top = max(point.goodput for point in shown_points) or 1.0
    return [
        f"  {point.gpus:{digits}} {bar * max(round(room * point.goodput / top), 1):{room}} {remark}"
        for point, remark in zip(shown_points, remarks, strict=True)
    ]


def _remark(point: CurvePoint) -> str:
    text = f"{number(point.goodput)} ({number(point.speedup)}x, batch {point.total_batch})"
    if point.current:
        text += " <- now"
    return text


def thinned(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """At most `MOST` of them: the first, the last, the current one, and evenly between."""
    if len(points) <= MOST:
        return list(points)
    step = (len(points) - 1) / (MOST - 2)
    indices = {round(index * step) for index in range(MOST - 1)} | {
        i for i, point in enumerate(points) if point.current
    }
    return [points[index] for index in sorted(indices)]
