"""A whole run: nodes, network, one daemon after another, users and faults from a plan. `simulate` returns the outcome."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gpq.control import job_requests, submission
from gpq.control.controller import Controller
from gpq.core.model.jobs import DesiredState, JobState
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId
from gpq.daemon.nodes.session import NodeSession
from gpq.policies.registry import policy
from tests.dst.attempts import Attempt
from tests.dst.daemons import EPOCH, Daemon
from tests.dst.disk import Disk, DiskStore
from tests.dst.judge import Judge
from tests.dst.network import Wire
from tests.dst.nodes import Node
from tests.dst.plan import ENDLESS, Deed, Fault, Plan, Restless, drawn
from tests.dst.programs import Gang, Program
from tests.dst.schedule import Schedule, Violation

PATIENCE = 1500.0  # seconds without faults in which every job must end
RESTART = 1.0


@dataclass(frozen=True)
class Build:
    """The parts of the run. A planted bug replaces one of them."""

    name: str = "gpq"
    node: type[Node] = Node
    disk: type[Disk] = Disk
    store: type[DiskStore] = DiskStore
    controller: type[Controller] = Controller
    session: type[NodeSession] = NodeSession


@dataclass(frozen=True)
class Outcome:
    """`violation`: "" for none."""

    seed: int
    violation: str
    events: int
    seconds: float  # simulated
    jobs: int
    trace: tuple[str, ...] = field(default=(), repr=False)


def simulate(seed: int, build: Build | None = None, *, plan: Plan | None = None, tracing: bool = False) -> Outcome:
    run = Simulation(plan or drawn(seed), build or Build(), tracing=tracing)
    violation = ""
    try:
        run.run()
    except Violation as error:
        violation = str(error)
    schedule = run.schedule
    return Outcome(seed, violation, schedule.events, schedule.now, len(run.jobs), tuple(schedule.trace or ()))


class Simulation:
    def __init__(self, plan: Plan, build: Build, *, tracing: bool) -> None:
        self.plan = plan
        self.build = build
        self.schedule = Schedule(str(plan.seed), tracing=tracing)
        self.judge = Judge(self.schedule)
        self.disk = build.disk(self.judge)
        self.programs = copy.deepcopy(plan.programs)
        self.by_token: dict[str, Program] = {}
        self.gangs: dict[tuple[str, int, int], Gang] = {}
        self.jobs: dict[int, int] = {}  # by program: the job that was acknowledged
        self.acked_by: dict[int, list[int]] = {}
        self.nodes = [self._node(number) for number in range(plan.nodes)]
        self.daemon: Daemon | None = None
        self.old: list[Daemon] = []  # stopped and replaced
        self.restarting = False
        self.todo = len(plan.deeds)

    def _node(self, number: int) -> Node:
        return self.build.node(
            f"n{number}",
            self.schedule,
            Wire(self.schedule, self.plan.weather),
            self.judge,
            self._gang,
            wall_offset=self.plan.wrong_clocks[number],
            release_after=self.plan.release_after[number],
            rate=self.plan.rates[number],
        )

    def _gang(self, attempt: Attempt) -> Gang:
        token = next(word for word in attempt.order.argv if word in self.by_token)
        key = (token, *attempt.key)
        gang = self.gangs.get(key)
        if gang is None:
            schedule, size = self.schedule, attempt.order.node_count
            gang = self.gangs[key] = Gang(self.by_token[token], size, lambda: schedule.now, schedule.after)
        return gang

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises Violation."""
        self._start_daemon()
        for deed in self.plan.deeds:
            self.schedule.at(deed.at, lambda deed=deed: self._do(deed, 0))  # type: ignore[misc]
        for fault in self.plan.faults:
            self.schedule.at(fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        self.schedule.run(self.plan.end, self._is_done)
        if not self._is_done():
            self._clear()
            self.schedule.run(self.plan.end + PATIENCE, self._is_done)
        if not self._is_done():
            left = {job.id: (str(job.state), job.attempt, str(job.wish), job.notices) for job in self._live().values()}
            raise Violation(f"I5: {PATIENCE:.0f} s after the last fault these jobs have not ended: {left}")
        self.judge.durable(self.disk)
        if self.judge.live:
            raise Violation(f"I2: all jobs have ended, but these attempts live: {list(self.judge.live)}")

    def _live(self) -> dict[JobId, Any]:
        return dict(self.disk.memory.load().jobs)

    def _is_done(self) -> bool:
        return not self.todo and not self.disk.memory.load().jobs and not self.judge.live

    def _clear(self) -> None:
        """No faults from here on. The user wants all held jobs to run."""
        weather = self.plan.weather
        for node in self.nodes:
            node.way.weather = replace(weather, drop=0.0)
        self._patrol()

    def _patrol(self) -> None:
        for job in self._live().values():
            if job.state is JobState.HELD or job.wish is DesiredState.HOLD:
                self._change(job_requests.release, job.id)
            if self.by_token[job.spec.argv[0]].work >= ENDLESS:
                self._change(job_requests.cancel, job.id)
        self.schedule.after(20.0, self._patrol)

    # -- daemons -------------------------------------------------------------------------------------------------------

    def _start_daemon(self) -> None:
        self.restarting = False
        build, name = self.build, self.plan.policy
        self.daemon = Daemon(
            self.schedule,
            self.disk,
            self.nodes,
            Restless(EPOCH + self.plan.end) if name == "restless" else policy(name),
            Config(interval=self.plan.interval, policy=name),
            session=build.session,
            controller=build.controller,
            store=build.store,
        )
        self._watch(self.daemon)

    def _watch(self, daemon: Daemon) -> None:
        """The service manager, which starts a dead daemon again."""
        if self.daemon is not daemon:
            return
        if daemon.alive:
            self.schedule.after(1.0, lambda: self._watch(daemon))
        elif not self.restarting:
            self.restarting = True
            self.schedule.after(RESTART, self._start_daemon)

    def _serving(self) -> Daemon | None:
        daemon = self.daemon
        return daemon if daemon is not None and daemon.alive and not daemon.frozen else None

    # -- users ---------------------------------------------------------------------------------------------------------

    def _do(self, deed: Deed, tries: int) -> None:
        """If a command fails, the user tries again. A submission without an answer may become two jobs."""
        daemon = self._serving()
        if deed.kind == "submit":
            if daemon is None:
                self.schedule.after(2.0, lambda: self._do(deed, tries))
            else:
                self._submit(daemon, deed, tries)
            return
        job = self.jobs.get(deed.program)
        self.todo -= 1
        if job is not None:
            self._change(getattr(job_requests, deed.kind), JobId(job))

    def _submit(self, daemon: Daemon, deed: Deed, tries: int) -> None:
        program = copy.copy(self.programs[deed.program])
        token = program.token = f"{program.token}.{tries}"
        self.by_token[token] = program
        answered: list[Any] = []

        def build(snapshot: Snapshot) -> tuple[list[Any], int]:
            specs = [program.spec(token)]
            return submission.submission_events(snapshot, specs, (), daemon.now(), on_hold=False), snapshot.next_id

        def take(answer: Any) -> None:
            answered.append(answer)
            if isinstance(answer, int):
                self.schedule.say("{} is acknowledged as job {}", token, answer)
                self.judge.acknowledged(answer, token)
                self.judge.durable(self.disk)
                self.jobs[deed.program] = answer
                self.todo -= 1
            else:
                self.schedule.after(3.0, lambda: self._do(deed, tries + 1))

        def give_up() -> None:
            if answered:
                return
            if daemon.alive:
                self.schedule.after(3.0, give_up)
            else:
                self._do(deed, tries + 1)

        daemon.ask(build, take)
        self.schedule.after(3.0, give_up)

    def _change(self, judge: Callable[..., Any], job: JobId) -> None:
        daemon = self._serving()
        if daemon is None:
            return

        def build(snapshot: Snapshot) -> tuple[list[Any], object]:
            if judge is job_requests.cancel:
                return job_requests.cancel(snapshot, [job], daemon.now(), "ana"), None
            ended = self.disk.memory.history(ids=[job])
            of_ended = job_requests.requeue_ended(ended, None, lambda job, after: ())
            again = of_ended if judge is job_requests.requeue else None
            return job_requests.changes(snapshot, [job], ended, judge, daemon.now(), "ana", again)

        self.schedule.say("the user asks to {} job {}", judge.__name__, job)
        daemon.ask(build, lambda _: None)

    # -- faults --------------------------------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        self.schedule.say("fault: {}", fault)
        node = self.nodes[fault.node]
        daemon = self._serving()
        match fault.kind:
            case "cut":
                node.way.sever(fault.ways)
                self.schedule.after(fault.seconds, lambda: node.way.heal(fault.ways))
            case "reboot" if node.up:
                node.power_off()
                self.schedule.after(fault.seconds, node.power_on)
            case "agent kill":
                node.kill_agents()
            case "start kill":
                node.dies_at_start = True
            case "shim kill":
                shims = [one for one in node.attempts.values() if one.record is None and node.shim_lives(one)]
                if shims:
                    node.kill_shim(shims[fault.number % len(shims)])
            case "port busy":
                node.busy_until = self.schedule.now + fault.seconds
            case "daemon kill" if daemon is not None:
                daemon.kill()
            case "daemon kill at commit" if daemon is not None:
                if fault.number < 2:
                    daemon.store.strike = ("before", "after")[fault.number]
                else:
                    daemon.orders_until_death = fault.number - 2
            case "freeze" if daemon is not None:
                self._freeze(daemon, fault)
            case "slow disk" if daemon is not None:
                daemon.disk_seconds = fault.share * fault.seconds / 4
                self.schedule.after(fault.seconds, lambda: setattr(daemon, "disk_seconds", 0.0))
            case "full disk" if not self.disk.full:
                self.disk.full = True
                self.schedule.after(fault.seconds, lambda: setattr(self.disk, "full", False))

    def _freeze(self, daemon: Daemon, fault: Fault) -> None:
        """SIGSTOP. Often another daemon replaces it in the meantime, whatever the lock says. Then SIGCONT."""
        daemon.freeze()
        self.schedule.after(fault.seconds, daemon.thaw)
        if fault.share < 0.7:

            def replaced() -> None:
                if daemon.frozen and self.daemon is daemon:
                    self.old.append(daemon)
                    self._start_daemon()

            self.schedule.after(fault.seconds * fault.share, replaced)
