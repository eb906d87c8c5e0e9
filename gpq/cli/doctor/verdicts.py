"""One line of `gpq doctor`."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Check:
    name: str
    verdict: str  # "ok" | "warn" | "fail"
    message: str
    fix: str = ""
    node: str = ""  # the server, "" for this machine or for several servers

    def row(self) -> dict[str, str]:
        return asdict(self)
