"""Fills in `{NAME}` with the values of a job of an array. `${NAME}` belongs to the shell and
stays."""

from __future__ import annotations

import re
from collections.abc import Mapping

WRITTEN = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill(text: str, words: Mapping[str, str]) -> str:
    """`text` with each `{name}` of `words` replaced. Other braces stay as they are."""
    return WRITTEN.sub(lambda match: words.get(match[1], match[0]), text) if "{" in text else text


def names(text: str) -> set[str]:
    """The names of all placeholders in `text`."""
    return set(WRITTEN.findall(text))
