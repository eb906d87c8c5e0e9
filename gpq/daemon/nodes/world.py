"""LiveWorld: real time, real servers, and one queue for all news. Holds no state and decides
nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from gpq_agent import wire

from gpq import paths
from gpq.config import NodeConfig
from gpq.connectors import from_config
from gpq.connectors.bundle import library
from gpq.connectors.local import Channel
from gpq.connectors.ssh_agents import VARIABLE, SshAgents, of_process
from gpq.core.model.actions import Action, Forget, Launch, Prepare, Retune, Stop
from gpq.core.model.events import Event, Exited
from gpq.core.model.jobs import Attributes, StopReason
from gpq.core.model.placements import Exit
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, NodeId, Seconds
from gpq.daemon.clock import UNNAMED, Clock, DaemonEpoch
from gpq.daemon.files.staging import Stager
from gpq.daemon.nodes.leases import LeaseWatch
from gpq.daemon.nodes.node_client import NodeClient
from gpq.daemon.nodes.session import NodeSession
from gpq.daemon.nodes.settings import NodePorts, NodeSettings
from gpq.errors import NodeSilent, NotFound

# check the clock again: it may have been slewed, or the machine suspended
LONGEST_WAIT: Seconds = 60.0

_WAKE: tuple[Event, ...] = ()


class LiveWorld:
    """`start` when the controller exists, `close` at the end: `wait` then answers None. Jobs keep
    running."""

    def __init__(
        self,
        nodes: Mapping[str, NodeConfig],
        home: str,
        attributes: Attributes | None = None,
        epoch: DaemonEpoch = UNNAMED,
        log_limit: int = 0,
        standby_after: Seconds | None = None,
        setup_limit: Seconds = 600.0,
    ) -> None:
        # what all servers have in common
        self._settings = NodeSettings(
            NodeId(""), setup_limit=setup_limit, standby_after=standby_after, log_limit=log_limit
        )
        self._clock = Clock()
        self._attributes = attributes  # of jobs on this machine that noted none
        self._queue: SimpleQueue[Sequence[Event] | None] = SimpleQueue()
        self.agents = SshAgents()
        self.agents.note(os.environ.get(VARIABLE, ""))
        self._epoch = epoch
        self._snapshot = Snapshot()
        self._over = False
        self._home = home
        self._library = library(home, renew=True)
        self.stager = Stager(
            self.ask,
            self.open,
            view=lambda: self._snapshot,
            inbox=self._queue.put,
            nudge=lambda node: self._tell(node, NodeSession.nudge),
            clock=self._clock,
            codes=paths.snapshots(home),
        )
        self._ports = NodePorts(
            self._clock,
            self._queue.put,
            view=lambda: self._snapshot,
            epoch=self._epoch,
            ready=self.stager.ready,
        )
        # Replaced as a whole and never changed, because other threads read it.
        self._clients = {
            NodeId(name): self._client(NodeId(name), nodes[name]) for name in sorted(nodes)
        }
        self._leases = LeaseWatch(
            lambda: {node: client.session.heard_at for node, client in self._clients.items()},
            lambda: self._snapshot,
            self._clock.now,
            self._queue.put,
            forgo=lambda node, keys: self._tell(node, lambda session: session.forgo(keys)),
            resume=lambda node, keys: self._tell(node, lambda session: session.resume(keys)),
        )

    def _client(self, node: NodeId, config: NodeConfig) -> NodeClient:
        settings = replace(
            self._settings,
            node=node,
            gpus=config.gpus,
            address=config.address,
            interface=config.interface,
            owner=config.owner,
            python=config.script_python,
        )
        if config.connector != "ssh":
            settings = replace(
                settings,
                library=self._library,
                variables=paths.of_jobs(self._home),
                attributes=self._attributes,
            )
        connector, arguments = from_config.way(node, config, self._home, self.agents)
        return NodeClient(connector, arguments, settings, self._ports)

    def ask(
        self, node: NodeId, operation: str, fields: Mapping[str, Any], timeout: Seconds
    ) -> Mapping[str, Any]:
        """The server's answer. Raises NodeSilent if none comes in time, GpqError if it refuses."""
        return self._client_of(node).request(operation, fields, timeout)

    def open(self, node: NodeId, words: Sequence[str], waiting: Callable[[], None]) -> Channel:
        """A process for files there. Raises NodeSilent, GpqError."""
        return self._client_of(node).open(words, waiting)

    def _client_of(self, node: NodeId) -> NodeClient:
        client = self._clients.get(node)
        if client is None:
            raise NodeSilent(
                f"server {node} is no longer in the configuration",
                "`gpq nodes list` lists the servers",
            )
        return client

    def _tell(self, node: NodeId, act: Callable[[NodeSession], None]) -> None:
        if node in self._clients:
            act(self._clients[node].session)

    def start(self) -> None:
        for client in self._clients.values():
            client.start()
        self._leases.start()
        self._give_up_unreachable()

    def _give_up_unreachable(self) -> None:
        """Jobs that were cancelled before their server was removed."""
        for _, job in sorted(self._snapshot.jobs.items()):
            for node in job.nodes:
                if job.stop_forced and node not in self._clients:
                    self._give_up(node, job.id, job.attempt)

    def close(self) -> None:
        self._leases.close()
        self.stager.close()
        for client in self._clients.values():
            client.close()
        self._queue.put(None)

    def add(self, name: str, config: NodeConfig) -> None:
        """Add a server."""
        client = self._client(NodeId(name), config)
        self._clients = {**self._clients, NodeId(name): client}
        client.start()

    def remove(self, name: str) -> None:
        """Release a server: nothing more is heard of it. What runs there keeps running. Others
        report its removal."""
        client = self._clients[NodeId(name)]
        self._clients = {
            node: node_client for node, node_client in self._clients.items() if node != name
        }
        client.close()
        self._give_up_unreachable()

    # -- for the loop ------------------------------------------------------------------------------

    def now(self) -> Seconds:
        return self._clock.now()

    def wait(self, until: Seconds) -> Sequence[Event] | None:
        """All news. Nothing if woken, or when it is `until`. None after the world is closed."""
        events: list[Event] = []
        woken = False
        while not self._over:
            has_news = bool(events) or woken
            timeout = 0.0 if has_news else until - self._clock.now()
            try:
                if timeout > 0:
                    news = self._queue.get(timeout=min(timeout, LONGEST_WAIT))
                else:
                    news = self._queue.get_nowait()
            except Empty:
                if has_news or self._clock.now() >= until:
                    return events
                continue
            if news is None:
                self._over = True
            elif news:
                events.extend(news)
            else:
                woken = True
        return events or None

    def wake(self) -> None:
        self._queue.put(_WAKE)

    def publish(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def perform(self, action: Action) -> None:
        match action:
            case Launch():
                nodes = [node for node, _ in action.placement.parts]
            case Stop() | Forget():
                nodes = list(action.nodes)
            case Retune() | Prepare():
                nodes = [action.node]
        for node in nodes:
            if (client := self._clients.get(node)) is not None:
                client.session.order(action)
            elif isinstance(action, Stop) and action.reason is StopReason.CANCEL:
                self._give_up(node, action.job, action.attempt)

    def _give_up(self, node: NodeId, job: JobId, attempt: int) -> None:
        """A job that its user cancelled on a removed server: nobody will ever report its end. It is
        not started anywhere else, so nothing can run twice."""
        end = Exit(
            code=None, lost=True, note=f"given up: server {node} is no longer in the configuration"
        )
        self._queue.put([Exited(self.now(), job, attempt, node, end)])

    # -- for the server's threads ------------------------------------------------------------------

    def on_peer(self, pid: int) -> None:
        """A command: its login may have an ssh-agent that no server was tried with yet."""
        if self.agents.note(of_process(pid)):
            for client in self._clients.values():
                client.hurry()

    def tail(
        self, node: NodeId, job: JobId, attempt: int, offset: int, limit: int
    ) -> dict[str, Any]:
        """A piece of a log, as wire's `tail` answers. Raises GpqError if the server does not
        answer."""
        fields = {
            "attempt": wire.attempt_key(job, attempt),
            "offset": offset,
            "limit": limit,
            "skip": True,
        }
        return dict(self._of(node).request("tail", fields))

    def errand(
        self, node: NodeId, errand: str, fields: Mapping[str, object], limit: Seconds
    ) -> dict[str, Any]:
        """A server's answer to an errand. Raises GpqError if it does not answer or refuses."""
        request = {"errand": errand, "fields": fields, "limit": limit}
        return dict(self._of(node).request("errand", request, timeout=limit + 5.0)["answer"])

    def _of(self, node: NodeId) -> NodeClient:
        try:
            return self._clients[node]
        except KeyError:
            raise NotFound(
                f"there is no server {node}", f"known servers: {', '.join(sorted(self._clients))}"
            ) from None
