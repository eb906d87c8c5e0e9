"""Checks whether a server has what jobs will need there, before any of them starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpq.core.model.actions import Prepare
from gpq.core.model.events import EnvironmentSeen, Event
from gpq.daemon.clock.clock import Clock
from gpq.daemon.nodes.link import Reply, Send
from gpq.daemon.nodes.settings import NodeSettings
from gpq.daemon.orders import start_orders


class EnvironmentLooks:
    """For one server. What it finds goes to `inbox`."""

    def __init__(
        self, settings: NodeSettings, clock: Clock, inbox: Callable[[Sequence[Event]], None]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._inbox = inbox
        self._under_way: set[str] = set()  # environments

    def clear(self) -> None:
        """There is a new line: requests over the old one get no answer."""
        self._under_way.clear()

    def ask(self, send: Send, look: Prepare) -> None:
        """Once. The answer may take as long as a setup."""
        if look.environment in self._under_way:
            return
        self._under_way.add(look.environment)
        order = start_orders.prepare_order(
            look,
            self._settings.python,
            self._settings.setup_limit,
            self._settings.variables,
            self._settings.attributes,
        )
        send("prepare", {"prepare": order._asdict()}, lambda reply: self._on_reply(look, reply))

    def _on_reply(self, look: Prepare, reply: Reply) -> None:
        if reply.get("lost"):
            return
        self._under_way.discard(look.environment)
        if not reply.get("ok") and reply.get("kind") in ("busy", "stale"):
            return  # it is requested again
        # An agent that refuses the request itself has no checks: it is older than 0.2. Missing
        # things then show at the start.
        fit = bool(reply.get("fit", True))
        reason, fix = str(reply.get("reason", "")), str(reply.get("fix", ""))
        now, node = self._clock.now(), self._settings.node
        self._inbox([EnvironmentSeen(now, node, look.environment, fit, reason, fix)])
