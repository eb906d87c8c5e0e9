"""Whatever a job or a server says in a field, and however extreme a value is that gpq accepts: no pass of the daemon
fails, every question about it has an answer, another job starts, and another is cancelled.

All 10,000 cases of each: GPQ_EXAMPLES=many .venv/bin/python -m pytest -q -n 0 tests/daemon/nodes/test_accepted_values.py
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gpq_agent import wire
from gpq_agent.node.attempt_files import pulses
from gpq_agent.node.attempts import Attempts
from gpq_agent.node.devices.gpu_locks import Locks
from gpq_agent.node.spool import shapes
from gpq_agent.node.spool.spool import Spool
from gpq_agent.node.survey import _digest

from gpq.control.controller import Controller
from gpq.control.readings import Readings
from gpq.core.goodput.models import model_of
from gpq.core.model.actions import Action, Launch, Stop
from gpq.core.model.events import (
    CancelAsked,
    Event,
    Exited,
    NodeSeen,
    NodeSilent,
    ReleaseAsked,
    Started,
    Submitted,
)
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.placements import Exit
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.daemon.clock import Clock
from gpq.daemon.nodes.link import _decode
from gpq.daemon.nodes.session import NodeSession
from gpq.daemon.nodes.settings import NodePorts, NodeSettings
from gpq.policies.registry import policy
from gpq.ports import Peer
from gpq.rpc import requests
from gpq.store.sqlite import SqliteStore
from tests.support.builders import black_box, node, spec

CASES = {"few": 20, "some": 300, "many": 10_000}[os.environ.get("GPQ_EXAMPLES", "some")]
PARTS = 4
ROUNDS = 25  # cases for one daemon, so that what it has learned adds up

SAID = NodeId("said")
ODD: tuple[Any, ...] = (
    *(None, True, False, "", "1", "\u00b2", "\u0663", "nan", "1e999", "x" * 999, "\ud800", "\x1b[2J\n", [], {}, [[]]),
    *(-1, 0, 1, 1 << 31, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, 1 << 60, 1 << 63, -1 << 63, 1 << 64, 10**400),
    *(-0.0, 5e-324, 1e-300, -1e308, 1e308, float("nan"), float("inf"), -float("inf"), 2.5e11, 9e15, 1e16),
)


class Liar:
    """Draws values. The same seed draws the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, honest: Any) -> Any:
        """Honest, a little off, as extreme as possible, or nonsense."""
        kind = self.random.random()
        if kind < 0.35:
            return honest
        if kind < 0.55:
            return self.random.choice(ODD)
        if isinstance(honest, list):
            return [self.value(item) for item in honest] * self.random.choice((0, 1, 1, 3))
        if isinstance(honest, bool) or not isinstance(honest, int | float):
            return self.random.choice((honest, honest, *ODD))
        number = 10.0 ** self.random.uniform(-31, 31) if kind < 0.85 else abs(honest) * self.random.uniform(0.5, 2.0)
        return int(min(number, 1 << 54)) if isinstance(honest, int) else number

    def lied(self, honest: Mapping[str, Any], most: int = 3) -> dict[str, Any]:
        """With lies in some fields, now and then without one."""
        message = dict(honest)
        for name in self.random.sample(sorted(message), min(len(message), self.random.randrange(most + 1))):
            message[name] = self.value(message[name])
            if self.random.random() < 0.05:
                del message[name]
        return message


# -- what is honest ----------------------------------------------------------------------------------------------------

