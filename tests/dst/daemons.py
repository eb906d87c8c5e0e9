"""One run of the daemon: the real controller, a real session with each node, and the inbox between them. The
schedule does the work of a real daemon's threads and sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from gpq.control.controller import Build, Controller
from gpq.core.model.actions import Action, Launch, Prepare, Retune
from gpq.core.model.events import Event
from gpq.core.model.policy import Policy
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import NodeId, Seconds
from gpq.daemon.clock import Clock, DaemonEpoch
from gpq.daemon.nodes.leases import LOOK, LeaseWatch
from gpq.daemon.nodes.session import NodeSession
from gpq.daemon.nodes.settings import NodePorts, NodeSettings
from gpq.errors import StoreFailed
from tests.dst.disk import Disk, DiskStore, Killed
from tests.dst.network import Pipe
from tests.dst.nodes import Node
from tests.dst.schedule import Run, Schedule

EPOCH = 1.7e9  # wall clock at the start of the simulation


class SimClock(Clock):
    """The head node's clock."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def elapsed(self) -> Seconds:
        return self._schedule.now

    def now(self) -> Seconds:
        return EPOCH + self._schedule.now


class Client:
    """A NodeClient without its thread."""

    def __init__(self, daemon: Daemon, node: Node, kind: type[NodeSession]) -> None:
        self._daemon = daemon
        self._node = node
        self.pipe: Pipe | None = None
        ports = NodePorts(daemon.clock, daemon.put, lambda: daemon.published, daemon.epoch)
        self.session = kind(NodeSettings(NodeId(node.name), library="/lib"), ports)

    def start(self) -> None:
        self.session.start()
        self._connect()

    def _connect(self) -> None:
        self.session.attempt()
        pipe = self.pipe = Pipe(self._node, self._daemon.deliver, lambda reason: self._lost(pipe, reason))
        self.session.begin(pipe.send)

    def _lost(self, pipe: Pipe, reason: str) -> None:
        if pipe.closed:
            return
        self.session.cut()
        for done in pipe.close():
            done({"ok": False, "lost": True, "error": reason})
        wait = self.session.over(reason) * (0.7 + 0.6 * self._daemon.schedule.dice.random())
        self._daemon.after(wait, self._connect)


