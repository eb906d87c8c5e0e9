"""The text of `gpq doctor`, also with `--gpu`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpq.views.plain import safe, wrapped

SECTIONS = {"A": "driver", "B": "one replica", "C": "several GPUs"}


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


def lines(checks: Sequence[Check], limit: int, bar: str = "█") -> list[str]:
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
    count = {
        verdict: sum(check.verdict == verdict for check in checks)
        for verdict in ("ok", "warn", "fail")
    }
    return [*text, "", ", ".join(f"{number} {verdict}" for verdict, number in count.items())]


class GpuCheck(Protocol):
    """The result of one check of a GPU."""

    @property
    def node(self) -> str: ...
    @property
    def section(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def figure(self) -> str: ...
    @property
    def seconds(self) -> float: ...


def gpu_lines(checks: Sequence[GpuCheck], limit: int, bar: str = "█") -> list[str]:
    """One line per check, with a heading for each server and section, and the number of each
    verdict at the end."""
    size = max((len(check.name) for check in checks), default=0)
    text: list[str] = []
    head = ""
    for check in checks:
        title = f"{safe(check.node)} {check.section}: {SECTIONS.get(check.section, '')}".strip()
        if title != head:
            if text:
                text.append("")
            text.append(title)
            head = title
        prefix = f"{check.verdict:4}  {safe(check.name):{size}}  "
        text += wrapped(safe(check.figure), limit, prefix, " " * (size + 8))
    count = {
        verdict: sum(check.verdict == verdict for check in checks)
        for verdict in ("PASS", "FAIL", "SKIP")
    }
    return [*text, "", ", ".join(f"{number} {verdict}" for verdict, number in count.items())]
