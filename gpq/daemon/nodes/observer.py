"""Compares what a server says with the snapshot -> events, and describes the server in the core's
terms. Remembers what it has already reported. Sends nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpq_agent import wire

from gpq.core.model.actions import Forget, Stop
from gpq.core.model.events import Event, Exited, NodeSeen, NodeSilent, Profiled, Pulsed, Started
from gpq.core.model.jobs import Job, StopReason
from gpq.core.model.nodes import Node, NodeState, Orphan
from gpq.core.model.profile import RankPulse
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.core.rounds.planning import CANCEL_GRACE
from gpq.core.rounds.reconcile import AttemptVerdict, is_lost, verdict_on
from gpq.daemon.clock import Clock
from gpq.daemon.nodes import decode
from gpq.daemon.nodes.decode import ALIVE, ENDED, Info, Key
from gpq.daemon.nodes.reports import profiled_event
from gpq.daemon.nodes.settings import NodeSettings

SEEN: Seconds = 5.0  # news of a server without a difference, at most this often
KEEPING: Seconds = 10.0  # until a report is in the database
STILL: Seconds = 30.0  # without a step before the places of the replicas are reported
RETELL: Seconds = 30.0  # an event that changed nothing is reported again after this long
MOST_NOTES = 100  # lines of one server in the log
# what counts of a greeting
OF_HELLO = (
    "cores", "memory_mib", "boot_id", "machine", "network", "address", "ephemeral", "storage",
    "damage", "path",
)  # fmt: skip
# why nobody else gets the devices of a living attempt
OBSTACLES = {
    AttemptVerdict.STRANGER: "which is not in this daemon's database",
    AttemptVerdict.OVER: "which gpq is ending",
}
log = logging.getLogger(__name__)


class Observer:
    """For one server. Only that server's reader thread uses it."""

    def __init__(self, settings: NodeSettings, clock: Clock) -> None:
        self.node = settings.node
        self._settings = settings
        self._clock = clock
        self._hello: Mapping[str, Any] = {}
        # what rounds know of the server. None: nothing, or that it is silent
        self._announced_node: Node | None = None
        self._node_told_at = 0.0
        # when it was reported, for attempts that the server still has
        self._ends: dict[Key, Seconds] = {}
        self._reason = ""  # of the reported silence
        self._offsets: dict[Key, int] = {}
        self._announced: dict[tuple[str, JobId, int], Seconds] = {}
        self._still: dict[Key, tuple[tuple[int, int, str], ...]] = {}  # pulses as reported
        self._noted: set[str] = set()

    @property
    def is_up(self) -> bool:
        return self._announced_node is not None

    def greet(self, hello: Mapping[str, Any]) -> None:
        """A new agent: everything may be reported again."""
        self._hello = {name: hello[name] for name in OF_HELLO if name in hello}
        self._announced.clear()

    def silent(self, reason: str, seconds: Seconds) -> list[Event]:
        """`seconds` is how long gpq has not heard of it."""
        if self._announced_node is None and reason == self._reason:
            return []
        self._announced_node, self._reason = None, reason
        now = self._clock.now()
        return [NodeSilent(now, self.node, reason, now - seconds)]

    def offsets(self, snapshot: Snapshot) -> dict[str, int]:
        """By attempt, where the next report line begins. Reported lines count even if they may not
        be committed yet."""
        jobs = snapshot.expected_on(self.node)
        live = {(job.id, job.attempt) for job in jobs}
        self._offsets = {key: offset for key, offset in self._offsets.items() if key in live}
        self._still = {key: outline for key, outline in self._still.items() if key in live}
        self._announced = {
            announcement: at
            for announcement, at in self._announced.items()
            if announcement[1:] in live
        }
        return {wire.attempt_key(job.id, job.attempt): self._offset(job) for job in jobs}

    def _offset(self, job: Job) -> int:
        return max(self._offsets.get((job.id, job.attempt), 0), job.report_offset)

    def news(
        self,
        attempts: Mapping[Key, Info],
        devices: Sequence[Info],
        snapshot: Snapshot,
        *,
        offsets: Mapping[str, int],
        start_possible: Callable[[Key], bool],
        stamp: float | None = None,
        yields: Sequence[str] = (),
    ) -> tuple[list[Event], bool]:
        """(events, is there more to read at once). `offsets` are those of the request and `stamp`
        is the answer's own. `yields` are users who want the server back."""
        events: list[Event] = []
        more = False
        expected = {(job.id, job.attempt) for job in snapshot.expected_on(self.node)}
        for key, info in attempts.items():
            name = wire.attempt_key(*key)
            is_read = name in offsets and info.get("report_offset", 0) <= offsets[name]
            drained = is_read and not info.get("unread", False)
            events += self.of_attempt(info, snapshot, drained=drained, stamp=stamp)
            # the end of an attempt whose lease ended it: only for the journal
            is_late = info.get("lease") and info["state"] in ENDED and key not in self._ends
            if is_late and verdict_on(snapshot, self.node, *key) is AttemptVerdict.OVER:
                events.append(self._end(key, info, stamp))
            is_unread = name in offsets or info["state"] in ENDED
            more = more or (is_unread and not drained and key in expected)
        self._ends = {key: at for key, at in self._ends.items() if key in attempts}
        for job in snapshot.expected_on(self.node):
            key = (job.id, job.attempt)
            # it should be here, but is not and can no longer come
            is_missing = key not in attempts and is_lost(
                job, self.node, start_possible=start_possible(key)
            )
            if is_missing and self._is_new("Exited", key):
                end = decode.exit_of(None, is_lost=True)
                events.append(Exited(self._clock.now(), *key, self.node, end))
        events += self._of_node(devices, attempts, snapshot, yields)
        return events, more

    def of_attempt(
        self, info: Info, snapshot: Snapshot, *, drained: bool, stamp: float | None = None
    ) -> list[Event]:
        """Events of one attempt. Its end is reported only when its report was read to the end
        (`drained`)."""
        job_id, attempt, state = JobId(info["job"]), int(info["attempt"]), info["state"]
        key, now = (job_id, attempt), self._clock.now()
        if verdict_on(snapshot, self.node, *key) is not AttemptVerdict.LIVE:
            return []
        job = snapshot.jobs[job_id]
        events: list[Event] = []
        if info.get("report_offset", 0) > self._offset(job):
            self._offsets[key] = info["report_offset"]
            events.append(
                profiled_event(now, job_id, attempt, self._offsets[key], info.get("report", ""))
            )
        events += self._damage(job, info.get("damage", ()))
        events += self._pulses(job, info.get("ranks", ()))
        # its processes run here, or did
        has_run = state in ("running", "orphan") or info.get("pid") is not None
        if has_run and self.node not in job.started_nodes and self._is_new("Started", key):
            since = decode.moment(info.get("began"), stamp, now)
            note = str(info.get("shortfall") or "")[: decode.LONGEST_NOTE]
            storage = storage_of(self._hello)
            events.append(Started(now, *key, self.node, storage, since, note))
        if state in ENDED and drained and self._is_new("Exited", key):
            events.append(self._end(key, info, stamp))
        if state == "orphan":
            self.note(
                f"the shim of attempt {job_id}.{attempt} is gone, but its processes still run and"
                " keep their devices"
            )
        return events

    def _damage(self, job: Job, lines: Sequence[Any]) -> list[Event]:
        """Damaged files of the attempt, each reported once."""
        notices = [f"{self.node}: {str(line)[: decode.LONGEST_NOTE]}" for line in lines]
        new_notices = tuple(
            line
            for line in notices
            if line not in job.notices and self._is_new(line, (job.id, job.attempt))
        )
        if not new_notices:
            return []
        return [Profiled(self._clock.now(), job.id, job.attempt, -1, notices=new_notices)]

    def _pulses(self, job: Job, ranks: Sequence[Info]) -> list[Event]:
        """Where its replicas are, when they have made no step for a while, and later that they make
        progress again."""
        key, now = (job.id, job.attempt), self._clock.now()
        pulses = decode.pulses_of(ranks, self.node, now)
        if all(now - pulse.since < STILL for pulse in pulses):
            pulses = ()
        outline = _outline(pulses)
        # perhaps reported by the previous daemon
        previous = tuple(pulse for pulse in job.pulses if pulse.node == self.node)
        if outline == self._still.get(key, _outline(previous)):
            return []
        self._still[key] = outline
        return [Pulsed(now, *key, self.node, pulses)]

    def _end(self, key: Key, info: Info, stamp: float | None) -> Exited:
        """From now on its end counts as reported."""
        self._ends[key] = self._clock.elapsed()
        now = self._clock.now()
        ended_at = decode.moment(info.get("ended"), stamp, now)
        end = decode.exit_of(info.get("exit"), is_lost=info["state"] == "lost", at=ended_at)
        return Exited(now, *key, self.node, end)

    def is_late(self, key: Key) -> bool:
        """Was its end reported a moment ago, so that it may not be stored yet?"""
        return self._clock.elapsed() - self._ends.get(key, -KEEPING) < KEEPING

    def end_of(self, key: Key, info: Info, snapshot: Snapshot) -> Stop | Forget | None:
        """The order that releases an attempt that is over."""
        name = f"{key[0]}.{key[1]}"
        match verdict_on(snapshot, self.node, *key):
            case AttemptVerdict.STRANGER:
                self.note(f"attempt {name} is not in this daemon's database. gpq leaves it alone")
            case AttemptVerdict.OVER if info["state"] in ALIVE:
                self.note(f"attempt {name} still runs although its end is recorded. gpq kills it")
                return Stop(*key, (self.node,), StopReason.CANCEL, "kill", CANCEL_GRACE)
            case AttemptVerdict.OVER if not self.is_late(key):
                return Forget(*key, (self.node,))
        return None

    def _of_node(
        self,
        devices: Sequence[Info],
        attempts: Mapping[Key, Info],
        snapshot: Snapshot,
        yields: Sequence[str],
    ) -> list[Event]:
        now = self._clock.now()
        node = description(self._settings, self._hello, devices, attempts, snapshot, yields, now)
        if (
            not decode.differs(self._announced_node, node)
            and self._clock.elapsed() - self._node_told_at < SEEN
        ):
            return []
        self._announced_node, self._node_told_at, self._reason = node, self._clock.elapsed(), ""
        return [NodeSeen(now, node)]

    def _is_new(self, kind: str, key: Key) -> bool:
        """Was this not reported lately? It is reported again after a while in case it had no
        effect."""
        announcement = (kind, *key)
        announced_at = self._announced.get(announcement)
        if announced_at is not None and self._clock.elapsed() - announced_at < RETELL:
            return False
        self._announced[announcement] = self._clock.elapsed()
        return True

    def note(self, line: str) -> None:
        """For the log, once."""
        if line not in self._noted and len(self._noted) < MOST_NOTES:
            self._noted.add(line)
            log.warning("%s: %s", self.node, line)


