"""The loop: it answers requests after the commit, many in one. What the store refuses is neither acknowledged nor
lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from gpq.control.controller import LONGEST_PUT_OFF, MANY, Controller
from gpq.control.controller import PATIENCE as ROUND_AT_ONCE
from gpq.core.goodput.priors import inform, program_of
from gpq.core.model.actions import Action, Launch, Stop
from gpq.core.model.events import (
    CancelAsked,
    Event,
    Exited,
    NodeSeen,
    Profiled,
    Released,
    Started,
    Submitted,
    TimingSums,
)
from gpq.core.model.jobs import Allotment, Job, Level
from gpq.core.model.placements import Exit, Shape
from gpq.core.model.profile import Noise, Progress
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId, NodeId
from gpq.core.state.lifecycle import InvalidTransition
from gpq.errors import DaemonUnreachable, GpqError, NotFound, Refused, StoreFailed
from gpq.policies.fifo import Fifo
from gpq.store.sqlite import SqliteStore
from tests.support.builders import DECLARED, black_box, job, node, spec
from tests.support.memory_store import MemoryStore
from tests.support.waiting import PATIENCE, wait_until


class Desk:
    """A world with nothing except what the test puts into it."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Sequence[Event] | None] = SimpleQueue()
        self.performed: list[Action] = []
        self.published: list[Snapshot] = []
        self.clock = 1.0

    def now(self) -> float:
        self.clock += 0.001
        return self.clock

    def wait(self, until: float) -> Sequence[Event] | None:
        try:
            return self.queue.get(timeout=min(max(until - self.clock, 0.0), PATIENCE))
        except Empty:
            self.clock = max(self.clock, until)
            return ()

    def perform(self, action: Action) -> None:
        self.performed.append(action)

    def wake(self) -> None:
        self.queue.put(())

    def publish(self, snapshot: Snapshot) -> None:
        self.published.append(snapshot)


