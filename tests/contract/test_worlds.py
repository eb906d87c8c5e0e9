"""Every World answers orders with the same facts. The live one does so through a real agent on pipes."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from gpq_agent import wire

from gpq import pace
from gpq.config import NodeConfig
from gpq.core.model.actions import Forget, Launch, Stop
from gpq.core.model.events import (
    Event,
    Exited,
    Launched,
    NodeSeen,
    NodeSilent,
    Profiled,
    Started,
    StartRefused,
    Submitted,
)
from gpq.core.model.jobs import DesiredState, Job, JobSpec, JobState, Level, StopReason
from gpq.core.model.nodes import DeviceState, NodeState
from gpq.core.model.placements import BatchOrder, Placement
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.rounds.planning import order_fact
from gpq.core.state.apply_events import fold
from gpq.daemon.nodes.world import LiveWorld
from gpq.ports import World
from tests.daemon.daemons import QUICK
from tests.support import builders
from tests.support.processes import kill, running_children
from tests.support.programs import Program
from tests.support.sim_world import SimWorld
from tests.support.waiting import PATIENCE, pid_in, wait_until

NODE = NodeId("a")


class Loop:
    """The minimum that a loop does: fold news, publish, order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.snapshot = Snapshot()
        self.events: list[Event] = []
        self.ended: dict[JobId, Job] = {}

    def take(self, events: Sequence[Event]) -> None:
        folded = fold(replace(self.snapshot, now=self.world.now()), events)
        self.events += folded.journal
        self.ended |= {job.id: job for job in folded.ended}
        self.snapshot = folded.snapshot
        self.world.publish(self.snapshot)

    def turn(self) -> None:
        self.take(self.world.wait(self.world.now() + 0.1) or ())

    def until(self, look: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
        def turned() -> object:
            self.turn()
            return look()

        wait_until(turned, f"{what}; events: {[type(event).__name__ for event in self.events]}", patience)

    def has(self, kind: type, number: int = 1) -> bool:
        return sum(isinstance(event, kind) for event in self.events) >= number

    def nodes_up(self) -> None:
        self.until(lambda: NODE in self.snapshot.nodes and self.snapshot.nodes[NODE].state is NodeState.UP, "node up")

    def launch(self, spec: JobSpec, device: str = "slot-0", *, perform: bool = True, submit: bool = True) -> Launch:
        job = JobId(self.snapshot.next_id if submit else 1)
        if submit:
            self.take([Submitted(self.world.now(), job, spec)])
        order = Launch(job, 1, spec, Placement(((NODE, (DeviceId(device),)),)), BatchOrder())
        self.take([Launched(self.world.now(), job, 1, order.placement, order.order)])
        if perform:
            self.world.perform(order)
        return order

    def stop(self, job: JobId, mode: str, grace: float = 0.5, *, perform: bool = True) -> None:
        order = Stop(job, 1, (NODE,), StopReason.CANCEL, mode, grace)
        event = order_fact(order, self.world.now())
        assert event is not None
        self.take([event])
        if perform:
            self.world.perform(order)

    def exit_of(self, job: JobId) -> object:
        self.until(lambda: job in self.ended or self.snapshot.jobs[job].exit, f"job {job} ends")
        return (self.ended.get(job) or self.snapshot.jobs[job]).exit


def shell(command: str, cwd: Path, **more: object) -> JobSpec:
    fields: dict[str, object] = {"level": Level.BLACK_BOX, "max_gpus": 1, **more}
    return JobSpec(argv=("sh", "-c", command), cwd=str(cwd), user="ana", uid=os.getuid(), **fields)  # type: ignore[arg-type]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def live(home: Path) -> Iterator[LiveWorld]:
    world = LiveWorld({str(NODE): NodeConfig(slots=2)}, str(home))
    world.start()
    yield world
    world.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next world that is created calls a server silent after a fifth of the usual time."""
    for name in ("SILENCE", "POLL", "WATCH"):
        monkeypatch.setattr(pace, name, getattr(pace, name) * QUICK)


@pytest.fixture
def loop(live: LiveWorld) -> Loop:
    loop = Loop(live)
    loop.nodes_up()
    return loop


def agent_of(home: Path) -> psutil.Process:
    """The agent that is our child."""
    return wait_until(lambda: running_children(os.getpid(), str(home / "nodes")), "an agent runs")[0]


# -- every world -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["live", "simulated"])
def any_loop(request: pytest.FixtureRequest, tmp_path: Path) -> Loop:
    """A loop with one server and a job."""
    if request.param == "live":
        found: Loop = request.getfixturevalue("loop")
        found.launch(shell("sleep 0.3", tmp_path))
        return found
    program = Program(1.0, builders.black_box(), seconds=5.0)
    loop = Loop(SimWorld([program], [builders.node("a", 2)]))
    loop.nodes_up()
    loop.until(lambda: loop.snapshot.jobs, "the job arrives")
    loop.launch(program.spec, "a-0", submit=False)
    return loop


def test_a_launch_is_answered_by_started_and_exited(any_loop: Loop) -> None:
    any_loop.until(lambda: any_loop.has(Exited), "the job ends")
    kinds = [type(event) for event in any_loop.events]
    assert kinds.index(Started) < kinds.index(Exited)
    [ended] = any_loop.ended.values()
    assert ended.exit is not None
    assert ended.exit.code == 0


def test_a_launch_performed_twice_is_one_launch(any_loop: Loop) -> None:
    [job] = any_loop.snapshot.jobs.values()
    assert job.placement is not None
    any_loop.world.perform(Launch(job.id, 1, job.spec, job.placement, job.order))
    any_loop.until(lambda: any_loop.ended, "the job ends")
    any_loop.world.perform(Forget(job.id, 1, (NODE,)))
    any_loop.turn()
    assert sum(isinstance(event, Exited) for event in any_loop.events) == 1


def test_waiting_ends_at_the_given_time_without_news(any_loop: Loop) -> None:
    until = any_loop.world.now() + 0.2
    while any_loop.world.wait(until):
        assert any_loop.world.now() < until + PATIENCE
    assert any_loop.world.now() >= until


# -- the live one ------------------------------------------------------------------------------------------------------


def test_waking_ends_a_wait_and_closing_ends_all(live: LiveWorld) -> None:
    loop = Loop(live)
    loop.nodes_up()
    answers: list[object] = []

    def wait() -> None:
        while (events := live.wait(live.now() + 600.0)) is not None:
            answers.append(events)

    thread = threading.Thread(target=wait)
    thread.start()
    live.wake()
    wait_until(lambda: answers, "woken")
    live.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_exit_codes_and_signals_come_back_unchanged(loop: Loop, tmp_path: Path) -> None:
    first = loop.launch(shell("exit 7", tmp_path))
    second = loop.launch(shell("kill -SEGV $$", tmp_path), "slot-1")
    assert getattr(loop.exit_of(first.job), "code", None) == 7
    assert getattr(loop.exit_of(second.job), "signal", None) == signal.SIGSEGV


def test_a_lost_launch_is_repeated(loop: Loop, tmp_path: Path) -> None:
    order = loop.launch(shell("echo run >> ran", tmp_path), perform=False)
    loop.exit_of(order.job)
    assert (tmp_path / "ran").read_text() == "run\n"


def test_a_lost_stop_is_repeated(loop: Loop, tmp_path: Path) -> None:
    order = loop.launch(shell("sleep 600", tmp_path))
    loop.until(lambda: loop.has(Started), "it runs")
    loop.stop(order.job, "kill", perform=False)
    loop.exit_of(order.job)


def test_a_cancel_overtakes_a_stop_with_a_long_grace(loop: Loop, tmp_path: Path) -> None:
    spec = shell("trap '' USR1; echo up > up; while :; do sleep 0.1; done", tmp_path, level=Level.SIGNAL, signal="USR1")
    order = loop.launch(spec)
    wait_until((tmp_path / "up").exists, "its trap is set")
    loop.stop(order.job, "signal", grace=3600.0)
    loop.stop(order.job, "kill")
    loop.exit_of(order.job)


def test_a_command_that_does_not_exist_is_refused_permanently(loop: Loop, tmp_path: Path) -> None:
    spec = shell("", tmp_path).having(argv=("no-such-command",))
    loop.launch(spec)
    loop.until(lambda: loop.has(StartRefused), "it is refused")
    [refusal] = [event for event in loop.events if isinstance(event, StartRefused)]
    assert "no-such-command" in refusal.reason
    assert not refusal.transient
    assert refusal.code == 127


def test_a_killed_agent_is_replaced_and_its_job_does_not_notice(loop: Loop, home: Path, tmp_path: Path) -> None:
    order = loop.launch(shell("while [ ! -e go ]; do sleep 0.05; done; exit 5", tmp_path))
    loop.until(lambda: loop.has(Started), "it runs")
    agent = agent_of(home)
    agent.kill()
    wait_until(lambda: agent_of(home).pid != agent.pid, "another agent")
    (tmp_path / "go").touch()
    assert getattr(loop.exit_of(order.job), "code", None) == 5
    assert not loop.has(NodeSilent)


def test_a_frozen_agent_is_silence_and_silence_ends_no_job(
    impatient: None, loop: Loop, home: Path, tmp_path: Path
) -> None:
    order = loop.launch(shell("while [ ! -e go ]; do sleep 0.05; done; exit 3", tmp_path))
    loop.until(lambda: loop.has(Started), "it runs")
    agent = agent_of(home)
    agent.suspend()
    loop.until(lambda: loop.has(NodeSilent), "the silence was noticed")
    assert loop.snapshot.nodes[NODE].state is NodeState.UNREACHABLE
    assert order.job in loop.snapshot.jobs
    loop.nodes_up()  # the frozen agent was released and another took its place
    (tmp_path / "go").touch()
    assert getattr(loop.exit_of(order.job), "code", None) == 3


def test_reports_arrive_once_each_whatever_happens_to_the_agent(loop: Loop, home: Path, tmp_path: Path) -> None:
    line = '{"kind":"metrics","step":1,"values":{"n%d":1}}'
    script = (
        f"import os,time;f=open(os.environ['{wire.ENV_RUN_DIR}']+'/{wire.REPORT}','a',buffering=1)\n"
        f"for i in range(200): f.write('{line}\\n' % i); time.sleep(0.01)"
    )
    order = loop.launch(shell("", tmp_path).having(argv=("python3", "-c", script)))
    loop.until(lambda: loop.has(Profiled, 3), "reports come")
    agent_of(home).kill()
    loop.exit_of(order.job)
    told = [name for event in loop.events if isinstance(event, Profiled) for name, _ in event.metrics]
    assert sorted(told) == sorted(f"n{i}" for i in range(200))


def test_all_reports_of_a_job_that_ends_at_once_arrive(loop: Loop, tmp_path: Path) -> None:
    line = '{"kind":"metrics","step":1,"values":{"last":7}}'
    order = loop.launch(shell(f"echo '{line}' >> $GPQ_RUN_DIR/report.jsonl; exit 4", tmp_path))
    loop.exit_of(order.job)
    kinds = [type(event) for event in loop.events]
    assert kinds.index(Profiled) < kinds.index(Exited)
    assert dict(loop.ended[order.job].profile.metrics) == {"last": 7.0}


def test_an_unknown_attempt_is_left_alone_and_its_device_is_foreign(
    loop: Loop, live: LiveWorld, home: Path, tmp_path: Path
) -> None:
    order = loop.launch(shell("echo $$ > pid; exec sleep 600", tmp_path))
    loop.until(lambda: loop.has(Started), "it runs")
    live.close()
    later = LiveWorld({str(NODE): NodeConfig(slots=2)}, str(home))  # with an empty database
    later.start()
    try:
        other = Loop(later)
        other.nodes_up()
        states = {device.id: device.state for device in other.snapshot.nodes[NODE].devices}
        assert states == {"slot-0": DeviceState.FOREIGN, "slot-1": DeviceState.OK}
        assert psutil.pid_exists(pid_in(tmp_path / "pid"))
        other.take(loop.events)  # now its database knows the job
        other.stop(order.job, "kill")
        other.exit_of(order.job)
    finally:
        later.close()


def test_an_attempt_whose_end_is_recorded_is_forgotten_or_killed(
    loop: Loop, live: LiveWorld, home: Path, tmp_path: Path
) -> None:
    order = loop.launch(shell("echo $$ > pid; exec sleep 600", tmp_path))
    loop.until(lambda: loop.has(Started), "it runs")
    pid = pid_in(tmp_path / "pid")
    loop.take([StartRefused(live.now(), order.job, 1, NODE, "as if it had been refused", transient=False)])
    assert order.job in loop.ended
    wait_until(lambda: not psutil.pid_exists(pid), "it is killed")
    folder = home / "nodes" / "a" / "ended" / "0" / wire.attempt_key(order.job, 1)
    wait_until((folder / "forgotten").exists, "it is forgotten")


def test_an_attempt_that_ran_and_disappeared_is_lost(loop: Loop, home: Path, tmp_path: Path) -> None:
    order = loop.launch(shell("exec sleep 600", tmp_path))
    loop.until(lambda: loop.has(Started), "it runs")
    agent_of(home).suspend()
    for shim in [one for one in psutil.process_iter() if _is_of(one, home, order)]:
        kill(shim)
    shutil.rmtree(home / "nodes" / "a" / "attempts" / wire.attempt_key(order.job, 1))
    agent_of(home).kill()
    loop.until(lambda: loop.has(Exited), "its end is reported")
    assert loop.ended[order.job].exit is not None
    assert loop.ended[order.job].exit.lost  # type: ignore[union-attr]


def _is_of(process: psutil.Process, home: Path, order: Launch) -> bool:
    """Does this process belong to the attempt? A job does by its mark, the shim by its parent."""
    try:
        family = [process, *process.children()]
        marks = [one.environ().get(wire.ENV_RUN_DIR, "") for one in family]
    except psutil.Error:
        return False
    return process.pid != os.getpid() and any(
        mark == str(home / "nodes" / "a" / "attempts" / wire.attempt_key(order.job, 1)) for mark in marks
    )


def test_only_named_gpus_but_all_slots_are_offered(home: Path) -> None:
    world = LiveWorld({str(NODE): NodeConfig(slots=1, gpus=["GPU-1"])}, str(home))
    world.start()
    try:
        loop = Loop(world)
        loop.nodes_up()
        assert [device.id for device in loop.snapshot.nodes[NODE].devices] == ["slot-0"]
        assert loop.has(NodeSeen)
    finally:
        world.close()


def test_a_log_is_read_through_the_node(loop: Loop, live: LiveWorld, tmp_path: Path) -> None:
    order = loop.launch(shell("echo hello", tmp_path))
    loop.exit_of(order.job)
    answer = live.tail(NODE, order.job, 1, 0, 100)
    assert answer["size"] == 6


def test_a_cancelled_job_on_a_node_that_left_the_configuration_ends(home: Path) -> None:
    placed = {"placement": Placement(((NodeId("gone"), (DeviceId("slot-0"),)),)), "attempt": 1, "launched_at": 0.0}
    first = builders.job(1, state=JobState.STOPPING, stop=StopReason.CANCEL, stop_forced=True, **placed)
    second = builders.job(2, state=JobState.RUNNING, wish=DesiredState.CANCEL, **placed)
    world = LiveWorld({str(NODE): NodeConfig(slots=1)}, str(home))
    loop = Loop(world)
    loop.snapshot = builders.snapshot(first, second)
    world.publish(loop.snapshot)
    world.start()
    try:
        loop.until(lambda: JobId(1) in loop.ended, "the one that was cancelled before has ended")
        order = Stop(JobId(2), 1, (NodeId("gone"),), StopReason.CANCEL, "kill", 1.0)
        loop.take([event for event in [order_fact(order, world.now())] if event is not None])
        world.perform(order)
        loop.until(lambda: JobId(2) in loop.ended, "the other one has ended")
    finally:
        world.close()
    assert {str(job.state) for job in loop.ended.values()} == {"cancelled"}
