"""An outage of one server: how long to wait before the next try, and what to log. It logs the first
tries, each new reason, and then tries at doubling distances."""

from __future__ import annotations

import logging

from gpq import pace
from gpq.core.model.units import NodeId, Seconds

FIRST_TRIES = 3  # tries of an outage that get a line each
MOST_REASONS = 8  # reasons that get a line at once. More are of a kind that never ends

log = logging.getLogger(__name__)


class Outage:
    """The tries to reach `node` since it last answered."""

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self._tries = 0
        self._reasons: set[str] = set()
        self._backoff = pace.FIRST_BACKOFF

    def begin(self) -> None:
        """The server answered for a while: tries are close together again."""
        self._backoff = pace.FIRST_BACKOFF

    def failed(self, reason: str, *, is_hopeful: bool) -> Seconds:
        """A connection, or a try to make one, ended. Returns the most seconds to wait before the
        next one. They grow further if there is little hope."""
        wait = self._backoff
        longest = pace.HOPEFUL_BACKOFF if is_hopeful else pace.LAST_BACKOFF
        self._backoff = min(wait * 2, longest)
        self._log(reason, wait)
        return wait

    def _log(self, reason: str, wait: Seconds) -> None:
        self._tries += 1
        is_new = reason not in self._reasons and len(self._reasons) < MOST_REASONS
        if is_new:
            self._reasons.add(reason)
        if self._tries <= FIRST_TRIES:
            log.info("%s: %s. Next try in %.1f s", self.node, reason, wait)
        elif is_new or self._tries & (self._tries - 1) == 0:
            log.info(
                "%s: %s. That was try %d, next try in %.1f s", self.node, reason, self._tries, wait
            )

    def over(self) -> None:
        """It answers."""
        if self._tries > FIRST_TRIES:
            log.info("%s: answers again after %d tries", self.node, self._tries)
        self._tries = 0
        self._reasons.clear()
