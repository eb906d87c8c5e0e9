"""The text of `gpq doctor`, also with `--gpu`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpq.views.plain import safe, wrapped

GPU_VERDICTS = ("PASS", "FAIL", "SKIP")  # of `gpq doctor --gpu`


class Check(Protocol):
    """The result of one check."""

    @property
    def name(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def fix(self) -> str: ...
    @property
    def node(self) -> str: ...


def lines(
    checks: Sequence[Check],
    limit: int,
    bar: str = "█",
    verdicts: Sequence[str] = ("ok", "warn", "fail"),
) -> list[str]:
    """One line per check with its fix below, and the number of each verdict at the end."""
    names = [f"{check.node} {check.name}".strip() for check in checks]
    size = max(map(len, names), default=0)
    text: list[str] = []
    for name, check in zip(names, checks, strict=True):
        text += wrapped(
            safe(check.message),
            limit,
            f"{check.verdict:4}  {safe(name):{size}}  ",
            " " * (size + 8),
        )
        if check.fix and check.verdict != "ok":
            text += wrapped(safe(check.fix), limit, " " * (size + 8) + "fix: ", " " * (size + 13))
    count = {verdict: sum(check.verdict == verdict for check in checks) for verdict in verdicts}
    return [*text, "", ", ".join(f"{number} {verdict}" for verdict, number in count.items())]
