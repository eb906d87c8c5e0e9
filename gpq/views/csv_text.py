"""Rows of an answer as CSV: one line per row, with the names and units of the JSON. Unknown values
are empty cells."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import msgspec

from gpq.views.plain import safe


def text(rows: Sequence[msgspec.Struct], kind: type[msgspec.Struct]) -> str:
    """The CSV text. It has a line of names even without rows."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = kind.__struct_fields__
    writer.writerow(names)
    writer.writerows([_cell(getattr(row, name)) for name in names] for row in rows)
    return stream.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, float):
        if abs(value) < 1e6:
            return f"{value:.6g}"
        return f"{value:.1f}"
    if isinstance(value, str):
        return safe(value)
    return value
