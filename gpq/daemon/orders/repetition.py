"""When orders were sent to a server, and when to repeat them."""

from __future__ import annotations

from collections.abc import Container, Mapping

from gpq.core.model.actions import Forget, Launch, OfAttempt, Retune, Stop, Warm
from gpq.core.model.units import JobId, Seconds
from gpq.daemon.clock.clock import Clock

# while they have no effect
REPEAT: Mapping[type[OfAttempt], Seconds] = {
    Launch: 5.0,
    Stop: 30.0,
    Retune: 60.0,
    Forget: 30.0,
    Warm: 60.0,
}
REMEMBER: Seconds = 120.0  # longer than any of the above

Key = tuple[JobId, int]


class Repetition:
    """Over one line to one server. Two threads write it, an order at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: dict[tuple[str, JobId, int], Seconds] = {}

    def clear(self) -> None:
        """There is a new line, and nothing was sent over it."""
        self._times.clear()

    def note(self, action: OfAttempt) -> None:
        """It is being sent now."""
        self._times[_order(action)] = self._clock.elapsed()

    def is_time(self, action: OfAttempt) -> bool:
        said_at = self._times.get(_order(action))
        return said_at is None or self._clock.elapsed() - said_at >= REPEAT[type(action)]

    def start_time(self, key: Key, default: Seconds) -> Seconds:
        """When a start of the attempt was last sent."""
        return self._times.get((Launch.__name__, *key), default)

    def drop_old(self, attempts: Container[Key]) -> None:
        """Forget orders to attempts that are gone. `attempts` are those that the server has."""
        elapsed = self._clock.elapsed()
        for order, said_at in list(self._times.items()):
            if elapsed - said_at > REMEMBER and order[1:] not in attempts:
                self._times.pop(order, None)


def _order(action: OfAttempt) -> tuple[str, JobId, int]:
    return type(action).__name__, action.job, action.attempt