class Daemon:
    """`kill`, `freeze` and `thaw` may come at any time. It dies by itself if the store says so."""

    def __init__(
        self,
        schedule: Schedule,
        disk: Disk,
        nodes: Sequence[Node],
        policy: Policy,
        config: Config,
        *,
        session: type[NodeSession] = NodeSession,
        controller: type[Controller] = Controller,
        store: type[DiskStore] = DiskStore,
    ) -> None:
        self.schedule = schedule
        self.clock = SimClock(schedule)
        self.alive = True
        self.frozen = False
        self.disk_seconds = 0.0  # how long a commit takes
        self.orders_until_death: int | None = None
        self.published = Snapshot()
        self.store = store(disk)
        self.epoch = DaemonEpoch("disk", self.store.epoch, self.store.holds)
        self._inbox: list[Event] = []
        self._backlog: list[Run] = []  # events that arrive while it is stopped
        self._stirred = self._busy = False
        self._wake_number = 0
        self._late: list[Run] | None = None  # effects of a step, while its commit is in progress
        self._asked: list[tuple[Future[Any], Callable[[Any], None]]] = []
        schedule.say("daemon with epoch {} starts", self.store.epoch)
        self.controller = controller(self, self.store, policy, config)
        self.clients = {node.name: Client(self, node, session) for node in nodes}
        for client in self.clients.values():
            client.start()
        self.leases = LeaseWatch(
            lambda: {NodeId(name): client.session.heard_at for name, client in self.clients.items()},
            lambda: self.published,
            self.clock.now,
            self.put,
            self.clock.elapsed,
            forgo=lambda node, keys: self.clients[node].session.forgo(keys),
            resume=lambda node, keys: self.clients[node].session.resume(keys),
        )
        self.after(LOOK, self._look)

    # -- life and death ------------------------------------------------------------------------------------------------

    def deliver(self, run: Run) -> None:
        """Input from outside or from a timer. A dead process never gets it, and a stopped one gets it when it
        continues."""
        if not self.alive:
            return
        if self.frozen:
            self._backlog.append(run)
        else:
            self._guarded(run)

    def after(self, seconds: float, run: Run) -> None:
        self.schedule.after(seconds, lambda: self.deliver(run))

    def _guarded(self, run: Run) -> None:
        try:
            run()
        except Killed:
            self.kill()
        except StoreFailed as error:
            self.schedule.say("daemon with epoch {} ends: {}", self.store.epoch, error.message)
            self.kill()

    def kill(self) -> None:
        if not self.alive:
            return
        self.schedule.say("daemon with epoch {} is dead", self.store.epoch)
        self.alive = False
        for client in self.clients.values():
            if client.pipe is not None and not client.pipe.closed:
                client.pipe.close()

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        for client in self.clients.values():
            if client.pipe is not None:
                client.pipe.forgive()
        waiting, self._backlog = self._backlog, []
        # Its threads continue in any order.
        self.schedule.dice.shuffle(waiting) if self.schedule.dice.random() < 0.5 else None
        for run in waiting:
            self.schedule.after(0.001 * self.schedule.dice.random(), lambda run=run: self.deliver(run))  # type: ignore[misc]

    # -- the loop ------------------------------------------------------------------------------------------------------

    def put(self, events: Sequence[Event]) -> None:
        self._inbox.extend(events)
        self.wake()

    def ask(self, build: Build[Any], answered: Callable[[Any], None]) -> None:
        """Like a request on the socket. Calls `answered` with the answer or the exception."""
        self._asked.append((self.controller.post(build), answered))

    def _look(self) -> None:
        """The thread of the leases."""
        events = self.leases.look()
        if events:
            self.put(events)
        self.after(LOOK, self._look)

    def _step(self) -> None:
        self._stirred = False
        if self._busy:
            return
        news, self._inbox = self._inbox, []
        if self.disk_seconds > 0:
            self._late = []
        try:
            self.controller.step(news)
        finally:
            late, self._late = self._late, None
        if late is not None:
            self._busy = True
            self.after(self.disk_seconds * self.schedule.dice.random(), lambda: self._finish(late))
        else:
            self._answer()
            self._sleep()

    def _finish(self, late: list[Run]) -> None:
        self._busy = False
        for run in late:
            run()
        self._answer()
        self.wake()

    def _answer(self) -> None:
        waiting, self._asked = self._asked, []
        for future, answered in waiting:
            if future.done():
                error = future.exception()
                answered(error if error is not None else future.result())
            else:
                self._asked.append((future, answered))

    def _sleep(self) -> None:
        if self._inbox or self._asked:
            self.wake()
            return
        self._wake_number += 1
        number, at = self._wake_number, self.controller.wake_at() - EPOCH

        def due() -> None:
            if number == self._wake_number:
                self.wake()

        self.after(max(at - self.schedule.now, 0.001), due)

    # -- the world, for the controller ---------------------------------------------------------------------------------

    def now(self) -> Seconds:
        return self.clock.now()

    def wait(self, until: Seconds) -> Sequence[Event] | None:
        raise AssertionError("the schedule waits")

    def wake(self) -> None:
        if not self._stirred and not self._busy:
            self._stirred = True
            self.after(0.001, self._step)

    def publish(self, snapshot: Snapshot) -> None:
        if self._late is not None:
            self._late.append(lambda: self.publish(snapshot))
        else:
            self.published = snapshot

    def perform(self, action: Action) -> None:
        if self._late is not None:
            self._late.append(lambda: self.perform(action))
            return
        if self.orders_until_death is not None:
            self.orders_until_death -= 1
            if self.orders_until_death < 0:
                raise Killed
        self.schedule.say("order: {}", action)
        if isinstance(action, Launch):
            nodes = [node for node, _ in action.placement.parts]
        else:
            nodes = [action.node] if isinstance(action, Retune | Prepare) else list(action.nodes)
        for node in nodes:
            self.clients[node].session.order(action)
