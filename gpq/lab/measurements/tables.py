"""Strict CSV: columns of numbers and words, or one line that names the file, the row and the
problem.

Guesses nothing: no missing cell, no NaN, no rounding. Row numbers are lines of the file, and the
header is row 1.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpq.errors import UsageError

Line = tuple[int, list[str]]  # its number and its cells


@dataclass(frozen=True, slots=True)
class Column:
    """What its cells must be: words, or finite numbers, perhaps whole, from `least` (excluded
    itself if `above`)."""

    name: str
    text: bool = False
    whole: bool = False
    least: float = -math.inf
    above: bool = False
    default: str = ""  # for a column that may be missing. "": it may not


@dataclass(frozen=True, slots=True)
class Table:
    path: Path
    rows: tuple[int, ...]  # line in the file of each record
    numbers: dict[str, NDArray[np.float64]]
    texts: dict[str, list[str]]

    def __len__(self) -> int:
        return len(self.rows)

    def wrong(self, index: int, problem: str, hint: str = "") -> UsageError:
        """The error to raise about record `index` (from 0)."""
        return at(self.path, self.rows[index], problem, hint)


def at(path: Path, row: int, problem: str, hint: str = "") -> UsageError:
    return UsageError(f"{path.name} row {row}: {problem}", hint or f"correct {path}")


def read(path: str | Path, columns: Sequence[Column]) -> Table:
    """The named columns. Other columns are ignored. Blank lines are skipped, cells are stripped."""
    path = Path(path)
    header, records = _records(path)
    missing_names = [
        column.name for column in columns if column.name not in header and not column.default
    ]
    if missing_names:
        raise UsageError(
            f"{path.name} has no column {', '.join(missing_names)}",
            f"the first line of {path} must name it",
        )
    rows = tuple(row for row, _ in records)
    numbers: dict[str, NDArray[np.float64]] = {}
    texts: dict[str, list[str]] = {}
    for column in columns:
        cells = [(row, column.default) for row in rows]
        if column.name in header:
            place = header.index(column.name)
            cells = [(row, record[place]) for row, record in records]
        if column.text:
            for row, cell in cells:
                if not cell:
                    raise at(path, row, f"{column.name} is empty")
            texts[column.name] = [cell for _, cell in cells]
        else:
            values = [_number(path, row, column, cell) for row, cell in cells]
            numbers[column.name] = np.array(values, dtype=np.float64)
    return Table(path, rows, numbers, texts)


def _records(path: Path) -> tuple[list[str], list[Line]]:
    """The header and the lines after it, without blank ones."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UsageError(
            f"{path} is not a regular file", "gpq reads it more than once: write it to a file first"
        )
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            lines = [(reader.line_num, list(map(str.strip, cells))) for cells in reader]
    except FileNotFoundError:
        raise UsageError(f"no file {path}", "check the path") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path.name} is not UTF-8 text", f"{path} must be a CSV file") from None
    except csv.Error as error:
        raise UsageError(f"{path.name} is not a CSV file: {error}", f"correct {path}") from None
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", "name a readable CSV file"
        ) from None
    lines = [(row, cells) for row, cells in lines if any(cells)]
    if len(lines) < 2:
        raise UsageError(
            f"{path.name} has no rows",
            f"{path} needs a line of column names and at least one of values",
        )
    header = lines[0][1]
    duplicates = sorted({name for name in header if header.count(name) > 1})
    if duplicates:
        raise at(path, lines[0][0], f"column {duplicates[0]} appears twice")
    for row, cells in lines[1:]:
        if len(cells) != len(header):
            raise at(path, row, f"expected {len(header)} cells, found {len(cells)}")
    return header, lines[1:]


def _number(path: Path, row: int, column: Column, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or "_" in cell:  # Python accepts 1_000
        raise at(path, row, f"{column.name} is {cell!r}, must be a number")
    if column.whole and value != int(value):
        raise at(path, row, f"{column.name} is {cell}, must be a whole number")
    if column.above and value <= column.least:
        raise at(path, row, f"{column.name} is {cell}, must be > {column.least:g}")
    if value < column.least:
        raise at(path, row, f"{column.name} is {cell}, must be >= {column.least:g}")
    return value
