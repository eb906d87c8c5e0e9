"""Which daemon this is, as node agents are told, and whether it still may order: no newer one has
opened the database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DaemonEpoch:
    store: str  # id of the database
    epoch: int
    holds: Callable[[], bool]  # asked anew each time; False also where that cannot be told


# without a database: agents do not fence it, and it has no leases
UNNAMED = DaemonEpoch("", 0, lambda: True)
