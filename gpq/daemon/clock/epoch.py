"""Which daemon this is, as agents learn it, and whether it may still give orders: no newer daemon
has opened the database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DaemonEpoch:
    store: str  # id of the database
    epoch: int
    holds: Callable[[], bool]  # asked again each time. False also if that cannot be told


# without a database: agents do not fence it, and it has no leases
UNNAMED = DaemonEpoch("", 0, lambda: True)
