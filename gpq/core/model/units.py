"""What the nouns are made of: ids, seconds, words. Imported from `models`; here only so that nouns
can lie in several files."""

from __future__ import annotations

from enum import Enum
from typing import NewType

Seconds = float
JobId = NewType("JobId", int)
NodeId = NewType("NodeId", str)
DeviceId = NewType("DeviceId", str)


class Word(str, Enum):
    """An enumeration whose members are and print as their words (enum.StrEnum needs Python
    3.11)."""

    def __str__(self) -> str:
        return str(self.value)
