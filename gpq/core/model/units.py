"""Basic types: ids, seconds, words. Imported from `models`. They are here so that other types can
be in several files."""

from __future__ import annotations

from enum import Enum
from typing import NewType

Seconds = float
JobId = NewType("JobId", int)
NodeId = NewType("NodeId", str)
DeviceId = NewType("DeviceId", str)


class Word(str, Enum):
    """An enumeration whose members are their words and print as them (enum.StrEnum needs Python
    3.11)."""

    def __str__(self) -> str:
        return str(self.value)
