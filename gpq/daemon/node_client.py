"""The daemon's end of one node: keeps a link to its agent, says orders, and tells what differs from the snapshot.

It never touches the state: events go into the inbox, and the newest committed snapshot is only read.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NoReturn

from gpq_agent import wire

from gpq.connectors.base import Connector
from gpq.core.actions import Action, Forget, Launch, Retune, Stop
from gpq.core.events import Event, NodeSeen, StartRefused
from gpq.core.healing import Fate, fate, standing
from gpq.core.models import Snapshot, StopReason
from gpq.core.nodes import Node
from gpq.core.planning import CANCEL_GRACE
from gpq.core.units import JobId, NodeId, Seconds
from gpq.daemon import launching
from gpq.daemon.clock import Clock, elapsed
from gpq.daemon.link import Link, LinkLost, Reply
from gpq.daemon.observing import ALIVE, Key, Observer
from gpq.errors import GpqError, NodeSilent

log = logging.getLogger(__name__)

WATCH: Seconds = 3.0  # a watch answers after this long even without news
SILENCE: Seconds = 11.0  # three answers missed, and some; the agent itself may wait 10 s for the GPU driver
START_EXPIRY: Seconds = 20.0  # a start order that comes later than this is refused by the agent
REPEAT: Mapping[type[Action], Seconds] = {Launch: 5.0, Stop: 30.0, Retune: 60.0, Forget: 30.0}  # while of no effect
REFUSED_PATIENCE: Seconds = 10.0  # a start refused for a passing reason is tried again this long
REMEMBER: Seconds = 120.0  # longer than any of the above
SHELL_CODES = {"not-found": 127, "not-executable": 126}  # of refusals
FIRST_BACKOFF, LAST_BACKOFF = 0.1, 30.0
HOPEFUL_BACKOFF, HOPEFUL = (
    2.0,
    600.0,
)  # the longest backoff for a node that answered so lately: it shall be back within 5 s


class NodeClient:
    """`start`, then `order` from the controller's thread and `request` from any; `close` ends its threads.

    `arguments` are the agent's; `library` is the folder on the node that holds gpq_agent alone, "" where the agent is
    to say it; `gpus` names those to use by UUID or index, all when empty; `address` is where peers reach the node, ""
    where the agent is to say it; `view` gives the newest committed snapshot.
    """

    def __init__(
        self,
        node: NodeId,
        connector: Connector,
        arguments: Sequence[str],
        *,
        library: str,
        gpus: Sequence[str],
        address: str = "",
        clock: Clock,
        inbox: Callable[[Sequence[Event]], None],
        view: Callable[[], Snapshot],
    ) -> None:
        self.node = node
        self._connector = connector
        self._arguments = list(arguments)
        self._library = library
        self._clock = clock
        self._inbox = inbox
        self._view = view
        self._connecting: Link | None = None
        self._link: Link | None = None  # the same, once the node's first full report was taken in
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"node-{node}", daemon=True)
        # What was said on this link, and when; written by two threads, a key at a time.
        self._said: dict[tuple[str, JobId, int], Seconds] = {}
        # The reader's own.
        self._observer = Observer(node, gpus, clock, address)
        self._connected_at = self._heard_at = elapsed()
        self._was_up = False
        self._agent_time = (0.0, elapsed())
        self._refused_since: dict[Key, Seconds] = {}

    def start(self) -> None:
        self._inbox(
            [NodeSeen(self._clock.now(), Node(self.node, reason="not heard of yet, the daemon started a moment ago"))]
        )
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        link = self._connecting
        if link is not None:
            link.end("the daemon is ending")
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    # -- orders, from the controller's thread --------------------------------------------------------------------------

    def order(self, action: Action) -> None:
        """Say it to the node. Without a link it is not kept: it is found missing once there is one."""
        link = self._link
        if link is not None:
            self._say(link, action)

    def _say(self, link: Link, action: Action) -> None:
        key = wire.attempt_key(action.job, action.attempt)
        self._said[type(action).__name__, action.job, action.attempt] = elapsed()
        match action:
            case Launch():
                self._say_start(link, action)
            case Stop():
                fields = {"attempt": key, "mode": action.mode, "grace": action.grace}
                link.send("stop", fields, lambda reply: self._log_refusal("stop", key, reply))
            case Retune():
                fields = {"attempt": key, "control": launching.control(action)._asdict()}
                link.send("control", fields, lambda reply: self._log_refusal("control", key, reply))
            case Forget():
                link.send("forget", {"attempt": key}, lambda reply: self._log_refusal("forget", key, reply))

    def _say_start(self, link: Link, launch: Launch) -> None:
        addresses = {node.id: node.address for node in self._view().nodes.values()}
        order = launching.start_order(launch, self.node, addresses=addresses, library=self._library)
        heard, at = self._agent_time
        order = order._replace(expires_at=heard + (elapsed() - at) + START_EXPIRY)

        def done(reply: Reply) -> None:
            if reply.get("ok"):
                self._tell(self._observer.of_attempt(reply["attempt"], self._view(), drained=False))
            elif not reply.get("lost"):
                self._refused(launch, reply)

        link.send("start", {"order": order._asdict()}, done)

    def _refused(self, launch: Launch, reply: Reply) -> None:
        """A passing reason is given some time: the attempt is found missing, and started again, at the next look."""
        key = (launch.job, launch.attempt)
        kind, reason = reply.get("kind", ""), str(reply.get("error", "refused"))
        since = self._refused_since.setdefault(key, elapsed())
        if kind == "expired" or (kind == "busy" and elapsed() - since < REFUSED_PATIENCE):
            return
        log.info("%s: attempt %d.%d is refused: %s", self.node, launch.job, launch.attempt, reason)
        code = SHELL_CODES.get(kind)
        self._tell([StartRefused(self._clock.now(), *key, self.node, reason, transient=kind == "busy", code=code)])

    def _log_refusal(self, what: str, key: str, reply: Reply) -> None:
        if not reply.get("ok") and not reply.get("lost"):
            log.info("%s: %s of attempt %s: %s", self.node, what, key, reply.get("error"))

    # -- questions, from any thread ------------------------------------------------------------------------------------

    def request(self, op: str, fields: Mapping[str, Any], timeout: Seconds = 10.0) -> Reply:
        """The node's answer. Raises NodeSilent when none comes in time, GpqError when it refuses."""
        link = self._link
        answer: Future[Reply] = Future()
        if link is None:
            raise NodeSilent(f"node {self.node} does not answer", "`gpq nodes` tells since when and why")
        link.send(op, fields, answer.set_result)
        try:
            reply = answer.result(timeout)
        except FutureTimeout:
            raise NodeSilent(f"node {self.node} did not answer within {timeout:.0f} s", "try again") from None
        if reply.get("lost"):
            raise NodeSilent(
                f"node {self.node} does not answer: {reply['error']}", "`gpq nodes` tells since when and why"
            )
        if not reply.get("ok"):
            raise GpqError(f"node {self.node}: {reply.get('error', 'refused')}", str(reply.get("hint", "")))
        return reply

    # -- the reader's thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = FIRST_BACKOFF
        while not self._closing.is_set():
            began = elapsed()
            try:
                self._converse()
            except GpqError as error:
                reason = f"{error.message} ({error.hint})" if error.hint else error.message
            except (LinkLost, OSError) as error:
                reason = str(error)
            except Exception as error:
                log.exception("%s: an answer made no sense", self.node)
                reason = f"its answers make no sense: {error!r}"
            if self._closing.is_set():
                return
            if self._heard_at - began > LAST_BACKOFF:
                backoff = FIRST_BACKOFF
            log.info("%s: %s; next try in %.1f s", self.node, reason, backoff)
            # An agent that ended and is back at once is no news; one that does not come back is.
            if not self._observer.is_up or elapsed() - self._heard_at > 0.9 * SILENCE:
                self._tell(self._observer.silent(reason))
            self._closing.wait(backoff * random.uniform(0.5, 1.0))
            is_hopeful = self._was_up and elapsed() - self._heard_at < HOPEFUL
            backoff = min(backoff * 2, HOPEFUL_BACKOFF if is_hopeful else LAST_BACKOFF)

    def _converse(self) -> NoReturn:
        """One connection, from the first greeting to its loss: raises LinkLost or GpqError."""
        link = Link(self._connector.agent(self._arguments, self._while_connecting), str(self.node))
        self._connecting = link
        if self._closing.is_set():
            link.end("the daemon is ending")
        self._said.clear()
        self._connected_at = elapsed()
        link.send("hello", {}, lambda reply: self._on_hello(link, reply))
        try:
            link.serve(SILENCE)
        except BaseException as error:
            self._link = None
            link.close(str(error))
            raise

    def _while_connecting(self) -> None:
        """A node that is looked for is silent, however long the look takes."""
        if self._closing.is_set():
            raise LinkLost("the daemon is ending")
        if self._observer.is_up and elapsed() - self._heard_at > SILENCE:
            self._tell(self._observer.silent(f"no answer for {SILENCE:.0f} s"))

    def _on_hello(self, link: Link, reply: Reply) -> None:
        if reply.get("lost"):
            return
        if not reply.get("ok"):
            raise LinkLost(f"the node agent refuses: {reply.get('error')}")
        if reply["version"] != wire.VERSION:
            raise LinkLost(f"the node agent speaks version {reply['version']}, not {wire.VERSION}")
        self._observer.greeted(reply)
        self._library = self._library or str(reply["library"])
        self._watch(link, seen=None, wait=0.0)

    def _watch(self, link: Link, seen: Any, wait: Seconds) -> None:
        asked = self._observer.offsets(self._view())
        fields = {"offsets": asked, "seen": seen, "wait": wait}
        link.send("watch", fields, lambda reply: self._on_watch(link, asked, reply))

    def _on_watch(self, link: Link, asked: Mapping[str, int], reply: Reply) -> None:
        if reply.get("lost"):
            return
        if not reply.get("ok"):
            raise LinkLost(f"the node agent refuses: {reply.get('error')}")
        self._heard_at = elapsed()
        self._was_up = True
        self._agent_time = (float(reply["time"]), elapsed())
        snapshot = self._view()
        known = {(JobId(info["job"]), int(info["attempt"])): info for info in reply["attempts"]}
        events, more = self._observer.news(
            known, reply["devices"], snapshot, asked=asked, start_possible=self._start_possible
        )
        self._tell(events)
        self._heal(link, known, snapshot)
        self._link = link
        self._watch(link, reply["digest"], 0.0 if more else WATCH)

    def _start_possible(self, key: Key) -> bool:
        """May an order to start this attempt still be under way, from us or from the daemon before us?"""
        said = self._said.get(("Launch", *key), self._connected_at)
        return elapsed() - max(said, self._connected_at) < START_EXPIRY + 1.0

    def _heal(self, link: Link, known: Mapping[Key, Mapping[str, Any]], snapshot: Snapshot) -> None:
        """Say again what still stands and has had no effect, and let go of what is over."""
        for action in standing(snapshot, self.node):
            state = known.get((action.job, action.attempt), {}).get("state")
            lacking = state is None if isinstance(action, Launch) else state in ALIVE
            if lacking and self._is_time(action):
                self._say(link, action)
        for key, info in known.items():
            match fate(snapshot, self.node, *key):
                case Fate.STRANGER:
                    self._observer.note(f"attempt {key[0]}.{key[1]} is not in this daemon's database; it is left alone")
                case Fate.OVER if info["state"] in ALIVE:
                    self._observer.note(f"attempt {key[0]}.{key[1]} lives on though its end is recorded; it is killed")
                    kill = Stop(*key, (self.node,), StopReason.CANCEL, "kill", CANCEL_GRACE)
                    if self._is_time(kill):
                        self._say(link, kill)
                case Fate.OVER:
                    forget = Forget(*key, (self.node,))
                    if self._is_time(forget):
                        self._say(link, forget)

        self._drop_old(known)

    def _drop_old(self, known: Mapping[Key, Any]) -> None:
        """What was said of attempts that are no more need not be remembered."""
        now = elapsed()
        for what, at in list(self._said.items()):
            if now - at > REMEMBER and what[1:] not in known:
                self._said.pop(what, None)
        for key, at in list(self._refused_since.items()):
            if now - at > REMEMBER:
                del self._refused_since[key]

    def _is_time(self, action: Action) -> bool:
        said = self._said.get((type(action).__name__, action.job, action.attempt))
        return said is None or elapsed() - said >= REPEAT[type(action)]

    def _tell(self, events: Sequence[Event]) -> None:
        if events:
            self._inbox(events)