def _outline(pulses: Sequence[RankPulse]) -> tuple[tuple[int, int, str], ...]:
    return tuple((pulse.rank, pulse.step, pulse.phase) for pulse in pulses)


def description(
    settings: NodeSettings,
    hello: Mapping[str, Any],
    devices: Sequence[Info],
    attempts: Mapping[Key, Info],
    snapshot: Snapshot,
    yields: Sequence[str],
    now: Seconds,
) -> Node:
    """`attempts` are those that the server has. `yields` are users who want it back."""
    living_attempts = {key: info for key, info in attempts.items() if info["state"] in ALIVE}
    verdicts = {key: verdict_on(snapshot, settings.node, *key) for key in living_attempts}
    addresses = decode.addresses_of(hello, settings.address, settings.interface)
    return Node(
        id=settings.node,
        state=NodeState.UP,
        devices=decode.devices_of(
            devices, _foreign_reasons(living_attempts, verdicts), tuple(settings.gpus), now
        ),
        cores=decode.whole(hello.get("cores", 0)),
        memory_mib=decode.whole(hello.get("memory_mib", 0)),
        boot_id=str(hello.get("boot_id", "")),
        machine=decode.machine_of(hello),
        seen_at=now,
        address=addresses[0] if addresses else "127.0.0.1",
        addresses=addresses,
        interface=settings.interface,
        ephemeral=decode.ephemeral_of(hello),
        stuck=decode.living_notes(attempts),
        storage=storage_of(hello),
        strangers=_strangers(living_attempts, verdicts, f"{hello.get('path', '')}/attempts"),
        damage=decode.damage(hello, attempts),
        owner=settings.owner,
        yields=tuple(sorted(map(str, yields))),
    )


def storage_of(hello: Mapping[str, Any]) -> str:
    """The identity of its checkpoint folder."""
    return str(hello.get("storage") or "")


def _foreign_reasons(
    attempts: Mapping[Key, Info], verdicts: Mapping[Key, AttemptVerdict]
) -> dict[str, str]:
    """Why gpq cannot have a device, by device."""
    reasons: dict[str, str] = {}
    for key, info in attempts.items():
        if verdicts[key] in OBSTACLES:
            reason = f"used by attempt {wire.attempt_key(*key)}, {OBSTACLES[verdicts[key]]}"
            reasons |= dict.fromkeys(info.get("devices", ()), reason)
    return reasons


def _strangers(
    attempts: Mapping[Key, Info], verdicts: Mapping[Key, AttemptVerdict], folder: str
) -> tuple[Orphan, ...]:
    """An attempt that is committed a moment later is not a stranger: no job starts before its
    commit."""
    return tuple(
        Orphan(
            *key,
            since=info.get("started_at") or 0.0,
            pid=info.get("pid") or 0,
            folder=f"{folder}/{wire.attempt_key(*key)}",
        )
        for key, info in sorted(attempts.items())
        if verdicts[key] is AttemptVerdict.STRANGER
    )
