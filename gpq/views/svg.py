"""A few plots as inline SVG: bars over time, parts of a whole, shares next to fair shares, and a
histogram.

They are drawn directly, so a page with four plots has about 30 KB and needs no library. Colours are
classes of the page (`s0`, `s1`, ...), so the page can be light or dark. All text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from gpq.views.plain import cut, number, safe

COLOURS = 9  # s0 to s8. The last is for all others
LEFT, TOP, BOTTOM = 44, 8, 26  # margins of the plot in user units
WIDE, NARROW = 760, 370  # widths of a plot
LABEL = 22  # characters of a name next to a bar


def text(value: str) -> str:
    """Any text, escaped for a page."""
    return escape(safe(value), quote=True)


def over_time(
    series: Sequence[tuple[str, Sequence[float]]],
    labels: Sequence[str],
    unit: str,
) -> str:
    """Stacked bars, one for each of `labels`. `series`: (name, values)."""
    width, height = WIDE, 230
    tops = [sum(values[index] for _, values in series) for index in range(len(labels))]
    scale = _Scale(max(tops, default=0.0), height - TOP - BOTTOM, height - BOTTOM)
    step = (width - LEFT) / max(len(labels), 1)
    parts = [_grid(scale, width)]
    for index, label in enumerate(labels):
        base = 0.0
        for place, (name, values) in enumerate(series):
            if values[index] > 0:
                tooltip = f"{name}, {label}: {number(values[index])} {unit}"
                shade, top = colour(place, len(series)), base + values[index]
                parts.append(_piece(scale, index, step, base, top, shade, tooltip))
                base = top
    parts.append(_ticks(labels, step, height))
    return _picture(width, height, parts, f"{unit} over time")


def colour(place: int, count: int) -> str:
    """The colour class. The last of many series stands for all others."""
    return f"s{COLOURS - 1 if place == count - 1 and count >= COLOURS else place % (COLOURS - 1)}"


def shares(
    usage: Sequence[float],
    fair: Sequence[float],
    labels: Sequence[str],
    name: str,
    shade: str,
    *,
    ceiling: float,
) -> str:
    """A user's share of the GPUs as bars, and the fair share as a line over them, from 0 to
    `ceiling`."""
    width, height = NARROW, 120
    scale = _Scale(
        ceiling,
        height - TOP - BOTTOM,
        height - BOTTOM,
        ticks=(0.0, ceiling / 2, ceiling),
        percent=True,
    )
    step = (width - LEFT) / max(len(labels), 1)
    parts = [_grid(scale, width)]
    line = ""
    for index, label in enumerate(labels):
        x = LEFT + index * step
        tooltip = (
            f"{name}, {label}: {usage[index]:.0%} of the GPUs in use, fair share {fair[index]:.0%}"
        )
        parts.append(_piece(scale, index, step, 0.0, usage[index], shade, tooltip))
        line += f"{'L' if line else 'M'}{_n(x)} {_n(scale(fair[index]))}H{_n(x + step)}"
    parts += [
        f'<path class="fair" d="{line}"/>' if line else "",
        _ticks(labels, step, height, limit=3),
    ]
    return _picture(width, height, parts, f"share of {name} over time")


def parts_of(rows: Sequence[tuple[str, Sequence[tuple[str, float, str]]]], unit: str) -> str:
    """One bar per row, made of (what, how much, class)."""
    largest = max((sum(value for _, value, _ in values) for _, values in rows), default=0.0) or 1.0
    margin, row_height = 170, 22
    parts: list[str] = []
    for place, (name, values) in enumerate(rows):
        y, x = TOP + place * row_height, float(margin)
        parts.append(
            f'<text x="{margin - 8}" y="{y + 13}" class="end">{text(cut(safe(name), LABEL))}</text>'
        )
        for kind, value, shade in values:
            if value > 0:
                size = value / largest * (WIDE - margin - 70)
                tooltip = f"{name}: {number(value)} {unit}, {kind}"
                parts.append(_box(x, y, size, row_height - 6, shade, tooltip))
                x += size
        total = number(sum(value for _, value, _ in values))
        parts.append(f'<text x="{_n(x + 6)}" y="{y + 13}">{total}</text>')
    return _picture(WIDE, 2 * TOP + row_height * len(rows), parts, unit)


def histogram(bars: Sequence[tuple[str, int]], shades: Sequence[str]) -> str:
    """A histogram. `bars`: (what, how many)."""
    width, height = NARROW, 180
    scale = _Scale(
        float(max((count for _, count in bars), default=0)),
        height - TOP - BOTTOM,
        height - BOTTOM,
        is_count=True,
    )
    step = (width - LEFT) / max(len(bars), 1)
    parts = [_grid(scale, width)]
    for place, ((label, count), shade) in enumerate(zip(bars, shades, strict=True)):
        x, y = LEFT + place * step, scale(float(count))
        parts.append(_box(x + 2, y, step - 4, scale(0) - y, shade, f"{label}: {count} jobs"))
        parts.append(
            f'<text x="{_n(x + step / 2)}" y="{height - 10}" class="mid">{text(label)}</text>'
        )
    return _picture(width, height, parts, "jobs by finish-time fairness")


class _Scale:
    """Converts values to heights, with round numbers on the axis."""

    def __init__(
        self,
        largest: float,
        height: float,
        bottom: float,
        *,
        ticks: Sequence[float] = (),
        is_count: bool = False,
        percent: bool = False,
    ) -> None:
        step = _round_step(largest / 4 or 0.25)
        step = max(step, 1.0) if is_count else step
        self.ticks = (
            list(ticks)
            or [step * index for index in range(math.ceil(largest / step - 1e-9) + 1)]
            or [0.0]
        )
        self._top = max(self.ticks[-1], largest) or 1.0
        self._height, self._bottom, self._percent = height, bottom, percent

    def __call__(self, value: float) -> float:
        return self._bottom - value / self._top * self._height

    def label(self, value: float) -> str:
        if self._percent:
            return f"{value:.0%}"
        return f"{value:g}"


def _round_step(least: float) -> float:
    """The next larger value among 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(
        factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * (1 - 1e-9)
    )


def _grid(scale: _Scale, width: int) -> str:
    lines = "".join(f"M{LEFT} {_n(scale(tick))}H{width}" for tick in scale.ticks)
    numbers = "".join(
        f'<text x="{LEFT - 6}" y="{_n(scale(tick) + 4)}" class="end">{scale.label(tick)}</text>'
        for tick in scale.ticks
    )
    return f'<path class="grid" d="{lines}"/>{numbers}'


def _ticks(labels: Sequence[str], step: float, height: int, limit: int = 8) -> str:
    stride = max(math.ceil(len(labels) / limit), 1)
    return "".join(
        f'<text x="{_n(LEFT + index * step)}" y="{height - 8}">{text(label)}</text>'
        for index, label in enumerate(labels)
        if index % stride == 0
    )


def _piece(
    scale: _Scale, index: int, step: float, base: float, top: float, shade: str, tooltip: str
) -> str:
    """The part of a bar from `base` to `top`, of the bar at this place."""
    width = max(step - min(step * 0.15, 2), 0.5)
    y = scale(top)
    return _box(LEFT + index * step, y, width, scale(base) - y, shade, tooltip)


def _box(x: float, y: float, width: float, height: float, shade: str, tooltip: str) -> str:
    place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(max(height, 0.0))}"'
    return f'<rect class="{shade}" {place}><title>{text(tooltip)}</title></rect>'


def _picture(width: int, height: int, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{text(title)}">{"".join(parts)}</svg>'
    )


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