REPORTS: tuple[dict[str, Any], ...] = (
    {"kind": "declared", **wire.Declared("adaptive", 64, 1024, 1, 128, 10_000, 10)._asdict()},
    {"kind": "ready", "seconds": 3.0, "restore_seconds": 1.0, "warm": True},
    *({"kind": "timing", **wire.Timing(1, 1, m, s, 10, 1.0, 10, 2.0)._asdict()} for m in (32, 64) for s in (0, 1)),
    *({"kind": "timing", **wire.Timing(n, 2, 32, 0, 10, 1.0, 10, 2.0)._asdict()} for n in (1, 2)),
    *({"kind": "noise", **wire.Noise(0.5, 8.0, 640)._asdict()} for _ in range(3)),
    *({"kind": "progress", **wire.Progress(1, 3, 128, 40, 44.5, 0.4)._asdict()} for _ in range(3)),
    {"kind": "retuned", "atomic_batch": 64, "accum_steps": 1, "lr_factor": 2.0, "seq": 3},
    {"kind": "checkpoint", "step": 40, "seconds": 0.25, "bytes": 10, "why": "periodic"},
    {"kind": "metrics", "step": 40, "values": {"loss": 1.5}},
    {"kind": "loss", **wire.Loss(40.5, 1.375)._asdict()},
    {"kind": "ranks", **wire.RankTimes(40, [9, 9], [0.1, 0.2], [0.3, 0.4], [1.0, 1.0], [0.5, 0.0], [0.0, 0.1])._asdict()},
    {"kind": "habit", **wire.Habit("two-passes", ["split"], "two passes", "one pass")._asdict()},
    {"kind": "notice", "message": "less memory than thought"},
)  # fmt: skip
END = wire.ExitRecord(1, 1, 3, None, False, None, 1e9, 1e9 + 9, stamp=90.0, boot_id="b")._asdict()
PULSE = wire.Pulse(0, 7, "computing", 99.0)._asdict()
PROCESS = wire.DeviceProcess(7, "bob", "python", 9, "1.1", "python x.py", 1e9)._asdict()
HELLO = {
    "version": wire.VERSION, "boot_id": "boot", "time": 1e9, "stamp": 90.0, "library": "/l", "cores": 8,
    "machine": "boot:1",
    "memory_mib": 9000, "ephemeral": [32768, 60999], "network": [["eth0", "10.0.0.1"]], "address": "", "path": "/s",
    "storage": "s", "damage": [],
}  # fmt: skip


def device(name: str, number: int) -> dict[str, Any]:
    info = wire.DeviceInfo(f"{name}-{number}", number, "cuda", "A100", 40_000, "ok", processes=[PROCESS], utilisation=5)
    return info._asdict()


def info(job: int, state: str = "running", **more: Any) -> dict[str, Any]:
    return {**wire.AttemptInfo(job, 1, state, 7, 1e9, began=50.0)._asdict(), "ranks": [PULSE], **more}


# -- a daemon without threads ------------------------------------------------------------------------------------------


class World:
    """Performs nothing, and remembers it."""

    def __init__(self) -> None:
        self.performed: list[Action] = []
        self.clock = 2e9

    def now(self) -> float:
        self.clock += 5.0
        return self.clock

    def wait(self, until: float) -> Sequence[Event] | None:
        return None

    def wake(self) -> None: ...

    def perform(self, action: Action) -> None:
        self.performed.append(action)

    def publish(self, snapshot: Snapshot) -> None: ...


