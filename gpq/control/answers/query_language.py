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

from gpq.core.model.jobs import JobState
from gpq.errors import UsageError
from gpq.rpc.job_answers import JobView

Value = str | float | None
EXAMPLE = "e.g. gpq status 'user=ana state=running,pending tag~cifar age>2h sort=-goodput limit=10'"
TERM = re.compile(r"([A-Za-z_]+)(!=|!~|<=|>=|=|~|<|>)(.*)", re.DOTALL)
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
FACTORS = {**UNITS, "%": 0.01, "": 1.0}
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def _stamp(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


TEXTS: Mapping[str, Callable[[JobView], Sequence[str]]] = {
    "name": lambda row: [row.name],
    "user": lambda row: [row.user],
    "state": lambda row: [row.state],
    "tag": lambda row: row.tags,
    "server": lambda row: [part.node for part in row.placement],
    "kind": lambda row: [row.level],
    "reason": lambda row: [row.reason],
    "command": lambda row: [row.command],
}
NUMBERS: Mapping[str, Callable[[JobView], float | None]] = {
    "id": lambda row: row.id,
    "array": lambda row: row.array,
    "index": lambda row: row.index,
    "priority": lambda row: row.priority,
    "gpus": lambda row: row.gpus,
    "batch": lambda row: row.total_batch,
    "goodput": lambda row: row.goodput,
    "throughput": lambda row: row.throughput,
    "efficiency": lambda row: row.efficiency,
    "speedup": lambda row: row.speedup,
    "rho": lambda row: row.rho,
    "progress": lambda row: row.progress,
    "attempt": lambda row: row.attempt,
    "restarts": lambda row: row.restarts,
    "resizes": lambda row: row.resizes,
    "exit": lambda row: row.exit_status,
}
SPANS: Mapping[str, Callable[[JobView], float | None]] = {
    "eta": lambda row: row.eta_seconds,
    "age": lambda row: row.age_seconds,
    "run": lambda row: row.run_seconds,
}
MOMENTS: Mapping[str, Callable[[JobView], float | None]] = {  # fields to sort by
    "submitted": lambda row: _stamp(row.submitted_at),
    "started": lambda row: _stamp(row.started_at),
    "ended": lambda row: _stamp(row.ended_at),
}
FIELDS = (*TEXTS, *NUMBERS, *SPANS)


@dataclass(frozen=True, slots=True)
class Term:
    field: str
    sign: str
    values: tuple[str, ...]

    def holds(self, row: JobView) -> bool:
        """If the row's value is unknown, only `!=` and `!~` hold."""
        if self.field in TEXTS:
            return self._of_text([text.casefold() for text in TEXTS[self.field](row)])
        number = (NUMBERS.get(self.field) or SPANS[self.field])(row)
        operands = [_number(self.field, value) for value in self.values]
        if self.sign in ("=", "!="):
            return (number in operands) is (self.sign == "=")
        return number is not None and COMPARISONS[self.sign](number, operands[0])

    def _of_text(self, texts: Sequence[str]) -> bool:
        values = [value.casefold() for value in self.values]
        if self.sign in ("=", "!="):
            return any(text in values for text in texts) is (self.sign == "=")
        return any(value in text for text in texts for value in values) is (self.sign == "~")


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
            matches = _sorted(matches, field, descending=descending)
        return matches[: self.limit]


def _sorted(rows: list[JobView], field: str, *, descending: bool) -> list[JobView]:
    if field in TEXTS:
        return sorted(
            rows, key=lambda row: ",".join(TEXTS[field](row)).casefold(), reverse=descending
        )
    value = NUMBERS.get(field) or SPANS.get(field) or MOMENTS[field]
    pairs = [(number, row) for row in rows if (number := value(row)) is not None]
    pairs.sort(key=operator.itemgetter(0), reverse=descending)
    return [*(row for _, row in pairs), *(row for row in rows if value(row) is None)]


def parse(words: Sequence[str]) -> Query:
    """Raises UsageError if the words are not a query. The error names similar fields."""
    terms: list[Term] = []
    order: list[tuple[str, bool]] = []
    limit: int | None = None
    for word in _split(words):
        match = TERM.fullmatch(word)
        if not match:
            raise UsageError(f"`{word[:80]}` is not a condition", EXAMPLE)
        field, sign, value = match[1].lower(), match[2], match[3]
        if not value:
            raise UsageError(f"`{word[:80]}` has no value", EXAMPLE)
        if field == "sort" and sign == "=":
            order += [_order(key) for key in value.split(",")]
        elif field == "limit" and sign == "=":
            if not re.fullmatch(r"[1-9]\d{0,8}", value):
                raise UsageError(f"`{word[:80]}` is not a number of jobs", "e.g. limit=10")
            limit = int(value)
        else:
            terms.append(_term(field, sign, value))
    return Query(tuple(terms), tuple(order), limit)


def _split(words: Sequence[str]) -> list[str]:
    try:
        return [part for word in words for part in shlex.split(word)]
    except ValueError:
        raise UsageError(f"`{' '.join(words)[:80]}`: a quote has no end", EXAMPLE) from None


def _order(text: str) -> tuple[str, bool]:
    field = text.lstrip("-+").lower()
    return _known(field, (*FIELDS, *MOMENTS)), text.startswith("-")


def _term(field: str, sign: str, value: str) -> Term:
    _known(field, FIELDS)
    values = tuple(value.split(",")) if sign in ("=", "!=", "~", "!~") else (value,)
    if field in TEXTS:
        _check_text_sign(field, sign, value)
    else:
        _check_numbers(field, sign, value, values)
    if field == "state" and sign in ("=", "!="):
        _check_states(values)
    return Term(field, sign, values)


def _check_text_sign(field: str, sign: str, value: str) -> None:
    if sign in COMPARISONS:
        raise UsageError(
            f"{field}{sign}: {field} is text", f"compare text with = != ~ or !~: {field}~{value}"
        )


def _check_numbers(field: str, sign: str, value: str, operands: Sequence[str]) -> None:
    if sign in ("~", "!~"):
        raise UsageError(
            f"{field}{sign}: {field} is a number",
            f"compare numbers with = != < > <= or >=: {field}={value}",
        )
    for operand in operands:
        _number(field, operand)


def _check_states(states: Sequence[str]) -> None:
    for state in states:
        if state not in set(JobState):
            raise UsageError(f"unknown state `{state[:40]}`", f"use one of {', '.join(JobState)}")


def _known(field: str, fields: Sequence[str]) -> str:
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
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([smhd%]?)", text)
    if not match or (match[2] in UNITS) is not (field in SPANS):
        example = f"{field}>2h" if field in SPANS else f"{field}>1"
        raise UsageError(f"{field} cannot be compared with `{text[:40]}`", f"e.g. {example}")
    return float(match[1]) * FACTORS[match[2]]
