"""Bugs that the simulation must find. Each one removes a promise from the environment or from a subclass, never from
gpq.

If two layers guard the same promise, the bug removes both, because one layer would hide the loss of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpq_agent import wire

from gpq.control.controller import Controller
from gpq.core.model.actions import Launch
from gpq.core.model.events import Event, Exited, StartRefused
from gpq.core.model.jobs import Job
from gpq.core.model.nodes import NodeState
from gpq.core.model.placements import Exit
from gpq.core.model.snapshot import Snapshot
from gpq.core.rounds.rounds import Decision
from gpq.daemon.nodes.decode import Key
from gpq.daemon.nodes.link import Send
from gpq.daemon.nodes.session import NodeSession
from tests.dst.attempts import Attempt
from tests.dst.disk import DiskStore
from tests.dst.nodes import Node
from tests.dst.simulation import Build

LATER = 5.0  # seconds: Slurm's slurmctld saves its state this long after it acknowledged (SAVE_MAX_WAIT)

# -- the disk ----------------------------------------------------------------------------------------------------------


class SavesLater(DiskStore):
    """Acknowledges first, and writes later unless a kill comes first."""

    _since: float | None = None
    _events: tuple[Event, ...] = ()
    _ended: tuple[Job, ...] = ()

    def commit(self, events: Sequence[Event], snapshot: Snapshot, ended: Sequence[Job] = ()) -> None:
        self._events += tuple(events)
        self._ended += tuple(ended)
        self._since = snapshot.now if self._since is None else self._since
        if snapshot.now - self._since >= LATER:
            super().commit(self._events, snapshot, self._ended)
            self._since, self._events, self._ended = None, (), ()


class NoEpoch(DiskStore):
    """Any daemon may write."""

    def holds(self) -> bool:
        return True


class CountsTheLiving(DiskStore):
    """After a restart, the next id is one more than the largest id of a live job."""

    def load(self) -> Snapshot:
        state = super().load()
        return replace(state, next_id=max(state.jobs, default=0) + 1)


class ActsThenRemembers(Controller):
    def _commit(self, decision: Decision) -> None:
        for action in decision.actions:
            self.world.perform(action)
        super()._commit(decision)


# -- the session --------------------------------------------------------------------------------------------------


class SilenceIsDeath(NodeSession):
    """If a node does not answer, its jobs count as lost."""

    def over(self, reason: str) -> float:
        wait = super().over(reason)
        node = self._view().nodes.get(self.node)
        if node is not None and node.state is NodeState.UNREACHABLE:
            now, end = self._clock.now(), Exit(None, lost=True)
            self._tell(
                [Exited(now, job.id, job.attempt, self.node, end) for job in self._view().expected_on(self.node)]
            )
        return wait


class LostReplyIsRefusal(NodeSession):
    """If the reply to a start is lost, the daemon assumes a refusal and starts the job under the next number."""

    def _say_start(self, send: Send, launch: Launch) -> None:
        def lend(op: str, fields: Mapping[str, Any], done: Callable[[Mapping[str, Any]], None]) -> None:
            def told(reply: Mapping[str, Any]) -> None:
                if reply.get("lost"):
                    key = (launch.job, launch.attempt)
                    self._tell([StartRefused(self._clock.now(), *key, self.node, "lost", transient=True)])
                done(reply)

            send(op, fields, told)

        super()._say_start(lend, launch)


class StartsWhatItGaveUp(NodeSession):
    """The daemon repeats a start that is still on the disk, although the end of its lease waits to be written."""

    def forgo(self, keys: frozenset[Key]) -> None:
        pass


class StartsWhatWasRefused(NodeSession):
    """The same with a refusal that was reported."""

    def _tell_refusals(self, known: Collection[Key]) -> None:
        super()._tell_refusals(known)
        self._refusals.told.clear()


class OrdersOnce(NodeSession):
    """The daemon gives an order once and never checks that it arrived."""

    def _heal(self, send: Send, known: Mapping[Key, Mapping[str, Any]], snapshot: Snapshot) -> None:
        pass


class MissingIsLost(NodeSession):
    """The daemon assumes that an attempt unknown to the node will never appear there."""

    def _start_possible(self, key: Key) -> bool:
        return False


# -- the node ----------------------------------------------------------------------------------------------------------


class NoBootId(Node):
    """Only the pid identifies a process."""

    def shim_lives(self, attempt: Attempt) -> bool:
        return super().shim_lives(attempt) or attempt.pid in self.strangers


class NoExpiry(Node):
    def check_expiry(self, order: wire.StartOrder) -> None:
        """A start order never expires."""


class NoLease(Node):
    def check_devices(self, order: wire.StartOrder) -> None:
        """The node trusts the daemon to know which GPUs are free."""


class StartsAgain(Node):
    """A start order starts the attempt even if it was started before."""

    def start(self, message: Any) -> tuple[str, Attempt]:
        known = self.attempts.pop((message["job"], message["attempt"]), None)
        try:
            return super().start(message)
        except Exception:
            if known is not None:
                self.attempts[known.key] = known
            raise


class StartsAgainNoLease(StartsAgain, NoLease):
    pass


class OrphansAreGone(Node):
    """An attempt without its shim counts as lost, even if its processes live."""

    def state(self, attempt: Attempt) -> str:
        state = super().state(attempt)
        return "lost" if state == "orphan" and not attempt.adopted else state


class OrphansStay(Node):
    """Nothing replaces a shim that was killed."""

    def adopt(self, attempt: Attempt) -> None:
        pass


class NoFence(Node):
    """An agent obeys every daemon, even one that was replaced."""

    def fenced(self, store: str, epoch: int) -> bool:
        return False


class NoSelfFence(Node):
    def fence(self, attempt: Attempt) -> None:
        """The daemon gives the attempt up, but nothing ends it."""


PLANTED: tuple[Build, ...] = (
    Build("acknowledged before the commit", store=SavesLater),
    Build("orders before the commit", controller=ActsThenRemembers),
    Build("ids counted from live jobs", store=CountsTheLiving),
    Build("requeue on silence", session=SilenceIsDeath),
    Build("a missing attempt counts as lost during a start", session=MissingIsLost),
    Build("orders given only once", session=OrdersOnce),
    Build("no boot id", node=NoBootId),
    Build("a start without expiry", node=NoExpiry),
    Build("no epoch in the store: only agents fence a daemon that wakes", store=NoEpoch),
    Build("orphans counted as lost", node=OrphansAreGone),
    Build("orphans that nobody ends", node=OrphansStay),
    Build("a new attempt when the reply is lost, and no check of devices", session=LostReplyIsRefusal, node=NoLease),
    Build("starts that are not idempotent, and no check of devices", node=StartsAgainNoLease),
    Build("a lease without self-fencing", node=NoSelfFence),
    Build("a lost attempt is started again before its end is written", session=StartsWhatItGaveUp),
    Build("a refused attempt is started again before that is written", session=StartsWhatWasRefused),
    Build("no epoch anywhere", store=NoEpoch, node=NoFence),
)
