"""Files follow a job between two real agents that share no storage, through the daemon's own connections."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from gpq_agent import wire

from gpq.config import NodeConfig
from gpq.connectors.local import LocalConnector
from gpq.core.feasibility.checkpoints import Staging, out_of_reach
from gpq.core.model.actions import Launch, Stop
from gpq.core.model.events import Event, Exited, Launched, NodeSilent, Staged, Started, StartRefused, Submitted
from gpq.core.model.jobs import JobSpec, JobState, Level, StopReason
from gpq.core.model.nodes import NodeState
from gpq.core.model.placements import BatchOrder, FilesAt, Placement
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.rounds.planning import order_fact
from gpq.daemon.files import staging
from gpq.daemon.files.transfer import Gauge, Transfer
from gpq.daemon.nodes.world import LiveWorld
from gpq.errors import GpqError
from tests.contract.test_worlds import Loop, shell
from tests.support.processes import running_children
from tests.support.waiting import wait_until

A, B = NodeId("a"), NodeId("b")
SIZE = 40_000_000
PARTS = 20
PIECE = SIZE // PARTS
SAVE = (
    f'cd "$GPQ_CHECKPOINT_DIR"; for part in $(seq {PARTS}); do head -c {PIECE} /dev/urandom > part-$part; done;'
    " cat part-* > state; exit 75"
)


class Two(Loop):
    """Servers `a` and `b`."""

    def up(self) -> None:
        self.until(lambda: [node.state for node in self.snapshot.nodes.values()] == [NodeState.UP] * 2, "both are up")

    def first(self, spec: JobSpec) -> JobId:
        """A job's first attempt, on `a`, from start to end."""
        job = JobId(self.snapshot.next_id)
        self.take([Submitted(self.world.now(), job, spec)])
        self.attempt(job, A)
        self.until(lambda: self.snapshot.jobs[job].state is JobState.PENDING, "the first attempt is over")
        return job

    def attempt(self, job: JobId, node: NodeId) -> Launch:
        known = self.snapshot.jobs[job]
        placement = Placement(((node, (DeviceId("slot-0"),)),))
        order = Launch(job, known.attempt + 1, known.spec, placement, BatchOrder())
        self.take([Launched(self.world.now(), job, order.attempt, placement, order.order)])
        self.world.perform(order)
        return order


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def config(tmp_path: Path, node: NodeId, limit: float = 0.0) -> NodeConfig:
    """With its own storage. `limit`: MB/s of a transfer."""
    return NodeConfig(slots=1, checkpoints=str(tmp_path / f"disk-{node}"), transfer_limit=limit)


@pytest.fixture
def live(home: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LiveWorld]:
    limit = getattr(request, "param", 0.0)
    world = LiveWorld({str(name): config(tmp_path, name, limit) for name in (A, B)}, str(home))
    world.start()
    yield world
    world.close()


@pytest.fixture
def loop(live: LiveWorld) -> Two:
    loop = Two(live)
    loop.up()
    return loop


def state(tmp_path: Path, node: NodeId, job: JobId) -> bytes:
    [folder] = (tmp_path / f"disk-{node}").iterdir()
    return (folder / str(job) / "state").read_bytes()


def process_of(words: str) -> psutil.Process:
    """The process that sends or receives."""
    return wait_until(lambda: running_children(os.getpid(), words), f"a process runs {words}")[0]


def signalled(command: str, cwd: Path, **more: object) -> JobSpec:
    return shell(f'if [ -n "$GPQ_RESUME" ]; then {command}; else {SAVE}; fi', cwd, level=Level.SIGNAL, **more)


def test_a_checkpoint_is_there_before_the_attempt_starts_elsewhere(loop: Two, tmp_path: Path) -> None:
    job = loop.first(signalled('sha256sum < "$GPQ_CHECKPOINT_DIR/state" > sum', tmp_path))
    assert loop.snapshot.nodes[A].storage != loop.snapshot.nodes[B].storage != ""
    assert loop.snapshot.jobs[job].files == FilesAt(A, loop.snapshot.nodes[A].storage, proved=True)
    loop.attempt(job, B)
    loop.exit_of(job)
    loop.until(lambda: job in loop.ended, "it is over")
    assert loop.ended[job].files == FilesAt(B, loop.snapshot.nodes[B].storage, proved=True)
    assert state(tmp_path, A, job) == state(tmp_path, B, job)
    assert len((tmp_path / "sum").read_text().split()[0]) == 64


