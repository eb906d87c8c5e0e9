"""Which daemon this is, as agents learn it, whether it may still give orders (no newer daemon has
opened the database), and the secrets that it gives to attempts."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DaemonEpoch:
    store: str  # id of the database
    epoch: int
    holds: Callable[[], bool]  # asked again each time. False also if that cannot be told
    # of the database. A daemon without one has its own
    secret: str = field(default_factory=secrets.token_hex, repr=False)

    def secret_of(self, attempt: str) -> str:
        """That of an attempt, for all its servers, and the same if the order is repeated."""
        return hmac.new(self.secret.encode(), attempt.encode(), "sha256").hexdigest()


# without a database: agents do not fence it, and it has no leases
UNNAMED = DaemonEpoch("", 0, lambda: True)
