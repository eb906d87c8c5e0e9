"""The daemon's answers about the past: simulated training jobs, over restarts, from older databases, cut at local
days."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from gpq.control import event_text, usage_report
from gpq.control.controller import Controller
from gpq.core.accounting import accrual
from gpq.core.model.jobs import JobState
from gpq.core.model.snapshot import Config, Snapshot
from gpq.errors import NotFound, UsageError
from gpq.policies.registry import policy
from gpq.rpc import requests
from gpq.store.sqlite import SqliteStore
from tests.support.builders import command, node, program, spec
from tests.support.memory_store import MemoryStore
from tests.support.sim_world import SimWorld

FIXTURES = Path(__file__).parents[2] / "fixtures"
HOUR = 3600.0


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def ran() -> tuple[MemoryStore, Snapshot, float]:
    """Two users train on four GPUs until all jobs have ended. A third user runs something else."""
    programs = [
        program(1.0, spec=spec(user="ana", name="first")),
        program(60.0, spec=spec(user="bo", name="second")),
        command(90.0, seconds=200.0, user="carl"),
    ]
    store, world = MemoryStore(), SimWorld(programs, [node("a", 4)])
    controller = Controller(world, store, policy("goodput"), Config())
    controller.run()
    return store, controller.snapshot, world.now()


@pytest.fixture(scope="module")
def life() -> tuple[MemoryStore, Snapshot, float]:
    return ran()


def test_the_worth_of_gpus_matches_the_work_of_training_jobs(life: tuple[MemoryStore, Snapshot, float]) -> None:
    store, _, now = life
    first, second, third = sorted(store.history(), key=lambda job: job.id)
    for job in (first, second):
        account, progress = job.account, job.profile.progress
        assert job.state is JobState.COMPLETED
        assert account.worth is not None
        assert account.restart_cost is not None
        assert progress is not None
        best = accrual.best_goodput(job)
        assert best is not None
        declared = job.profile.declared
        assert declared is not None
        alone = account.peak * declared.batch_size / best
        assert account.peak >= 0.95 * progress.base_steps
        assert account.worth == pytest.approx(alone, rel=0.15), "all of its work, at the model's best as it was then"
        assert 0 < account.worth <= job.service
        assert account.restart_cost <= job.service - account.worth + 1e-6
        assert account.rho is not None
        assert account.share is not None
        assert 0 < account.share <= 4
    assert first.account.restart_cost > 0, "it was resized"
    assert (third.account.worth, third.account.rho) == (None, None)
    assert now > 0


def test_the_report_matches_the_jobs(life: tuple[MemoryStore, Snapshot, float]) -> None:
    store, state, now = life
    jobs = {job.spec.user: job for job in store.history()}
    answer = usage_report.report(requests.Report(), state, store, now)
    rows = {row.key: row for row in answer.rows}
    for user, job in jobs.items():
        assert rows[user].gpu_hours == pytest.approx(job.service / HOUR)
        assert (rows[user].goodput_hours or 0.0) == pytest.approx((job.account.worth or 0.0) / HOUR)
        assert rows[user].restart_gpu_hours == pytest.approx((job.account.restart_cost or 0.0) / HOUR)
        assert (rows[user].rho_max, rows[user].wait_median_seconds) == (job.account.rho, job.account.waited)
        assert rows[user].restarts == job.restarts
    assert sum(row.share or 0.0 for row in answer.rows) == pytest.approx(1.0)
    assert sum(row.fair_share or 0.0 for row in answer.rows) == pytest.approx(1.0)
    assert sum(bar.jobs for bar in answer.rho_bars) == 2
    history = usage_report.history(requests.History(), state, store, now)
    assert sum(row.gpu_hours for row in history.jobs) == pytest.approx(answer.total.gpu_hours)
    assert [row.ended_at for row in history.jobs] == sorted(row.ended_at for row in history.jobs)


def test_a_report_in_the_middle_of_a_life_counts_what_runs_and_the_rest_follows() -> None:
    programs = [program(1.0, spec=spec(user="ana")), command(5.0, seconds=500.0, user="bo")]
    store, world = MemoryStore(), SimWorld(programs, [node("a", 4)])
    controller = Controller(world, store, policy("goodput"), Config())
    while world.now() < 300.0:
        news = world.wait(controller.wake_at())
        assert news is not None
        controller.step(news)
    now = world.now()
    part = {row.key: row for row in usage_report.report(requests.Report(), controller.snapshot, store, now).rows}
    live = {job.spec.user: job for job in controller.snapshot.jobs.values()}
    for user, job in live.items():
        assert part[user].gpu_hours == pytest.approx(job.service_at(now) / HOUR)
    assert (part["ana"].goodput_hours or 0.0) > 0
    controller.run()
    whole = usage_report.report(requests.Report(), controller.snapshot, store, world.now())
    cut = {
        row.key: row
        for row in usage_report.report(requests.Report(until=now), controller.snapshot, store, world.now()).rows
    }
    assert cut["ana"].gpu_hours == pytest.approx(part["ana"].gpu_hours), "the same window, asked later"
    assert whole.total.gpu_hours > sum(row.gpu_hours for row in cut.values())


def test_a_name_selects_all_its_jobs_and_errors_are_named(life: tuple[MemoryStore, Snapshot, float]) -> None:
    store, state, now = life

    def told(**asked: object) -> list[int]:
        return [row.id for row in usage_report.history(requests.History(**asked), state, store, now).jobs]  # type: ignore[arg-type]

    assert told(jobs=["first"]) == [1]
    assert sorted(told(jobs=["first", "2-3"])) == [1, 2, 3]
    assert told(jobs=["first"], user="bo") == []
    assert sorted(told(states=["completed"])) == [1, 2, 3]
    assert told(since=now + 1) == []
    assert len(told(limit=1)) == 1
    assert usage_report.history(requests.History(limit=1), state, store, now).hidden == 2
    with pytest.raises(UsageError, match="no job ends as `running`"):
        told(states=["running"])
    with pytest.raises(NotFound):
        told(jobs=["nobody"])
    with pytest.raises(UsageError, match="no report by moon"):
        usage_report.report(requests.Report(by="moon"), state, store, now)


@pytest.mark.parametrize("moment", [float("nan"), float("inf"), -1.0, 1e300])
def test_invalid_times_are_refused(moment: float) -> None:
    for asked in (requests.Report(since=moment), requests.Report(until=moment)):
        with pytest.raises(UsageError):
            usage_report.report(asked, Snapshot(), MemoryStore(), 1000.0)
    with pytest.raises(UsageError):
        usage_report.history(requests.History(since=moment), Snapshot(), MemoryStore(), 1000.0)


def test_a_report_begins_no_earlier_than_there_is_something_to_report(
    life: tuple[MemoryStore, Snapshot, float],
) -> None:
    store, state, now = life
    early = usage_report.report(requests.Report(since=0.0), state, store, now)
    assert early == usage_report.report(requests.Report(), state, store, now)
    assert early.since == event_text.stamp(1.0)


def test_a_window_that_has_not_begun_is_empty(life: tuple[MemoryStore, Snapshot, float]) -> None:
    store, state, now = life
    for by in ("user", "job", "server", "day"):
        answer = usage_report.report(requests.Report(since=now + 100, by=by), state, store, now)
        assert (answer.rows, answer.total.gpu_hours, answer.since) == ([], 0.0, answer.until)
        empty = usage_report.report(requests.Report(by=by), Snapshot(), MemoryStore(), now)
        assert (empty.rows, empty.total.jobs) == ([], 0)


def test_the_database_of_the_first_release_has_times_and_no_costs(tmp_path: Path) -> None:
    path = tmp_path / "state" / "gpq.db"
    path.parent.mkdir()
    shutil.copy(FIXTURES / "v0.1.0.db", path)
    with closing(SqliteStore(str(path))) as store:
        state = replace(store.load(), now=time.time())
        rows = usage_report.history(requests.History(limit=0), state, store, state.now).jobs
        assert len(rows) == store.ended_count() > 0
        assert all((row.goodput_hours, row.restart_gpu_hours, row.rho) == (None, None, None) for row in rows)
        for by in ("user", "job", "server", "day"):
            answer = usage_report.report(requests.Report(by=by), state, store, state.now)
            ended = sum(job.service for job in store.history())
            live = sum(job.service_at(state.now) for job in state.jobs.values())
            assert answer.total.gpu_hours == pytest.approx((ended + live) / HOUR)
            assert answer.total.restart_gpu_hours == 0.0


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("since", "until", "count", "first"),
    [
        ("2026-03-01 10:30", "2026-03-01 13:00", 3, "2026-03-01 11:00"),
        ("2026-03-28 10:30", "2026-04-02 10:00", 6, "2026-03-29 00:00"),  # the clock goes forward
        ("2026-10-24 10:30", "2026-10-25 10:00", 25, "2026-10-24 11:00"),  # and back: an hour comes twice
        ("2026-01-01 10:00", "2026-06-01 10:00", 23, "2026-01-05 00:00"),
        ("2020-01-15 10:00", "2026-06-01 10:00", 78, "2020-02-01 00:00"),
    ],
)
def test_windows_are_cut_at_local_hours_days_weeks_and_months(since: str, until: str, count: int, first: str) -> None:
    begin, end = (datetime.fromisoformat(each).timestamp() for each in (since, until))
    edges = usage_report.cut(begin, end)
    assert (edges[0], edges[-1]) == (begin, end)
    assert all(one < other for one, other in pairwise(edges))
    assert datetime.fromtimestamp(edges[1]) == datetime.fromisoformat(first)
    assert abs(len(edges) - 1 - count) <= 1
    assert usage_report.cut(begin, begin) == [begin]
    days = usage_report.cut(begin, begin + 3 * 86400, 86400.0)
    assert all(datetime.fromtimestamp(each).strftime("%H:%M") == "00:00" for each in days[1:-1])
