"""Records what really happened, outside gpq's reach, and checks the promises of reliability (I1-I9) against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpq.core.model.events import Event, Exited, Launched, StartRefused
from gpq.core.model.jobs import HOLDS_DEVICES, Job, JobState
from gpq.core.model.placements import Exit, Placement
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from tests.dst.schedule import Schedule, Violation
from tests.support.sanity import sanity

if TYPE_CHECKING:
    from tests.dst.disk import Disk

Key = tuple[int, int]


@dataclass(eq=False)
class Tree:
    """The processes of an attempt on one node: when they ran, and how they ended."""

    node: str
    key: Key
    devices: tuple[str, ...]
    token: str
    began: float
    lease: float = 0.0
    orphaned: bool = False  # its shim was killed
    ended: float | None = None
    code: int | None = None
    signal: int | None = None


class Judge:
    """Hears of every start and end of processes, every answer to a user and every commit. Raises Violation."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.live: dict[tuple[str, Key], Tree] = {}
        self.trees: dict[tuple[str, Key], Tree] = {}
        self.acked: dict[int, str] = {}
        self._tokens: dict[int, str] = {}  # by id: the submission that has it
        self._over: dict[tuple[str, Key], str] = {}  # recorded as over, by which event
        self._launched: dict[Key, Placement] = {}

    # -- processes -----------------------------------------------------------------------------------------------------

    def started(self, tree: Tree) -> None:
        where = (tree.node, tree.key)
        for other in self.live.values():
            if other.lease and other.orphaned:
                continue  # A known limit: nothing is left to end it when its lease expires, because its shim is gone.
            if other.key[0] == tree.key[0] and other.token == tree.token and other.key != tree.key:
                raise Violation(
                    f"I2: job {_told(tree.key)} starts on {tree.node} while {_told(other.key)} lives on {other.node}"
                )
            if other.node == tree.node and (both := set(other.devices) & set(tree.devices)):
                raise Violation(f"I3: {_told(tree.key)} and {_told(other.key)} are both on {sorted(both)}")
        if where in self.trees:
            raise Violation(f"I2: {_told(tree.key)} starts a second time on {tree.node}")
        if where in self._over:
            raise Violation(
                f"I8: {_told(tree.key)} starts on {tree.node} after its end was recorded: {self._over[where]}"
            )
        placement = self._launched.get(tree.key)
        if placement is None or tree.node not in dict(placement.parts):
            raise Violation(f"I2: {_told(tree.key)} starts on {tree.node}, but the disk has it on {placement}")
        self.live[where] = self.trees[where] = tree

    def ended(self, tree: Tree, code: int | None, signal: int | None) -> None:
        tree.ended, tree.code, tree.signal = self._schedule.now, code, signal
        del self.live[tree.node, tree.key]

    # -- answers and commits -------------------------------------------------------------------------------------------

    def acknowledged(self, job: int, token: str) -> None:
        if self.acked.setdefault(job, token) != token:
            raise Violation(f"I7: id {job} was given to {self.acked[job]} and to {token}")

    def durable(self, disk: Disk) -> None:
        """The disk has changed, or a new daemon reads it. Is everything that was acknowledged there?"""
        for job, token in self.acked.items():
            if disk.tokens.get(job) != token:
                raise Violation(f"I1: job {job} ({token}) was acknowledged, but the disk has {disk.tokens.get(job)}")

    def committed(self, events: tuple[Event, ...], snapshot: Snapshot, ended: tuple[Job, ...]) -> None:
        for job in (*snapshot.jobs.values(), *ended):
            token = job.spec.argv[0]
            if self._tokens.setdefault(job.id, token) != token:
                raise Violation(f"I7: id {job.id} was {self._tokens[job.id]}'s and is now {token}'s")
        for event in events:
            if isinstance(event, Exited | StartRefused):
                self._check_end(event)
            elif isinstance(event, Launched):
                key = (event.job, event.attempt)
                if self._launched.setdefault(key, event.placement) != event.placement:
                    raise Violation(f"I7: attempt {_told(key)} is launched a second time")
        self._check_states(snapshot, ended)
        broken = sanity(snapshot)
        if broken:
            raise Violation(f"sanity: {broken[0]}")

    def _check_end(self, event: Exited | StartRefused) -> None:
        """The end of a part is a fact. None of its processes lives by then, and the code is the real one or unknown."""
        key = (event.job, event.attempt)
        where = (event.node, key)
        living = self.live.get(where)
        if living is not None and not (living.lease and living.orphaned):
            raise Violation(f"I8: {type(event).__name__} of {_told(key)} is recorded, but it lives on {event.node}")
        self._over.setdefault(where, type(event).__name__)
        if not isinstance(event, Exited) or event.exit.lost or (event.exit.code is None and event.exit.signal is None):
            return
        tree = self.trees.get(where)
        if tree is None or (tree.code, tree.signal) != (event.exit.code, event.exit.signal):
            raise Violation(f"I4: {_told(key)} on {event.node} is recorded as {_end(event.exit)}, but was {tree}")

    def _check_states(self, snapshot: Snapshot, ended: tuple[Job, ...]) -> None:
        """A job that holds nothing has no live process, and a completed job really completed."""
        holding = {job.id for job in snapshot.jobs.values() if job.state in HOLDS_DEVICES}
        ours = {job.id: job.spec.argv[0] for job in (*snapshot.jobs.values(), *ended)}
        for tree in self.live.values():
            name = JobId(tree.key[0])
            if tree.lease and tree.orphaned:
                continue
            if name not in holding and ours.get(name) == tree.token:
                raise Violation(
                    f"I8: job {_told(tree.key)} lives on {tree.node}, but the state says that it holds nothing"
                )
        for job in ended:
            parts = [tree for tree in self.trees.values() if tree.key == (job.id, job.attempt)]
            if job.state is JobState.COMPLETED and not (parts and all(tree.code == 0 for tree in parts)):
                raise Violation(f"I4: job {job.id} is recorded as completed, but its parts were {parts}")


def _told(key: Key) -> str:
    return f"{key[0]}.{key[1]}"


def _end(end: Exit) -> str:
    return f"code {end.code}, signal {end.signal}"
