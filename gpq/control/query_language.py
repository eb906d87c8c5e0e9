"""`gpq status 'user=ana state=running tag~cifar age>2h sort=-goodput'`: terms that must all hold,
and an order."""

from __future__ import annotations

import difflib
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from gpq.core.model.jobs import JobState
from gpq.errors import UsageError
from gpq.rpc.job_answers import JobView
from gpq.rpc.job_columns import COLUMNS, FIELDS

EXAMPLE = "e.g. gpq status 'user=ana state=running,pending tag~cifar age>2h sort=-goodput limit=10'"
TERM = re.compile(r"([A-Za-z_]+)(!=|!~|<=|>=|=|~|<|>)(.*)", re.DOTALL)
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
FACTORS = {**UNITS, "%": 0.01, "": 1.0}
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def _is_text(field: str) -> bool:
    return COLUMNS[field].kind == "text"


def _texts(field: str, row: JobView) -> Sequence[str]:
    """The values of a field that is text."""
    value = getattr(row, COLUMNS[field].field)
    if field == "server":
        return [part.node for part in value]
    return value if isinstance(value, list) else [value]


def known(field: str, row: JobView) -> bool:
    """Has the job a value of this field, which is no text?"""
    return _number_of(field, row) is not None


def _number_of(field: str, row: JobView) -> float | None:
    """The value of any other field, None if it is not known."""
    value = getattr(row, COLUMNS[field].field)
    if isinstance(value, str):
        return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
    if COLUMNS[field].kind == "size" and not value:
        return None
    return cast("float | None", value)


@dataclass(frozen=True, slots=True)
class Term:
    field: str
    sign: str
    values: tuple[str, ...]

    def holds(self, row: JobView) -> bool:
        """If the row's value is unknown, only `!=` and `!~` hold."""
        if _is_text(self.field):
            texts = [text.casefold() for text in _texts(self.field, row)]
            values = [value.casefold() for value in self.values]
            if self.sign in ("=", "!="):
                return set(texts).isdisjoint(values) is (self.sign == "!=")
            return any(value in text for text in texts for value in values) is (self.sign == "~")
        number = _number_of(self.field, row)
        operands = [_number(self.field, value) for value in self.values]
        if self.sign in ("=", "!="):
            return (number in operands) is (self.sign == "=")
        return number is not None and COMPARISONS[self.sign](number, operands[0])


@dataclass(frozen=True, slots=True)
class Query:
    terms: tuple[Term, ...] = ()
    order: tuple[tuple[str, bool], ...] = ()  # field, descending
    limit: int | None = None

    def exactly(self, field: str) -> list[str]:
        """The values that `field=` asks for, so that the caller does not look at all jobs. Empty
        means any value."""
        return next(
            (list(term.values) for term in self.terms if (term.field, term.sign) == (field, "=")),
            [],
        )

    def answer(self, rows: Iterable[JobView]) -> list[JobView]:
        """The rows for which all terms hold, in order. Rows whose first field is unknown come
        last."""
        matches = [row for row in rows if all(term.holds(row) for term in self.terms)]
        for field, descending in reversed(self.order):
            matches = ordered(matches, field, descending=descending)
        return matches[: self.limit]


def ordered(rows: Iterable[JobView], field: str, *, descending: bool) -> list[JobView]:
    """By a field. Rows whose value is unknown come last in both directions."""
    if _is_text(field):
        return sorted(
            rows, key=lambda row: ",".join(_texts(field, row)).casefold(), reverse=descending
        )
    pairs = [(_number_of(field, row), row) for row in rows]
    known_pairs = [(number, row) for number, row in pairs if number is not None]
    known_pairs.sort(key=operator.itemgetter(0), reverse=descending)
    return [row for _, row in known_pairs] + [row for number, row in pairs if number is None]


def parse(words: Sequence[str]) -> Query:
    """Raises UsageError if the words are not a query. The error names similar fields."""
    terms: list[Term] = []
    order: list[tuple[str, bool]] = []
    limit: int | None = None
    try:
        parts = [part for word in words for part in shlex.split(word)]
    except ValueError:
        raise UsageError(f"`{' '.join(words)[:80]}`: a quote has no end", EXAMPLE) from None
    for word in parts:
        match = TERM.fullmatch(word)
        if not match:
            raise UsageError(f"`{word[:80]}` is not a condition", EXAMPLE)
        field, sign, value = match[1].lower(), match[2], match[3]
        if not value:
            raise UsageError(f"`{word[:80]}` has no value", EXAMPLE)
        if field == "sort" and sign == "=":
            for key in value.split(","):
                column = _check_field(key.lstrip("-+").lower(), [*COLUMNS])
                order.append((column, key.startswith("-")))
        elif field == "limit" and sign == "=":
            if not re.fullmatch(r"[1-9]\d{0,8}", value):
                raise UsageError(f"`{word[:80]}` is not a number of jobs", "e.g. limit=10")
            limit = int(value)
        else:
            terms.append(_term(field, sign, value))
    return Query(tuple(terms), tuple(order), limit)


def _term(field: str, sign: str, value: str) -> Term:
    _check_field(field, FIELDS)
    values = tuple(value.split(",")) if sign in ("=", "!=", "~", "!~") else (value,)
    if not _is_text(field):
        if sign in ("~", "!~"):
            raise UsageError(
                f"{field}{sign}: {field} is a number",
                f"compare numbers with = != < > <= or >=: {field}={value}",
            )
        for operand in values:
            _number(field, operand)
    elif sign in COMPARISONS:
        raise UsageError(
            f"{field}{sign}: {field} is text", f"compare text with = != ~ or !~: {field}~{value}"
        )
    elif field == "state" and sign in ("=", "!="):
        check_states(values)
    return Term(field, sign, values)


def check_states(states: Sequence[str]) -> None:
    for state in states:
        if state not in set(JobState):
            raise UsageError(f"unknown state `{state[:40]}`", f"use one of {', '.join(JobState)}")


def _check_field(field: str, fields: Sequence[str]) -> str:
    if field not in fields:
        suggestions = difflib.get_close_matches(field, fields, n=3, cutoff=0.5)
        hint = (
            f"did you mean {' or '.join(suggestions)}?"
            if suggestions
            else f"jobs have {', '.join(fields)}"
        )
        raise UsageError(f"jobs have no `{field[:40]}`", hint)
    return field


def _number(field: str, text: str) -> float:
    """`2h` for a span, `42%` for a share, otherwise a number."""
    is_span = COLUMNS[field].kind == "span"
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([smhd%]?)", text)
    if not match or (match[2] in UNITS) is not is_span:
        example = f"{field}>2h" if is_span else f"{field}>1"
        raise UsageError(f"{field} cannot be compared with `{text[:40]}`", f"e.g. {example}")
    return float(match[1]) * FACTORS[match[2]]
