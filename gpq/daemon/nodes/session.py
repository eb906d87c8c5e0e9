"""What the daemon says to one server, and what the answers mean: greeting, watches, orders and
their repetition. No threads and no pipes: the owner of a line to the server lends it. It never
changes the state and only reads the newest committed snapshot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpq_agent import wire

from gpq import pace
from gpq.core.feasibility import environments
from gpq.core.model.actions import Action, Launch, OfAttempt, Prepare, Warm
from gpq.core.model.events import EnvironmentSeen, Event, NodeSeen, StartRefused
from gpq.core.model.nodes import NOT_YET, Node
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import NodeId, Seconds
from gpq.core.rounds import planning
from gpq.core.rounds.reconcile import standing
from gpq.daemon import orders
from gpq.daemon.clock import Clock
from gpq.daemon.nodes import decode
from gpq.daemon.nodes.decode import ALIVE, Info, Key
from gpq.daemon.nodes.link import NO_ANSWER, Callback, LinkLost, Reply, Send
from gpq.daemon.nodes.observer import Observer
from gpq.daemon.nodes.sent_orders import Refusals, Repetition
from gpq.daemon.nodes.settings import NodePorts, NodeSettings

OWNER_LOOK: Seconds = 2.0  # between two checks of the GPUs of a server with an owner
LEASE_SHARE = 0.25  # part of the shortest lease after which a watch answers at the latest
FIRST_TRIES = 3  # tries of an outage that get a line each
MOST_REASONS = 8  # reasons that get a line at once. More are of a kind that never ends
log = logging.getLogger(__name__)


class NodeSession:
    """Over as many connections as it takes: `attempt`, `begin` with a line, replies to requests,
    `over`.

    All of these and the replies come from one thread. `order` may come from another. `line` is set
    after the server's first full report was taken in.
    """

    def __init__(self, settings: NodeSettings, ports: NodePorts) -> None:
        self.node = settings.node
        self.line: Send | None = None
        self._settings = settings
        self._library = settings.library  # until the agent says where it is
        self._keeps_standbys = False
        self._clock, self._inbox, self._view = ports.clock, ports.inbox, ports.view
        self._epoch, self._ready = ports.epoch, ports.ready
        self._looks = EnvironmentLooks(settings, ports.clock, ports.inbox)
        self._repetition = Repetition(ports.clock)
        self._refusals = Refusals(settings.node, ports.clock)
        self._observer = Observer(settings, ports.clock)
        # A daemon counts the silence of a server from its own start.
        self._tried_at = self._connected_at = self.heard_at = ports.clock.elapsed()
        # boot id and stamp of the last one taken in on this line
        self._report: Mapping[str, Any] = {}
        self._outage = Outage(settings.node)
        self._forgone: frozenset[Key] = frozenset()  # only the thread of the leases writes it

    def start(self) -> None:
        now = self._clock.now()
        unheard = Node(self.node, reason=NOT_YET, silent_since=now, owner=self._settings.owner)
        self._inbox([NodeSeen(now, unheard)])

    # -- connections -------------------------------------------------------------------------------

    def attempt(self) -> None:
        """The caller is about to try a connection."""
        self._tried_at = self._clock.elapsed()

    def begin(self, send: Send) -> None:
        """There is a new line: greet."""
        self._repetition.clear()
        self._looks.clear()
        self._connected_at = self._clock.elapsed()
        hello = {"store": self._epoch.store, "epoch": self._epoch.number}
        send("hello", hello, _unless_lost(lambda reply: self._on_hello(send, reply)))

    def cut(self) -> None:
        """The line is no longer usable."""
        self.line = None

    def waiting(self) -> None:
        """A connection is still being made."""
        silence = self._clock.elapsed() - self.heard_at
        if self._observer.is_up and silence > pace.SILENCE:
            self._tell(self._observer.silent(NO_ANSWER, silence))

    def over(self, reason: str, *, refused: bool = False) -> Seconds:
        """The connection, or the try, ended. Returns the most seconds to wait before the next one.
        Longer if the server refused us, because a person has to change that."""
        silence = self._clock.elapsed() - self.heard_at
        if self.heard_at - self._tried_at > pace.LAST_BACKOFF:
            self._outage.begin()
        is_hopeful = not refused and silence < pace.HOPEFUL
        wait = self._outage.failed(reason, is_hopeful=is_hopeful)
        # An agent that ended and is back at once is no news. One that does not come back is. If it
        # was heard of on this very line, but long ago by the clock, our own machine may have been
        # suspended, and the next try tells.
        ended = reason != NO_ANSWER and self.heard_at >= self._tried_at
        if not self._observer.is_up or (silence > 0.9 * pace.SILENCE and not ended):
            self._tell(self._observer.silent(reason, silence))
        return wait

    # -- orders ------------------------------------------------------------------------------------

    def order(self, action: Action) -> None:
        """Send it to the server. Without a line it is not kept, because the next line shows that it
        is missing."""
        line = self.line
        if line is None:
            return
        if isinstance(action, Prepare):
            self._looks.ask(line, action)
        else:
            self._say(line, action)

    def nudge(self) -> None:
        """What a start waited for may be there: check at once, in the thread of the answers."""
        line = self.line
        if line is None:
            return

        def start_standing(_: Reply) -> None:
            for action in standing(self._view(), self.node):
                if isinstance(action, Launch) and self._repetition.is_time(action):
                    self._say(line, action)

        line("ping", {}, _unless_lost(start_standing))

    def forgo(self, keys: frozenset[Key]) -> None:
        """These were given up, perhaps not committed yet, so they must not start now."""
        self._forgone |= keys

    def resume(self, keys: frozenset[Key]) -> None:
        self._forgone -= keys

    def _say(self, send: Send, action: OfAttempt) -> None:
        if isinstance(action, Launch) and not self._ready(action):
            return
        self._repetition.note(action)
        if isinstance(action, Launch):
            self._say_start(send, action)
            return
        if isinstance(action, Warm):
            order = self._start_order(orders.as_expected(action.launch))
            operation, fields = "warm", {"order": order._asdict()}
        else:
            operation, fields = orders.message(action)
        key = wire.attempt_key(action.job, action.attempt)

        def log_refusal(reply: Reply) -> None:
            if not reply.get("ok"):
                log.info("%s: %s of attempt %s: %s", self.node, operation, key, reply.get("error"))

        send(operation, fields, _unless_lost(log_refusal))

    def _say_start(self, send: Send, launch: Launch) -> None:
        if not orders.can_meet(launch, self._view().nodes):
            return  # repeated after the others have been heard of
        order = self._start_order(launch)
        key, said_at = (launch.job, launch.attempt), self._clock.elapsed()
        if key in self._forgone or self._refusals.is_over(key):
            return
        # asked after the report was read, because a start acknowledges it
        if not self._epoch.holds():
            return
        if order.lease > 0 and not (order.stamp and order.store):
            now = self._clock.now()
            reason = "its agent does not support leases (--requeue-on-lost)"
            self._tell([StartRefused(now, *key, self.node, reason, transient=True)])
            return
        self._refusals.expect_answer(key, said_at)
        if order.masters:
            secret = self._epoch.secret_of(wire.attempt_key(*key))
            order = order._replace(secret=secret)
        fields = {"order": order._asdict()}
        send("start", fields, _unless_lost(lambda reply: self._on_start(launch, said_at, reply)))

    def _start_order(self, launch: Launch) -> wire.StartOrder:
        order = orders.start_order(
            launch, self.node, nodes=self._view().nodes, library=self._library,
            python=self._settings.python, variables=self._settings.variables,
            local=self._settings.attributes,
        )  # fmt: skip
        return order._replace(
            **self._report,
            store=self._epoch.store,
            log_limit=self._settings.log_limit,
            standby_after=self._settings.standby_after if order.standby_after == 0.0 else None,
        )

    def _on_start(self, launch: Launch, said_at: Seconds, reply: Reply) -> None:
        key = (launch.job, launch.attempt)
        self._refusals.answer(key, said_at)
        if reply.get("ok"):
            self._refusals.withdraw(key)
            info = decode.attempt(reply["attempt"])
            self._tell(self._observer.of_attempt(info, self._view(), drained=False))
        elif self._refusals.note(launch, reply):
            self._tell_refusals(())

    def _tell_refusals(self, attempts: Collection[Key]) -> None:
        """Refusals of attempts that no order can start any more."""
        for events in self._refusals.due(attempts):
            self._tell(events)

    # -- answers -----------------------------------------------------------------------------------

    def _on_hello(self, send: Send, reply: Reply) -> None:
        if not reply.get("ok"):
            hint = f" ({reply['hint']})" if reply.get("hint") else ""
            raise LinkLost(f"the agent refuses: {reply.get('error')}{hint}")
        if reply["version"] != wire.VERSION:
            raise LinkLost(f"the agent speaks version {reply['version']}, not {wire.VERSION}")
        self._observer.greet(reply)
        self._library = self._library or str(reply["library"])
        self._keeps_standbys = self._settings.standby_after is not None and "standbys" in reply
        self._take_in(reply, str(reply["boot_id"]))
        self._watch(send, digest=None, wait=0.0, stamp=None)

    def _take_in(self, reply: Reply, boot_id: str) -> None:
        """Note when, before anything acknowledges it: rule a of leases in wire."""
        self.heard_at = self._clock.elapsed()
        self._report = decode.acknowledgement(reply, boot_id)

    def _watch(self, send: Send, digest: Any, wait: Seconds, stamp: float | None) -> None:
        offsets = self._observer.offsets(self._view())
        fields: dict[str, Any] = {"offsets": offsets, "seen": digest, "wait": wait, "heard": stamp}
        if self._settings.owner:
            fields["look"] = OWNER_LOOK
        send("watch", fields, _unless_lost(lambda reply: self._on_watch(send, offsets, reply)))

    def _on_watch(self, send: Send, offsets: Mapping[str, int], reply: Reply) -> None:
        if not reply.get("ok"):
            raise LinkLost(f"the agent refuses: {reply.get('error')}")
        self._take_in(reply, self._report.get("boot_id", ""))
        holds = self._epoch.holds()
        snapshot = self._view()
        attempts = decode.attempts_of(reply["attempts"])
        events, more = self._observer.news(
            attempts,
            reply["devices"],
            snapshot,
            offsets=offsets,
            start_possible=self._start_possible,
            stamp=reply.get("stamp"),
            yields=reply.get("yields", ()),
        )
        self._tell(events)
        self._tell_refusals(attempts)
        if holds:  # otherwise a newer daemon gives orders and renews
            self._heal(send, attempts, snapshot)
        self.line = send
        self._outage.over()
        leases = (
            job.spec.requeue_on_lost * LEASE_SHARE or pace.WATCH
            for job in snapshot.expected_on(self.node)
        )
        patience = 0.0 if more else min([pace.WATCH, *leases])
        self._watch(send, reply["digest"], patience, self._report.get("stamp") if holds else None)

    def _start_possible(self, key: Key) -> bool:
        """May an order to start this attempt still be on its way, from us or from the previous
        daemon?"""
        said_at = max(self._repetition.start_time(key), self._connected_at)
        return self._clock.elapsed() - said_at < wire.START_EXPIRY + 1.0

    def _heal(self, send: Send, attempts: Mapping[Key, Info], snapshot: Snapshot) -> None:
        """Repeat what still stands but had no effect, and release what is over."""
        for action in standing(snapshot, self.node):
            state = attempts.get((action.job, action.attempt), {}).get("state")
            expected_states = (None,) if isinstance(action, Launch) else ALIVE
            if state in expected_states and self._repetition.is_time(action):
                self._say(send, action)
        snapshot = replace(snapshot, now=self._clock.now())
        for warm in planning.standbys_due(snapshot, self.node) if self._keeps_standbys else ():
            if self._repetition.is_time(warm):
                self._say(send, warm)
        for look in environments.checks_due(snapshot, self.node):
            self._looks.ask(send, look)
        for key, info in attempts.items():
            end = self._observer.end_of(key, info, snapshot)
            if end is not None and self._repetition.is_time(end):
                self._say(send, end)
        self._repetition.drop_old(attempts)
        self._refusals.drop_old()

    def _tell(self, events: Sequence[Event]) -> None:
        if events:
            self._inbox(events)


def _unless_lost(callback: Callback) -> Callback:
    """If the line ends before the reply, the next line shows what is missing."""

    def on_reply(reply: Reply) -> None:
        if not reply.get("lost"):
            callback(reply)

    return on_reply


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
        order = orders.prepare_order(
            look,
            self._settings.python,
            self._settings.setup_limit,
            self._settings.variables,
            self._settings.attributes,
        )
        fields = {"prepare": order._asdict()}
        send("prepare", fields, _unless_lost(lambda reply: self._on_reply(look, reply)))

    def _on_reply(self, look: Prepare, reply: Reply) -> None:
        self._under_way.discard(look.environment)
        if not reply.get("ok") and reply.get("kind") in ("busy", "stale"):
            return  # it is requested again
        # An agent that refuses the request itself has no checks: it is older than 0.2. Missing
        # things then show at the start.
        fit = bool(reply.get("fit", True))
        reason, fix = str(reply.get("reason", "")), str(reply.get("fix", ""))
        now, node = self._clock.now(), self._settings.node
        self._inbox([EnvironmentSeen(now, node, look.environment, fit, reason, fix)])


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
        return wait

    def over(self) -> None:
        """It answers."""
        if self._tries > FIRST_TRIES:
            log.info("%s: answers again after %d tries", self.node, self._tries)
        self._tries = 0
        self._reasons.clear()
