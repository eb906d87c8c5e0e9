"""What gpq says about a job: a headline, the reasons, and what would change it. As codes and facts.
`gpq.control.answers.reason_text` makes sentences of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """`code` is stable for scripts: `gpq why --json` prints it. `facts` are what its sentence
    names: numbers, names, or a whole line of a lower package."""

    code: str
    facts: Mapping[str, object]


def reason(code: str, **facts: object) -> Reason:
    return Reason(code, facts)


def lines(code: str, sentences: list[str]) -> list[Reason]:
    """Reasons whose sentences come from a lower package."""
    return [reason(code, line=line) for line in sentences]


@dataclass(frozen=True, slots=True)
class JobReasons:
    """`headline` fits in a table cell, `reasons` are sentences, and `remedies` say what would
    change it."""

    headline: Reason
    reasons: tuple[Reason, ...] = ()
    remedies: tuple[Reason, ...] = ()
