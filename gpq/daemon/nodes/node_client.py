"""The daemon's end of one server: a thread that keeps a link to its agent and lends it to the
session.

Decides nothing: `session` knows what to say, and when.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NoReturn

from gpq import pace
from gpq.connectors.local import Channel, Connector
from gpq.core.model.nodes import FIRST_CONTACT
from gpq.core.model.units import Seconds
from gpq.daemon.nodes.link import Link, LinkLost, Reply, Send
from gpq.daemon.nodes.session import NodeSession
from gpq.daemon.nodes.settings import NodePorts, NodeSettings
from gpq.errors import GpqError, NodeSilent, Refused

FIRST_LOOK: Seconds = 0.05  # between checks for the first contact

log = logging.getLogger(__name__)


class NodeClient:
    """`start`, then `session.order` from the controller's thread and `request` from any.
    `close` ends its threads. `arguments` are the agent's."""

    def __init__(
        self,
        connector: Connector,
        arguments: Sequence[str],
        settings: NodeSettings,
        ports: NodePorts,
    ) -> None:
        self.node = settings.node
        self.session = NodeSession(settings, ports)
        self._connector = connector
        self._arguments = list(arguments)
        self._epoch = ports.epoch
        self._connecting: Link | None = None
        self._closing = threading.Event()
        self._hurry = threading.Event()
        self._clock, self._began, self._failed = ports.clock, ports.clock.elapsed(), False
        self._thread = threading.Thread(target=self._run, name=f"node-{settings.node}", daemon=True)

    def start(self) -> None:
        self.session.start()
        self._thread.start()

    def hurry(self) -> None:
        """Something changed that may make the server reachable: if it is not connected, try at
        once."""
        self._hurry.set()

    def close(self) -> None:
        self._closing.set()
        self._hurry.set()
        link = self._connecting
        if link is not None:
            link.end("the daemon is stopping")
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def request(self, op: str, fields: Mapping[str, Any], timeout: Seconds = 10.0) -> Reply:
        """The server's answer, in any thread. Raises NodeSilent if none comes in time, GpqError if
        it refuses."""
        answer: Future[Reply] = Future()
        self._line()(op, fields, answer.set_result)
        try:
            reply = answer.result(timeout)
        except FutureTimeout:
            raise NodeSilent(
                f"server {self.node} did not answer within {timeout:.0f} s", "try again"
            ) from None
        if reply.get("lost"):
            raise NodeSilent(
                f"server {self.node} does not answer: {reply['error']}",
                "`gpq nodes` shows since when and why",
            )
        if not reply.get("ok"):
            raise GpqError(
                f"server {self.node}: {reply.get('error', 'refused')}", str(reply.get("hint", ""))
            )
        return reply

    def open(self, words: Sequence[str], waiting: Callable[[], None]) -> Channel:
        """A process of its own for files, on a connection of its own. `words` tell it what to do.
        Raises NodeSilent, and Refused if trying again soon is useless."""
        self._line()
        epoch = ["--store", self._epoch.store, "--epoch", str(self._epoch.number)]
        try:
            return self._connector.agent([*self._arguments, *epoch, *words], waiting)
        except Refused:
            raise
        except GpqError as error:
            raise NodeSilent(error.message, error.hint) from None

    def _line(self) -> Send:
        """Raises NodeSilent if the server is silent. Right after the daemon started, it waits for
        the first contact, because nobody knows yet."""
        until = self._began + FIRST_CONTACT
        while (
            (line := self.session.line) is None
            and not self._failed
            and self._clock.elapsed() < until
        ):
            self._closing.wait(FIRST_LOOK)
        if line is None:
            raise NodeSilent(
                f"server {self.node} does not answer", "`gpq nodes` shows since when and why"
            )
        return line

    # -- the reader's thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            self.session.attempt()
            refused = False
            try:
                self._converse()
            except GpqError as error:
                refused = isinstance(error, Refused)
                reason = f"{error.message} ({error.hint})" if error.hint else error.message
            except (LinkLost, OSError) as error:
                reason = str(error)
            except Exception as error:
                log.exception("%s: invalid answer", self.node)
                reason = f"it sent an invalid answer: {error!r}"
            self._failed = True
            if self._closing.is_set():
                return
            wait = self.session.over(reason, refused=refused)
            self._hurry.wait(wait * random.uniform(0.5, 1.0))
            self._hurry.clear()

    def _converse(self) -> NoReturn:
        """One connection, from the first greeting to its loss. Raises LinkLost or GpqError."""
        link = Link(self._connector.agent(self._arguments, self._while_connecting), str(self.node))
        self._connecting = link
        if self._closing.is_set():
            link.end("the daemon is stopping")
        try:
            self.session.begin(link.send)
            link.serve(pace.SILENCE)
        except BaseException as error:
            self.session.cut()
            link.close(str(error))
            raise

    def _while_connecting(self) -> None:
        """A server that gpq is trying to reach counts as silent, however long the try takes."""
        if self._closing.is_set():
            raise LinkLost("the daemon is stopping")
        self.session.waiting()
