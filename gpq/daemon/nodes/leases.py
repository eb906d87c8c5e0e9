"""Checks each second whether a server has been silent for longer than a lease, and reports the ends
that follow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from gpq import pace
from gpq.core.feasibility.leases import given_up
from gpq.core.model.events import Event, NodeSilent
from gpq.core.model.nodes import NodeState
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import NodeId, Seconds
from gpq.daemon.clock import steady_seconds
from gpq.daemon.nodes.decode import Key
from gpq.daemon.nodes.link import NO_ANSWER

LOOK: Seconds = 1.0
ABSENCE: Seconds = 5.0  # between two checks: this daemon was stopped, or its machine slept


class LeaseWatch:
    """`heard` gives for each configured server when gpq last heard of it (`elapsed`). `forgo`
    receives the attempts that a server may not start any more, because their end is reported. That
    may be long before its commit (a full disk). `resume` takes this back."""

    def __init__(
        self,
        heard: Callable[[], Mapping[NodeId, Seconds]],
        view: Callable[[], Snapshot],
        now: Callable[[], Seconds],
        inbox: Callable[[Sequence[Event]], None],
        monotonic: Callable[[], Seconds] = steady_seconds,
        *,
        forgo: Callable[[NodeId, frozenset[Key]], None],
        resume: Callable[[NodeId, frozenset[Key]], None],
    ) -> None:
        self._heard = heard
        self._forgo = forgo
        self._resume = resume
        self._view = view
        self._now = now
        self._inbox = inbox
        self._monotonic = monotonic
        self._not_before = self._looked_at = monotonic()
        self._missing_since: dict[NodeId, Seconds] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._closing.wait(LOOK):
            events = self.look()
            if events:
                self._inbox(events)

    def look(self) -> list[Event]:
        """The ends that are certain by now. A server that is no longer configured counts as silent
        since the first look that missed it."""
        monotonic_now, snapshot = self._monotonic(), self._view()
        if monotonic_now - self._looked_at > ABSENCE:
            self._not_before = monotonic_now + pace.LISTENING
        self._looked_at = monotonic_now
        if monotonic_now < self._not_before:
            return []
        heard = self._heard()
        nodes = {name for job in snapshot.holders for name in job.nodes}
        self._missing_since = {
            name: self._missing_since.get(name, monotonic_now) for name in nodes - heard.keys()
        }
        events: list[Event] = []
        for node in sorted(nodes):
            since = heard.get(node, self._missing_since.get(node, monotonic_now))
            now, silence = self._now(), monotonic_now - since
            ends = given_up(snapshot, node, silence, now)
            if not ends:
                continue
            keys = frozenset((end.job, end.attempt) for end in ends)
            self._forgo(node, keys)
            if self._heard().get(node, since) != since:
                # heard of in between: it may just have received the order to start them
                self._resume(node, keys)
                continue
            server = snapshot.nodes.get(node)
            # Otherwise the next round might choose this server. For a server that is known to be
            # silent, the reason is also known.
            if server is not None and server.state is not NodeState.UNREACHABLE:
                events.append(NodeSilent(now, node, NO_ANSWER, now - silence))
            events += ends
        return events
