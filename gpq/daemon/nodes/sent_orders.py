"""What was sent to a server: when to repeat an order, and which starts it refused. A refusal is
reported when no order can start its attempt any more."""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Mapping

from gpq_agent import wire

from gpq.core.model.actions import Forget, Launch, OfAttempt, Retune, Stop, Warm
from gpq.core.model.events import EnvironmentSeen, Event, StartRefused
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.daemon.clock import Clock
from gpq.daemon.nodes.decode import Key
from gpq.daemon.nodes.link import Reply

# while they have no effect
REPEAT: Mapping[type[OfAttempt], Seconds] = {
    Launch: 5.0,
    Stop: 30.0,
    Retune: 60.0,
    Forget: 30.0,
    Warm: 60.0,
}
REMEMBER: Seconds = 120.0  # longer than any of the above
PATIENCE: Seconds = 10.0  # a start refused for a temporary reason is tried again for this long
SHELL_CODES = {"not-found": 127, "not-executable": 126}  # of refusals
TRANSIENT = ("busy", "used", "unfit")  # kinds of refusals that another try may not get
log = logging.getLogger(__name__)


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

    def start_time(self, key: Key) -> Seconds:
        """When a start of the attempt was last sent. 0 if none was."""
        return self._times.get((Launch.__name__, *key), 0.0)

    def drop_old(self, attempts: Container[Key]) -> None:
        """Forget orders to attempts that are gone. `attempts` are those that the server has."""
        elapsed = self._clock.elapsed()
        for order, said_at in list(self._times.items()):
            if elapsed - said_at > REMEMBER and order[1:] not in attempts:
                self._times.pop(order, None)


def _order(action: OfAttempt) -> tuple[str, JobId, int]:
    return type(action).__name__, action.job, action.attempt


class Refusals:
    """For one server. Used by the thread of its answers."""

    def __init__(self, node: NodeId, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._since: dict[Key, Seconds] = {}
        self._unanswered: dict[Key, list[Seconds]] = {}  # when starts were sent
        # final, but not reported while another start may be on its way
        self._refusals: dict[Key, StartRefused] = {}
        self._lacks: dict[Key, EnvironmentSeen] = {}  # reported after the refusal
        self.told: set[Key] = set()

    def is_over(self, key: Key) -> bool:
        """Is its end reported, or about to be? That may be long before its commit."""
        return key in self._refusals or key in self.told

    def expect_answer(self, key: Key, said_at: Seconds) -> None:
        """A start is on its way from now on."""
        self._unanswered.setdefault(key, []).append(said_at)

    def answer(self, key: Key, said_at: Seconds) -> None:
        """That start is no longer on its way. Forgotten if it was too long ago."""
        start_times = self._unanswered.get(key, [])
        if said_at in start_times:
            start_times.remove(said_at)

    def withdraw(self, key: Key) -> None:
        """Another start of the attempt did have an effect."""
        self._refusals.pop(key, None)

    def note(self, launch: Launch, reply: Reply) -> bool:
        """Is the refusal final? A temporary reason gets some time: the next check finds the attempt
        missing and starts it again."""
        key = (launch.job, launch.attempt)
        kind, reason = reply.get("kind", ""), str(reply.get("error", "refused"))
        elapsed = self._clock.elapsed()
        since = self._since.setdefault(key, elapsed)
        # taken: somebody else has the device, so another place is better
        passing = kind == "busy" and not reply.get("taken")
        if kind in ("expired", "stale") or (passing and elapsed - since < PATIENCE):
            return False
        log.info("%s: refuses attempt %d.%d: %s", self._node, launch.job, launch.attempt, reason)
        self._refusals[key] = StartRefused(
            self._clock.now(),
            *key,
            self._node,
            reason,
            transient=kind in TRANSIENT,
            code=SHELL_CODES.get(kind),
        )
        if kind == "unfit":
            self._lacks[key] = EnvironmentSeen(
                self._clock.now(),
                self._node,
                launch.spec.environment,
                False,
                reason,
                str(reply.get("hint", "")),
            )
        return True

    def due(self, attempts: Collection[Key]) -> list[list[Event]]:
        """What to report now for each attempt that no order can start any more. `attempts` are
        those that the server has."""
        oldest = self._clock.elapsed() - wire.START_EXPIRY - 1.0
        news: list[list[Event]] = []
        for key, refusal in list(self._refusals.items()):
            if key in attempts:
                del self._refusals[key]
            elif not any(said_at > oldest for said_at in self._unanswered.get(key, ())):
                del self._refusals[key]
                self.told.add(key)
                lack = self._lacks.pop(key, None)
                news.append([refusal] if lack is None else [refusal, lack])
        return news

    def drop_old(self) -> None:
        """Forget what is older than REMEMBER."""
        elapsed = self._clock.elapsed()
        for key, since in list(self._since.items()):
            if elapsed - since > REMEMBER:
                del self._since[key]
        for key, start_times in list(self._unanswered.items()):
            if elapsed - max(start_times, default=0.0) > REMEMBER:
                del self._unanswered[key]