class Desk:
    """The real controller, store, session with a server, and answers."""

    def __init__(self, store: SqliteStore, liar: Liar) -> None:
        self.liar, self.world = liar, World()
        self.controller = Controller(self.world, store, policy("goodput"), Config())
        self.readings = Readings(self.controller, store, lambda *_: {}, lambda job: None)
        self.next, self.offset = 1, 0
        self.liar_id = self.new_id()
        self.settle([NodeSeen(1.0, node("other", 2, type="H100"))])

    def new_id(self) -> JobId:
        self.next += 1
        return JobId(self.next)

    def running(self) -> Job:
        """The job that lies. It runs on the server whose answers are tested."""
        now = self.world.now()
        if self.liar_id not in self.controller.snapshot.jobs:
            self.liar_id = self.new_id()
            self.settle([Submitted(now, self.liar_id, spec(up_to=4, gpu_type="A100"))])
        self.settle([NodeSeen(now, node("said"))])
        job = self.controller.snapshot.jobs[self.liar_id]
        if job.state is JobState.HELD or job.not_before > now:
            self.settle([ReleaseAsked(now, job.id)])
            job = self.controller.snapshot.jobs[self.liar_id]
        if job.state is JobState.STARTING:
            self.settle([Started(self.world.now(), job.id, job.attempt, SAID)])
        return self.controller.snapshot.jobs[self.liar_id]

    def settle(self, events: Sequence[Event] = ()) -> None:
        self.controller.step(events)
        self.controller.step(())

    def heard(self, hello: Mapping[str, Any], watch: Mapping[str, Any]) -> None:
        """What the server's session makes of its answers goes into the controller. If it drops the link, the daemon
        names the server unreachable and lives on (NodeClient._run)."""
        events: list[Event] = []
        ports = NodePorts(Clock(), events.extend, lambda: self.controller.snapshot)
        session = NodeSession(NodeSettings(SAID), ports)
        replies: dict[str, Mapping[str, Any]] = {"hello": hello, "watch": watch}

        def send(op: str, fields: Mapping[str, Any], callback: Callable[[Mapping[str, Any]], None]) -> None:
            reply = replies.pop(op, None)
            if reply is not None:
                text = json.dumps({"ok": True, "stamp": 100.0, "time": 1e9, "digest": "d", **reply}, ensure_ascii=False)
                callback(json.loads(text.encode("utf-8", "replace")))  # as the link does, but for numbers

        session.begin(send)
        self.settle(events)

    def report(self) -> str:
        choice = self.liar.random.choices(REPORTS, k=self.liar.random.randrange(1, 12))
        return "\n".join(json.dumps(self.liar.lied(message)) for message in choice)

    def neighbours(self) -> None:
        """A new job starts on the other server, and is cancelled there."""
        name = self.new_id()
        self.world.performed.clear()
        self.settle([Submitted(self.world.now(), name, black_box(gpu_type="H100", user="bob"))])
        [launch] = [one for one in self.world.performed if isinstance(one, Launch) and one.job == name]
        self.settle([CancelAsked(self.world.now(), name)])
        assert any(isinstance(one, Stop) and one.job == name for one in self.world.performed)
        parts = [where for where, _ in launch.placement.parts]
        self.settle([Exited(self.world.now(), name, 1, where, Exit(None, 9)) for where in parts])
        assert name not in self.controller.snapshot.jobs

    def questions(self) -> None:
        """Each answer survives its way to the command. JSON knows no infinity, so nothing of it may be in an answer."""
        asked: list[requests.Request] = [
            requests.Status(), requests.Nodes(), requests.Top(), requests.Show(str(self.liar_id)),
            requests.Why(str(self.liar_id)), requests.History(), requests.Report(),
        ]  # fmt: skip
        peer = Peer(os.getuid(), os.getpid(), "ana", lambda: False)
        for request in asked:
            answer = self.readings.handlers[type(request)](request, peer)
            assert msgspec.json.decode(msgspec.json.encode(answer), type=type(answer)) == answer