class Ledger(MemoryStore):
    """A store that can refuse, fail, or take its time."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Sequence[Event]] = []
        self.trouble: GpqError | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def commit(self, events: Sequence[Event], snapshot: Snapshot, ended: Sequence[Job] = ()) -> None:
        self.waiting.set()
        assert self.gate.wait(PATIENCE)
        if self.trouble is not None:
            raise self.trouble
        super().commit(events, snapshot, ended)
        self.commits.append(events)


@contextmanager
def running(controller: Controller, world: Desk) -> Iterator[Future[None]]:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(controller.run)
        try:
            yield future
        finally:
            world.queue.put(None)


def submit(snapshot: Snapshot) -> tuple[list[Event], JobId]:
    name = JobId(snapshot.next_id)
    return [Submitted(snapshot.now, name, black_box())], name


@pytest.fixture
def world() -> Desk:
    return Desk()


@pytest.fixture
def store() -> Ledger:
    return Ledger()


@pytest.fixture
def controller(world: Desk, store: Ledger) -> Controller:
    return Controller(world, store, Fifo(), Config(policy="fifo"))


def test_a_request_is_answered_after_its_events_are_committed(
    controller: Controller, world: Desk, store: Ledger
) -> None:
    store.gate.clear()
    with running(controller, world), ThreadPoolExecutor(1) as callers:
        answer = callers.submit(controller.ask, submit)
        assert store.waiting.wait(PATIENCE)
        assert not answer.done()
        store.gate.set()
        assert answer.result(PATIENCE) == 1
        assert 1 in store.load().jobs


def test_requests_that_wait_together_share_a_commit_and_get_different_ids(
    controller: Controller, world: Desk, store: Ledger
) -> None:
    store.gate.clear()
    with running(controller, world), ThreadPoolExecutor(50) as callers:
        first = callers.submit(controller.ask, submit)
        assert store.waiting.wait(PATIENCE)  # the loop is busy with the first one
        rest = [callers.submit(controller.ask, submit) for _ in range(49)]
        wait_until(lambda: len(controller._asks) == 49, "all wait")
        store.gate.set()
        assert {answer.result(PATIENCE) for answer in [first, *rest]} == set(range(1, 51))
    with_jobs = [events for events in store.commits if any(isinstance(event, Submitted) for event in events)]
    assert len(with_jobs) == 2


def test_a_failed_request_only_affects_its_own_caller(controller: Controller, world: Desk, store: Ledger) -> None:
    def bad(snapshot: Snapshot) -> tuple[list[Event], None]:
        raise NotFound("no job 9")

    store.gate.clear()
    with running(controller, world), ThreadPoolExecutor(4) as callers:
        first = callers.submit(controller.ask, submit)
        assert store.waiting.wait(PATIENCE)
        wrong, right = callers.submit(controller.ask, bad), callers.submit(controller.ask, submit)
        store.gate.set()
        with pytest.raises(NotFound):
            wrong.result(PATIENCE)
        assert {first.result(PATIENCE), right.result(PATIENCE)} == {1, 2}


def test_requests_the_store_refuses_are_not_acknowledged_and_facts_are_kept(
    controller: Controller, world: Desk, store: Ledger
) -> None:
    store.trouble = Refused("the disk is full")
    with running(controller, world):
        with pytest.raises(Refused):
            controller.ask(submit)
        world.queue.put([NodeSeen(1.0, node("a")), Submitted(1.0, JobId(1), black_box())])
        wait_until(lambda: controller._backlog, "the fact waits")
        assert controller.snapshot.jobs == {}
        assert world.performed == []
        store.trouble = None
        wait_until(lambda: 1 in controller.snapshot.jobs, "the fact is committed")
        assert controller.ask(submit) == 2


def test_the_next_daemon_knows_what_jobs_measured(world: Desk, tmp_path: Path) -> None:
    path, one, here = str(tmp_path / "gpq.db"), JobId(1), NodeId("a")
    timing = TimingSums(1, 1, 32, 0, accum_count=50, accum_sum=5.0, step_count=50, step_sum=6.0)
    told = Profiled(2.0, one, 1, 10, DECLARED, timings=(timing,), noise=Noise(1.0, 500.0, 640))
    with closing(SqliteStore(path)) as store:
        controller = Controller(world, store, Fifo(), Config(policy="fifo"))
        controller.step([NodeSeen(1.0, node("a")), Submitted(1.0, one, spec())])
        controller.step([Started(1.5, one, 1, here), told])
        controller.step([Exited(3.0, one, 1, here, Exit(0))])
        assert one not in controller.snapshot.jobs
        taught = controller.snapshot.priors
    with closing(SqliteStore(path)) as store:
        reborn = Controller(world, store, Fifo(), Config(policy="fifo"))
        assert reborn.snapshot.priors == taught
        fresh = job(2)
        fresh = replace(fresh, profile=replace(fresh.profile, declared=DECLARED))
        helped = inform(fresh, reborn.snapshot.priors[program_of(fresh)])
        assert [(row.gpu_type, row.step_time) for row in helped.profile.basis] == [("A100", 0.12)]
        assert helped.profile.noise_basis == Noise(1.0, 500.0, 640)


def test_a_debt_outlives_the_daemon_and_costs_no_commit_of_its_own(world: Desk, tmp_path: Path) -> None:
    """ana has all four GPUs when bo comes, and keeps them while her job saves."""
    path, config = str(tmp_path / "gpq.db"), Config(policy="fifo")
    ours = spec(level=Level.SIGNAL, gpus=4, up_to=4, grace=600.0)
    another = spec(level=Level.SIGNAL, user="bo", gpus=2, up_to=2)
    with closing(SqliteStore(path)) as store:
        controller = Controller(world, store, Fifo(), config)
        controller.step([NodeSeen(1.0, node("a")), Submitted(1.0, JobId(1), ours)])
        controller.step([Started(1.5, JobId(1), 1, HERE)])
        world.clock = 40.0
        controller.step([Submitted(world.clock, JobId(2), another)])
        debts = []
        for _ in range(3):
            world.clock += config.interval
            before = store.load()
            controller.step(())
            assert store.load() is before
            debts.append(controller.snapshot.standings["ana"].debt)
        assert debts == sorted({*debts})
        controller.step([Submitted(world.clock, JobId(3), another)])
        kept = controller.snapshot.standings, controller.snapshot.standings_at
    with closing(SqliteStore(path)) as store:
        reborn = Controller(world, store, Fifo(), config)
        assert (reborn.snapshot.standings, reborn.snapshot.standings_at) == kept
        reborn.step([NodeSeen(world.clock, node("a"))])
        assert reborn.snapshot.standings["ana"].debt >= debts[-1]


@pytest.mark.parametrize("when", ["asking", "later"])
def test_a_failed_store_ends_the_loop_and_every_request(
    controller: Controller, world: Desk, store: Ledger, when: str
) -> None:
    store.trouble = StoreFailed("another daemon has taken over")
    with running(controller, world) as loop:
        with pytest.raises(StoreFailed, match="taken over"):
            controller.ask(submit)
        with pytest.raises(StoreFailed, match="taken over"):
            loop.result(PATIENCE)
        if when == "later":
            with pytest.raises(StoreFailed, match="taken over"):
                controller.ask(submit)
    assert world.performed == []


def test_a_request_after_the_end_of_the_world_fails(controller: Controller, world: Desk) -> None:
    with running(controller, world) as loop:
        world.queue.put(None)
        loop.result(PATIENCE)
        with pytest.raises(DaemonUnreachable):
            controller.ask(submit)


def test_orders_are_sent_only_after_commit_and_publication(controller: Controller, world: Desk, store: Ledger) -> None:
    seen: list[tuple[bool, bool]] = []
    perform = world.perform

    def watched(action: Action) -> None:
        if isinstance(action, Launch):
            job = store.load().jobs[action.job]
            seen.append((job.attempt == action.attempt, world.published[-1].jobs[action.job].attempt == action.attempt))
        perform(action)

    world.perform = watched  # type: ignore[method-assign]
    with running(controller, world):
        world.queue.put([NodeSeen(1.0, node("a"))])
        controller.ask(submit)
        wait_until(lambda: seen, "a launch")
    assert seen == [(True, True)]


def test_waiting_threads_hear_of_every_commit(controller: Controller, world: Desk) -> None:
    def cancel(snapshot: Snapshot) -> tuple[list[Event], None]:
        return [CancelAsked(snapshot.now, JobId(1))], None

    with running(controller, world):
        controller.ask(submit)
        with ThreadPoolExecutor(1) as callers, controller.changed:
            done = callers.submit(controller.ask, cancel)
            assert controller.changed.wait_for(lambda: not controller.snapshot.jobs, PATIENCE)
        done.result(PATIENCE)


def test_facts_that_only_servers_know_cost_no_commit(controller: Controller, world: Desk, store: Ledger) -> None:
    with running(controller, world):
        world.queue.put([NodeSeen(1.0, node("a"))])
        wait_until(lambda: controller.snapshot.nodes, "the node is seen")
    assert store.commits == []


def test_a_burst_of_requests_cannot_delay_a_round_for_ever(controller: Controller, world: Desk) -> None:
    def again(snapshot: Snapshot) -> tuple[list[Event], None]:
        world.wake()
        return [], None

    world.queue.put([NodeSeen(1.0, node("a"))])
    with running(controller, world):
        controller.ask(submit)
        asks: Callable[[], object] = lambda: controller.ask(again)  # noqa: E731
        with ThreadPoolExecutor(8) as callers:
            pending = [callers.submit(asks) for _ in range(400)]
            wait_until(lambda: any(isinstance(action, Launch) for action in world.performed), "launched")
            for one in pending:
                one.result(PATIENCE)


def test_forbidden_events_leave_no_trace_for_later_requests(controller: Controller, world: Desk, store: Ledger) -> None:
    def forbidden(snapshot: Snapshot) -> tuple[list[Event], None]:
        name = JobId(snapshot.next_id)
        return [Submitted(snapshot.now, name, black_box()), Started(snapshot.now, name, 0, NodeId("a")),
                Released(snapshot.now, name)], None  # fmt: skip

    asked = [controller.post(submit), controller.post(forbidden), controller.post(submit)]
    controller.step(())
    assert isinstance(asked[1].exception(0), InvalidTransition)
    assert (asked[0].result(0), asked[2].result(0)) == (1, 2)
    assert sorted(store.load().jobs) == [1, 2]


HERE = NodeId("a")


def measured(number: int, *, base_steps: float = 9.0, steps: int = 50, offset: int = 10) -> Profiled:
    timing = TimingSums(1, 1, 32, 0, accum_count=50, accum_sum=5.0, step_count=steps, step_sum=6.0)
    progress = Progress(0, 1, 1, 1, base_steps, 0.5)
    return Profiled(
        2.0, JobId(number), 1, offset, DECLARED, timings=(timing,), noise=Noise(1.0, 500.0, 640), progress=progress
    )


def begun(controller: Controller, *events: Event) -> None:
    """Three jobs run on one server, and these events came."""
    names = [JobId(number) for number in (1, 2, 3)]
    controller.step([NodeSeen(1.0, node("a")), *(Submitted(1.0, name, spec()) for name in names)])
    controller.step([Started(1.5, name, 1, HERE) for name in names])
    controller.step(events)


def goes_on(controller: Controller, world: Desk) -> None:
    """Another job starts, and one is cancelled."""
    controller.step([Submitted(3.0, JobId(4), black_box()), CancelAsked(3.0, JobId(3))])
    controller.step(())
    assert any(isinstance(action, Launch) and action.job == 4 for action in world.performed)
    assert any(isinstance(action, Stop) and action.job == 3 for action in world.performed)


def test_a_report_that_cannot_be_used_is_set_aside_and_everything_else_goes_on(
    controller: Controller, world: Desk, store: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    begun(controller, measured(1, steps=10**400), measured(2))
    one, two = controller.snapshot.jobs[JobId(1)], controller.snapshot.jobs[JobId(2)]
    assert (one.report_offset, one.profile.rows) == (10, ()), "it is not read again"
    assert "set that aside" in one.notices[-1]
    assert (len(two.profile.rows), two.notices) == (1, ())
    assert "OverflowError" in caplog.text
    assert "Profiled(" in caplog.text
    assert store.load().jobs[JobId(1)] == one
    goes_on(controller, world)


def test_measurements_that_make_a_pass_fail_are_forgotten_and_no_job_loses_its_end(
    controller: Controller, world: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    begun(controller, measured(1, base_steps=float("inf")), measured(2))
    assert caplog.text == ""
    controller.step([measured(1, offset=20), measured(2, offset=20), Exited(3.0, JobId(2), 1, HERE, Exit(0))])
    one = controller.snapshot.jobs[JobId(1)]
    assert one.report_offset == 20
    assert any("set that aside" in line for line in one.notices)
    assert JobId(2) not in controller.snapshot.jobs
    goes_on(controller, world)


class Picky(Fifo):
    """Cannot stand a job that was measured at step 666."""

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        for one in snapshot.jobs.values():
            if one.profile.progress is not None and one.profile.progress.base_steps == 666.0:
                raise FloatingPointError(one.id)
        return super().allocate(snapshot)


def test_a_round_that_fails_over_what_jobs_measured_goes_on_without_that(world: Desk, store: Ledger) -> None:
    controller = Controller(world, store, Picky(), Config(policy="fifo"))
    begun(controller, measured(1, base_steps=666.0), measured(2), measured(3, base_steps=666.0))
    goes_on(controller, world)
    jobs = [controller.snapshot.jobs[JobId(number)] for number in (1, 2, 3)]
    assert [len(one.profile.rows) for one in jobs] == [0, 1, 0]
    assert ["FloatingPointError" in str(one.notices) for one in jobs] == [True, False, True]


class Choosy(Fifo):
    """Cannot stand a job of this name, or a server with this one."""

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        names = [*snapshot.nodes, *(one.spec.name for one in snapshot.jobs.values())]
        if "bad" in names:
            raise FloatingPointError
        return super().allocate(snapshot)


def test_news_over_which_every_pass_fails_is_left_out_and_told(
    world: Desk, store: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    controller = Controller(world, store, Choosy(), Config(policy="fifo"))
    begun(controller, NodeSeen(2.0, node("bad")), measured(2))
    assert list(controller.snapshot.nodes) == [HERE]
    assert len(controller.snapshot.jobs[JobId(2)].profile.rows) == 1
    assert "gpq sets this aside" in caplog.text
    goes_on(controller, world)


def test_a_request_over_which_every_pass_fails_is_refused_and_the_news_is_kept(world: Desk, store: Ledger) -> None:
    class Unready(Fifo):
        def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
            raise FloatingPointError

    controller = Controller(world, store, Fifo(), Config(policy="fifo"))
    begun(controller)
    controller.policy = Unready()
    answer = controller.post(lambda seen: ([CancelAsked(seen.now, JobId(1))], None))
    controller._put_off = ROUND_AT_ONCE
    controller.step([measured(2)])
    assert isinstance(answer.exception(0), FloatingPointError)
    controller.policy = Fifo()
    controller.step(())
    assert len(controller.snapshot.jobs[JobId(2)].profile.rows) == 1
    goes_on(controller, world)


def test_jobs_outlive_a_wrong_answer_and_go_on_after_a_good_one(
    world: Desk, store: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    class Astray(Fifo):
        def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
            return {JobId(99): Shape(1)}

    controller = Controller(world, store, Fifo(), Config(policy="fifo"))
    begun(controller)
    before = [one.placement for one in controller.snapshot.holders]
    performed = list(world.performed)
    controller.policy = Astray()
    for number in (4, 5):
        controller.step([Submitted(3.0, JobId(number), black_box())])
    assert [one.placement for one in controller.snapshot.holders] == before
    assert world.performed == performed
    controller.policy = Fifo()
    controller.step([Submitted(4.0, JobId(6), black_box())])
    assert [action.job for action in world.performed[len(performed) :] if isinstance(action, Launch)] == [4]
    assert [record.getMessage() for record in caplog.records] == [
        "policy fifo answered wrongly: it named 99 as a job, but was not asked about such a job. gpq changes nothing"
        " until it answers well: `gpq config policies` lists others",
        "the policy answers well again",
    ]


def test_a_bug_that_no_measurements_explain_is_raised(world: Desk, store: Ledger) -> None:
    class Broken(Fifo):
        def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        begun(Controller(world, store, Broken(), Config(policy="fifo")))


def test_with_thousands_of_jobs_a_new_one_may_wait_for_its_round_but_an_end_may_not(
    controller: Controller, world: Desk
) -> None:
    controller.post(lambda seen: ([Submitted(seen.now, JobId(name), black_box()) for name in range(1, MANY + 1)], None))
    controller.step(())
    controller.step([NodeSeen(1.0, node("a"))])
    rounds = controller.rounds
    controller.round_seconds.append(LONGEST_PUT_OFF)  # as if the last one had taken so long
    controller.post(submit)
    controller.step(())
    controller.step(())
    assert controller.rounds == rounds
    assert world.clock < controller.wake_at() < world.clock + LONGEST_PUT_OFF + 1.0
    running_ = next(one for one in controller.snapshot.holders)
    controller.step([Exited(2.0, running_.id, running_.attempt, NodeId("a"), Exit(0))])
    assert controller.rounds == rounds + 1
