"""What is said of a job: a headline, the reasons, and what would change it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explained:
    """`headline` fits in a table cell; `reasons` are sentences; `remedies` say what would change
    it."""

    headline: str
    reasons: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