def cases_of(part: int) -> range:
    size = max(CASES // PARTS // ROUNDS, 1) * ROUNDS
    return range(part * size, (part + 1) * size)


@pytest.fixture
def desks(tmp_path: Path) -> Iterator[Callable[[int], Desk]]:
    """A new one for every ROUNDS cases."""
    open_: list[SqliteStore] = []

    def desk(case: int) -> Desk:
        if case % ROUNDS == 0:
            for store in open_:
                store.close()
            open_[:] = [SqliteStore(str(tmp_path / f"{case}.db"))]
            current[:] = [Desk(open_[0], Liar(case))]
        return current[0]

    current: list[Desk] = []
    yield desk
    for store in open_:
        store.close()


@pytest.mark.parametrize("part", range(PARTS))
def test_no_answer_of_a_server_and_no_report_of_a_job_stops_anything(
    desks: Callable[[int], Desk], caplog: pytest.LogCaptureFixture, part: int
) -> None:
    heard = modelled = 0
    cases = cases_of(part)
    for case in cases:
        desk = desks(case)
        job, liar = desk.running(), desk.liar
        desk.offset += 1
        state = liar.random.choice(("running", "running", "running", "exited"))
        honest = info(job.id, state, exit=liar.lied(END) if state == "exited" else None)
        told = liar.lied(honest, 2) | {"job": job.id, "attempt": job.attempt}
        told |= {"report": desk.report(), "report_offset": desk.offset, "ranks": [liar.lied(PULSE)]}
        other = info(999, devices=["said-3"])
        devices = [liar.lied({**device("said", n), "processes": [liar.lied(PROCESS)]}, 1) for n in range(4)]
        try:
            desk.heard(liar.lied(HELLO, 1), liar.lied({"attempts": [told, other], "devices": devices}, 0))
            heard += 1
        except Exception as error:  # the server is unreachable: NodeClient._run
            desk.settle([NodeSilent(desk.world.now(), SAID, repr(error), 0.0)])
        desk.neighbours()
        desk.questions()
        assert not [record.exc_text for record in caplog.records if record.exc_info]
        caplog.clear()
        modelled += model_of(job.profile) is not None
    assert heard > len(cases) / 3
    assert modelled > len(cases) / 3


@pytest.mark.parametrize("part", range(PARTS))
def test_no_file_of_an_attempt_stops_the_agent_or_the_daemon(
    desks: Callable[[int], Desk], tmp_path: Path, part: int
) -> None:
    """The files are damaged by a job. What the agent says of them goes to the daemon."""
    place = Spool(str(tmp_path / "spool"))
    attempts = Attempts(place, Locks(str(tmp_path), place.id))
    first = {"pid": 1 << 21, "start_time": 5, "boot_id": "b", "started_at": 1e9}
    files: dict[str, dict[str, Any]] = {
        wire.SHIM: {**first, "adopted": False}, wire.STARTED: first, wire.EXIT: END,
        wire.STOP: {"mode": "kill", "grace": 1.0, "seq": 1}, shapes.NOTE: {"note": "it cannot be killed"},
        wire.FIRST_ERROR: {"error": "out of memory", "rank": 1}, wire.FAILURES: {"failures": [[0, 1]]},
        wire.CONTROL: wire.Control(1, 2)._asdict(),
    }  # fmt: skip
    layout = struct.Struct(wire.PULSE)
    for case in cases_of(part):
        desk = desks(case)
        job, liar = desk.running(), desk.liar
        key = wire.attempt_key(job.id, job.attempt)
        folder = Path(place.folder(key))
        folder.mkdir()
        order = wire.StartOrder(job.id, job.attempt, ["true"], "/", {}, ["said-0"], "black-box")
        wire.write_json(str(folder / wire.ORDER), order._asdict())
        for name in liar.random.sample(sorted(files), liar.random.randrange(len(files))):
            (folder / name).write_text(json.dumps(liar.lied(files[name], 2)))
        step = liar.random.choice((7, -1, 1 << 53, 1 << 60, (1 << 63) - 1))
        rank = liar.random.choice(("0", "1", "-1", "\u00b2", "9" * 99))
        since = liar.random.choice((0.0, 5.0, float("nan"), 1e300))
        (folder / f"{wire.RANK}{rank}").write_bytes(layout.pack(1, step, 1, since))
        infos = attempts.count(attempts.all())
        attempts.tend(infos)
        _digest(infos, [], [])
        [seen] = infos
        assert "a bug in gpq" not in str(seen.damage)
        ranks = [pulse._asdict() for pulse in pulses(str(folder))]
        line = wire.encode({"attempts": [seen._replace(ranks=ranks)._asdict()], "devices": [device("said", 0)]})
        desk.heard(HELLO, _decode(line))
        desk.neighbours()
        desk.questions()
        shutil.rmtree(folder)
        attempts = Attempts(place, Locks(str(tmp_path), place.id))