@pytest.mark.parametrize("live", [20.0], indirect=True)
def test_an_interrupted_transfer_sends_no_file_again_that_has_come_whole(
    loop: Two, live: LiveWorld, tmp_path: Path
) -> None:
    job = loop.first(signalled("true", tmp_path))
    loop.attempt(job, B)

    def far(least: int) -> Staging | None:
        seen = live.stager.progress(job)
        return seen if seen is not None and seen.done > least else None

    for words, least in (("--receive", SIZE // 4), ("--send", SIZE // 2)):
        loop.until(lambda least=least: far(least), "some of it came")  # type: ignore[misc]
        process_of(words).kill()
    loop.until(lambda: job in loop.ended, "it is over")
    assert state(tmp_path, A, job) == state(tmp_path, B, job)
    assert not loop.has(StartRefused)
    [staged] = [event for event in loop.events if isinstance(event, Staged)]
    lost = staged.bytes - 2 * SIZE
    assert lost < 6 * PIECE, "two cuts cost the files under way, and what was between the two ends"
    rate = staged.bytes / staged.seconds
    assert rate < 25e6, "the limit of the servers holds"


def test_a_job_waits_and_says_so_if_the_source_is_unreachable(
    loop: Two, live: LiveWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "GIVE_UP", 0.5)
    job = loop.first(signalled("true", tmp_path))
    live.remove("a")
    loop.attempt(job, B)
    loop.until(lambda: loop.has(StartRefused), "it is refused")
    loop.take([NodeSilent(live.now(), A, "it is gone")])
    loop.until(lambda: loop.snapshot.jobs[job].state is JobState.PENDING, "it waits")
    assert out_of_reach(loop.snapshot, loop.snapshot.jobs[job]) == (
        "its newest checkpoint is on server a, which does not answer"
    )
    assert sum(isinstance(event, Started) for event in loop.events) == 1
    live.add("a", config(tmp_path, A))
    loop.up()
    loop.attempt(job, B)
    loop.until(lambda: job in loop.ended, "it is over")
    assert state(tmp_path, A, job) == state(tmp_path, B, job)


@pytest.mark.parametrize("live", [2.0], indirect=True)
def test_a_cancel_ends_the_transfer(
    loop: Two, live: LiveWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "START_EXPIRY", 1.0)  # an earlier daemon's order may be under way for this long
    job = loop.first(signalled("true", tmp_path))
    loop.attempt(job, B)
    loop.until(lambda: live.stager.progress(job), "it is under way")
    order = Stop(job, 2, (B,), StopReason.CANCEL, "kill", 1.0)
    event: Event | None = order_fact(order, live.now())
    assert event is not None
    loop.take([event])
    live.perform(order)
    loop.until(lambda: job in loop.ended, "it is over")
    wait_until(lambda: live.stager.progress(job) is None, "nothing is under way")
    assert loop.ended[job].state is JobState.CANCELLED
    assert sum(isinstance(one, Exited) for one in loop.events) == 2
    assert loop.ended[job].files == FilesAt(A, loop.snapshot.nodes[A].storage, proved=True)


def test_a_shared_folder_needs_no_transfer(home: Path, tmp_path: Path) -> None:
    world = LiveWorld({str(name): NodeConfig(slots=1) for name in (A, B)}, str(home))
    world.start()
    try:
        loop = Two(world)
        loop.up()
        job = loop.first(signalled('[ -s "$GPQ_CHECKPOINT_DIR/state" ]', tmp_path))
        order = loop.attempt(job, B)
        assert world.stager.ready(order), "not even for a moment"
        loop.until(lambda: job in loop.ended, "it is over")
        assert getattr(loop.ended[job].exit, "code", None) == 0
    finally:
        world.close()


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("echo nonsense", "a server said something invalid"),
        ("echo '[[[['", "a server said something invalid"),
        ("""echo '{"done":1e400,"total":1}'""", "a server said something invalid"),
        ("""echo '{"done":1}'""", "a server said something invalid"),
        ("""printf '{"error":"\\\\ud800 is full"}\\n'""", r"\? is full"),
        ("yes | tr -d '\\n'", "a line that is too long"),
    ],
)
def test_a_server_that_lies_about_a_transfer_ends_it(program: str, why: str) -> None:
    connector, gauge = LocalConnector(), Gauge()
    transfer = Transfer(
        lambda _: connector.spawn(["yes"]),
        lambda _: connector.spawn(["sh", "-c", f"{program}; cat > /dev/null"]),
        contextlib.nullcontext,
        lambda: False,
        lambda: True,
        gauge,
    )
    with pytest.raises(GpqError, match=why):
        transfer.run()
