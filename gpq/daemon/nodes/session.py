"""What is said to one node, and what its answers mean: greeting, watches, orders and their
repetition. No threads, no pipes: whoever has a line to the node lends it. It never touches the
state: the newest committed snapshot is only read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpq_agent import wire

from gpq import pace
from gpq.core.feasibility import environments
from gpq.core.model.actions import Action, Forget, Launch, OfAttempt, Prepare, Retune, Stop
from gpq.core.model.events import EnvironmentSeen, Event, NodeSeen, StartRefused
from gpq.core.model.jobs import StopReason
from gpq.core.model.nodes import NOT_YET, Node
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.core.rounds.planning import CANCEL_GRACE
from gpq.core.rounds.reconcile import Fate, fate, standing
from gpq.daemon.nodes import decode, start_orders
from gpq.daemon.nodes.link import NO_ANSWER, Callback, LinkLost, Reply
from gpq.daemon.nodes.observer import ALIVE, Key, Observer
from gpq.daemon.nodes.outage_log import Outage
from gpq.daemon.nodes.settings import NodePorts, NodeSettings

log = logging.getLogger(__name__)

OWNER_LOOK: Seconds = 2.0  # between two looks at the GPUs of a server that is somebody's
LEASE_SHARE = 0.25  # of the shortest lease, after which a watch answers at the latest
# while of no effect
REPEAT: Mapping[type[OfAttempt], Seconds] = {Launch: 5.0, Stop: 30.0, Retune: 60.0, Forget: 30.0}
REFUSED_PATIENCE: Seconds = 10.0  # a start refused for a passing reason is tried again this long
REMEMBER: Seconds = 120.0  # longer than any of the above
SHELL_CODES = {"not-found": 127, "not-executable": 126}  # of refusals

Send = Callable[[str, Mapping[str, Any], Callback], None]  # as Link.send


class Conversation:
    """Over as many connections as it takes: `attempt`, `begin` with a line, replies to what was
    sent, `over`.

    All of these and the replies come from one thread; `order` may come from another. `line` is
    there once the node's first full report was taken in.
    """

    def __init__(self, settings: NodeSettings, ports: NodePorts) -> None:
        self.node = settings.node
        self.line: Send | None = None
        self._settings = settings
        self._library = settings.library  # until the agent says where it lies
        # environments that the node was asked to look at on this line, when
        self._looks: dict[str, Seconds] = {}
        self._clock, self._inbox, self._view = ports.clock, ports.inbox, ports.view
        self._reign, self._ready = ports.reign, ports.ready
        # What was said on this line, and when; written by two threads, a key at a time.
        self._order_times: dict[tuple[str, JobId, int], Seconds] = {}
        self._observer = Observer(settings, ports.clock)
        # A daemon counts the silence of a node from its own start.
        self._tried_at = self._connected_at = self.heard_at = ports.clock.elapsed()
        # boot id and stamp of the last one taken in on this line
        self._report: Mapping[str, Any] = {}
        self._refused_since: dict[Key, Seconds] = {}
        self._unanswered: dict[Key, list[Seconds]] = {}  # starts said, when
        # for good; not told while another start may be under way
        self._refusals: dict[Key, StartRefused] = {}
        self._told_refused: set[Key] = set()
        self._lacks: dict[Key, EnvironmentSeen] = {}  # told with the refusal, after it
        self._backoff = pace.FIRST_BACKOFF
        self._outage = Outage(settings.node)
        self._forgone: frozenset[Key] = frozenset()  # written by the thread of the leases alone

    def start(self) -> None:
        now = self._clock.now()
        unheard = Node(self.node, reason=NOT_YET, silent_since=now, owner=self._settings.owner)
        self._inbox([NodeSeen(now, unheard)])

    # -- connections -------------------------------------------------------------------------------

    def attempt(self) -> None:
        """A connection is about to be tried."""
        self._tried_at = self._clock.elapsed()

    def begin(self, send: Send) -> None:
        """There is a new line: greet."""
        self._order_times.clear()
        self._looks.clear()
        self._connected_at = self._clock.elapsed()
        hello = {"store": self._reign.store, "epoch": self._reign.epoch}
        send("hello", hello, lambda reply: self._on_hello(send, reply))

    def cut(self) -> None:
        """The line is no good any more."""
        self.line = None

    def waiting(self) -> None:
        """A connection is still being made."""
        silence = self._clock.elapsed() - self.heard_at
        if self._observer.is_up and silence > pace.SILENCE:
            self._tell(self._observer.silent(NO_ANSWER, silence))

    def over(self, reason: str, *, refused: bool = False) -> Seconds:
        """The connection, or the try, came to its end. Seconds to wait at most before the next;
        longer where the node refused us, which takes a person to change."""
        if self.heard_at - self._tried_at > pace.LAST_BACKOFF:
            self._backoff = pace.FIRST_BACKOFF
        wait = self._backoff
        self._outage.failed(reason, wait)
        # An agent that ended and is back at once is no news; one that does not come back is. Where
        # it was heard of on this very line, long ago by the clock, it may be us who stood still:
        # the next try tells.
        silence = self._clock.elapsed() - self.heard_at
        ended = reason != NO_ANSWER and self.heard_at >= self._tried_at
        if not self._observer.is_up or (silence > 0.9 * pace.SILENCE and not ended):
            self._tell(self._observer.silent(reason, silence))
        is_hopeful = not refused and silence < pace.HOPEFUL
        self._backoff = min(wait * 2, pace.HOPEFUL_BACKOFF if is_hopeful else pace.LAST_BACKOFF)
        return wait

    # -- orders ------------------------------------------------------------------------------------

    def order(self, action: Action) -> None:
        """Say it to the node. Without a line it is not kept: it is found missing once there is
        one."""
        line = self.line
        if line is not None:
            self._say_look(line, action) if isinstance(action, Prepare) else self._say(line, action)

    def nudge(self) -> None:
        """What a start waited for may be there: look at once, in the thread of the answers."""
        line = self.line
        if line is not None:
            line(
                "ping", {}, lambda reply: None if reply.get("lost") else self._start_standing(line)
            )

    def _start_standing(self, send: Send) -> None:
        for action in standing(self._view(), self.node):
            if isinstance(action, Launch) and self._is_time(action):
                self._say(send, action)

    def forgo(self, keys: frozenset[Key]) -> None:
        """These were given up, and that may not be committed yet: they must not be started now."""
        self._forgone |= keys

    def resume(self, keys: frozenset[Key]) -> None:
        self._forgone -= keys

    def _say_look(self, send: Send, look: Prepare) -> None:
        """Once; the answer may take as long as a setup does."""
        if look.environment in self._looks:
            return
        self._looks[look.environment] = self._clock.elapsed()
        order = start_orders.prepare_order(
            look,
            self._settings.python,
            self._settings.setup_limit,
            self._settings.variables,
            self._settings.attributes,
        )

        def on_reply(reply: Reply) -> None:
            if reply.get("lost"):
                return
            self._looks.pop(look.environment, None)
            if not reply.get("ok") and reply.get("kind") in ("busy", "stale"):
                return  # it is asked again
            now, reason = self._clock.now(), str(reply.get("reason", ""))
            # One that refuses as such knows no looks: an agent before 0.3. What is lacking there
            # shows at the start.
            fit = bool(reply.get("fit", True))
            self._tell(
                [
                    EnvironmentSeen(
                        now, self.node, look.environment, fit, reason, str(reply.get("fix", ""))
                    )
                ]
            )

        send("prepare", {"prepare": order._asdict()}, on_reply)

    def _say(self, send: Send, action: OfAttempt) -> None:
        key = wire.attempt_key(action.job, action.attempt)
        if isinstance(action, Launch) and not self._ready(action):
            return
        self._order_times[type(action).__name__, action.job, action.attempt] = self._clock.elapsed()
        match action:
            case Launch():
                self._say_start(send, action)
            case Stop():
                fields = {"attempt": key, "mode": action.mode, "grace": action.grace}
                send("stop", fields, lambda reply: self._log_refusal("stop", key, reply))
            case Retune():
                fields = {"attempt": key, "control": start_orders.control(action)._asdict()}
                send("control", fields, lambda reply: self._log_refusal("control", key, reply))
            case Forget():
                send(
                    "forget",
                    {"attempt": key},
                    lambda reply: self._log_refusal("forget", key, reply),
                )

    def _say_start(self, send: Send, launch: Launch) -> None:
        nodes = self._view().nodes
        if not start_orders.can_meet(launch, nodes):
            return  # said again once the others have been heard of
        order = start_orders.start_order(
            launch, self.node, nodes=nodes, library=self._library, python=self._settings.python,
            variables=self._settings.variables, local=self._settings.attributes,
        )  # fmt: skip
        order = order._replace(
            **self._report, store=self._reign.store, log_limit=self._settings.log_limit
        )
        key, said_at = (launch.job, launch.attempt), self._clock.elapsed()
        if key in self._forgone or key in self._refusals or key in self._told_refused:
            return  # its end is told, or about to be; that may be long before it is committed
        if not self._reign.holds():  # asked after the report was read: a start acknowledges it
            return
        if order.lease > 0 and not (order.stamp and order.store):
            reason = "its node agent knows no leases (--requeue-on-lost)"
            self._tell(
                [
                    StartRefused(
                        self._clock.now(),
                        launch.job,
                        launch.attempt,
                        self.node,
                        reason,
                        transient=True,
                    )
                ]
            )
            return

        self._unanswered.setdefault(key, []).append(said_at)

        def on_reply(reply: Reply) -> None:
            if not reply.get("lost"):
                self._answered(key, said_at)
            if reply.get("ok"):
                self._refusals.pop(key, None)
                self._tell(self._observer.of_attempt(reply["attempt"], self._view(), drained=False))
            elif not reply.get("lost"):
                self._refused(launch, reply)

        send("start", {"order": order._asdict()}, on_reply)

    def _refused(self, launch: Launch, reply: Reply) -> None:
        """A passing reason is given some time: the attempt is found missing, and started again, at
        the next look."""
        key = (launch.job, launch.attempt)
        kind, reason = reply.get("kind", ""), str(reply.get("error", "refused"))
        now = self._clock.elapsed()
        since = self._refused_since.setdefault(key, now)
        # taken: the device is somebody else's, better go elsewhere
        passing = kind == "busy" and not reply.get("taken")
        if kind in ("expired", "stale") or (passing and now - since < REFUSED_PATIENCE):
            return
        log.info("%s: attempt %d.%d is refused: %s", self.node, launch.job, launch.attempt, reason)
        code = SHELL_CODES.get(kind)
        transient = kind in ("busy", "port", "used", "unfit")
        refusal = StartRefused(
            self._clock.now(), *key, self.node, reason, transient=transient, code=code
        )
        self._refusals[key] = refusal
        if kind == "unfit":
            lack = EnvironmentSeen(
                self._clock.now(),
                self.node,
                launch.spec.environment,
                False,
                reason,
                str(reply.get("hint", "")),
            )
            self._lacks[key] = lack
        self._tell_refusals(())

    def _answered(self, key: Key, said_at: Seconds) -> None:
        """That start is not under way any more; forgotten where it was too long ago."""
        if said_at in (start_times := self._unanswered.get(key, [])):
            start_times.remove(said_at)

    def _tell_refusals(self, attempts: Collection[Key]) -> None:
        """Those of attempts that no order can start any more."""
        oldest = self._clock.elapsed() - wire.START_EXPIRY - 1.0
        for key, refusal in list(self._refusals.items()):
            if key in attempts:
                del self._refusals[key]
            elif not any(start_time > oldest for start_time in self._unanswered.get(key, ())):
                del self._refusals[key]
                self._told_refused.add(key)
                lack = self._lacks.pop(key, None)
                self._tell([refusal] if lack is None else [refusal, lack])

    def _log_refusal(self, operation: str, key: str, reply: Reply) -> None:
        if not reply.get("ok") and not reply.get("lost"):
            log.info("%s: %s of attempt %s: %s", self.node, operation, key, reply.get("error"))

    # -- answers -----------------------------------------------------------------------------------

    def _on_hello(self, send: Send, reply: Reply) -> None:
        if reply.get("lost"):
            return
        if not reply.get("ok"):
            hint = f"; {reply['hint']}" if reply.get("hint") else ""
            raise LinkLost(f"the node agent refuses: {reply.get('error')}{hint}")
        if reply["version"] != wire.VERSION:
            raise LinkLost(f"the node agent speaks version {reply['version']}, not {wire.VERSION}")
        self._observer.greeted(reply)
        self._library = self._library or str(reply["library"])
        self._take_in(reply, str(reply["boot_id"]))
        self._watch(send, digest=None, wait=0.0, stamp=None)

    def _take_in(self, reply: Reply, boot_id: str) -> None:
        """Note when, before anything acknowledges it: rule a of leases in wire."""
        self.heard_at = self._clock.elapsed()
        if "stamp" in reply:
            self._report = {"stamp": decode.real(reply["stamp"]), "boot_id": boot_id}
        else:  # an agent before 0.2
            self._report = {"expires_at": decode.real(reply["time"]) + wire.START_EXPIRY}

    def _watch(self, send: Send, digest: Any, wait: Seconds, stamp: float | None) -> None:
        offsets = self._observer.offsets(self._view())
        fields: dict[str, Any] = {"offsets": offsets, "seen": digest, "wait": wait, "heard": stamp}
        if self._settings.owner:
            fields["look"] = OWNER_LOOK
        send("watch", fields, lambda reply: self._on_watch(send, offsets, reply))

    def _on_watch(self, send: Send, offsets: Mapping[str, int], reply: Reply) -> None:
        if reply.get("lost"):
            return
        if not reply.get("ok"):
            raise LinkLost(f"the node agent refuses: {reply.get('error')}")
        self._take_in(reply, self._report.get("boot_id", ""))
        holds = self._reign.holds()
        snapshot = self._view()
        attempts = {(JobId(info["job"]), int(info["attempt"])): info for info in reply["attempts"]}
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
        if holds:  # else a newer daemon orders, and renews
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
        """May an order to start this attempt still be under way, from us or from the daemon before
        us?"""
        said_at = self._order_times.get(("Launch", *key), self._connected_at)
        return self._clock.elapsed() - max(said_at, self._connected_at) < wire.START_EXPIRY + 1.0

    def _heal(
        self, send: Send, attempts: Mapping[Key, Mapping[str, Any]], snapshot: Snapshot
    ) -> None:
        """Say again what still stands and has had no effect, and let go of what is over."""
        for action in standing(snapshot, self.node):
            state = attempts.get((action.job, action.attempt), {}).get("state")
            lacking = state is None if isinstance(action, Launch) else state in ALIVE
            if lacking and self._is_time(action):
                self._say(send, action)
        for look in environments.wanted(replace(snapshot, now=self._clock.now()), self.node):
            self._say_look(send, look)
        for key, info in attempts.items():
            match fate(snapshot, self.node, *key):
                case Fate.STRANGER:
                    self._observer.note(
                        f"attempt {key[0]}.{key[1]} is not in this daemon's database; it is left"
                        " alone"
                    )
                case Fate.OVER if info["state"] in ALIVE:
                    self._observer.note(
                        f"attempt {key[0]}.{key[1]} lives on though its end is recorded; it is"
                        " killed"
                    )
                    kill = Stop(*key, (self.node,), StopReason.CANCEL, "kill", CANCEL_GRACE)
                    if self._is_time(kill):
                        self._say(send, kill)
                case Fate.OVER if not self._observer.is_late(key):
                    forget = Forget(*key, (self.node,))
                    if self._is_time(forget):
                        self._say(send, forget)

        self._drop_old(attempts)

    def _drop_old(self, attempts: Mapping[Key, Any]) -> None:
        """What was said of attempts that are no more need not be remembered."""
        now = self._clock.elapsed()
        for order, at in list(self._order_times.items()):
            if now - at > REMEMBER and order[1:] not in attempts:
                self._order_times.pop(order, None)
        for key, at in list(self._refused_since.items()):
            if now - at > REMEMBER:
                del self._refused_since[key]
        for key, start_times in list(self._unanswered.items()):
            if now - max(start_times, default=0.0) > REMEMBER:
                del self._unanswered[key]

    def _is_time(self, action: OfAttempt) -> bool:
        said_at = self._order_times.get((type(action).__name__, action.job, action.attempt))
        return said_at is None or self._clock.elapsed() - said_at >= REPEAT[type(action)]

    def _tell(self, events: Sequence[Event]) -> None:
        if events:
            self._inbox(events)
