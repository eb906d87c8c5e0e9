"""A daemon whose servers share no storage: what its user sees while files follow a job, and what is removed later."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as changed

from gpq.cli.jobs import wait
from gpq.cli.jobs.wait import Bar
from gpq.core.model.events import JobsRemoved
from gpq.core.model.placements import FilesAt
from gpq.core.model.units import JobId
from gpq.daemon.files import garbage_collection
from gpq.daemon.files.garbage_collection import GarbageCollector
from gpq.errors import NodeSilent, Refused, UsageError
from gpq.options import snapshot
from gpq.rpc.job_answers import Explanation, JobDetail, LogChunk, StagingView
from gpq.rpc.node_answers import Drained
from gpq.rpc.requests import Drain, Logs, Show, Undrain, Why
from gpq.views.detail import lines
from tests.cli import served as fixtures
from tests.daemon.daemons import Daemon, daemon
from tests.support import builders
from tests.support.memory_store import MemoryStore
from tests.support.sshd import Sshd
from tests.support.waiting import wait_until

SIZE = 30_000_000


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Daemon]:
    """`far` is behind ssh, `near` is not. They share nothing."""
    with Sshd(tmp_path / "sshd") as server:
        near = f'[nodes.near]\nslots = 1\ncheckpoints = "{tmp_path}/near"\n'
        text = f'policy = "fifo"\ninterval = 2.0\n{near}[nodes.far]\n{server.toml()}'
        with daemon(tmp_path / "home", text) as running:
            running.wait_for_nodes()
            yield running


def detail(served: Daemon, job: int) -> JobDetail:
    return served.call(Show(str(job)), JobDetail)


def test_a_job_moves_to_a_server_behind_ssh_and_back_and_its_progress_is_shown(served: Daemon, tmp_path: Path) -> None:
    command = (
        f"trap 'sleep 0.1; exit 75' TERM; cd $GPQ_CHECKPOINT_DIR; [ -e state ] || head -c {SIZE} /dev/urandom > state;"
        f" sha256sum < state >> {tmp_path}/sums; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done"
    )
    served.call(Drain("far", "first"), Drained)
    job = served.submit("sh", "-c", command, level="signal", max_gpus=1, signal="TERM")
    wait_until(lambda: (tmp_path / "sums").exists() and (tmp_path / "sums").read_text(), "it runs")
    wait_until(lambda: detail(served, job).job.state == "running", "the daemon knows that it runs")
    seen: list[JobDetail] = []
    for number, (target, other) in enumerate((("far", "near"), ("near", "far")), 2):
        served.call(Undrain(target), Drained)
        served.call(Drain(other, "now there"), Drained)

        def moved(target: str = target, number: int = number) -> bool:
            seen.append(detail(served, job))
            told = (tmp_path / "sums").read_text().splitlines()
            return seen[-1].job.state == "running" and seen[-1].job.attempt == number == len(told)

        wait_until(moved, "it runs there")
        assert [part.node for part in seen[-1].job.placement] == [target]
    (tmp_path / "go").touch()
    wait_until(lambda: detail(served, job).job.state == "completed", "it ends")
    assert len(set((tmp_path / "sums").read_text().splitlines())) == 1
    assert len((tmp_path / "sums").read_text().splitlines()) == 3
    shown = [one.job for one in seen if one.job.staging is not None]
    assert {job.staging.what for job in shown if job.staging} >= {"its checkpoint from near"}
    assert any(job.staging and 0 < job.staging.done <= job.staging.total for job in shown)
    assert all("its checkpoint from" in job.reason and job.state == "starting" for job in shown)


def test_a_checkpoint_that_cannot_move_is_named_at_once_and_moves_when_it_can(served: Daemon, tmp_path: Path) -> None:
    command = (
        "trap 'exit 75' TERM; cd $GPQ_CHECKPOINT_DIR; [ -e state ] || { touch state; ln -s b a; ln -s a b; };"
        f" touch {tmp_path}/runs-$GPQ_ATTEMPT; while :; do sleep 0.1; done"
    )
    served.call(Drain("far", "first"), Drained)
    job = served.submit("sh", "-c", command, level="signal", max_gpus=1, signal="TERM")
    wait_until(lambda: (tmp_path / "runs-1").exists() and detail(served, job).job.state == "running", "it runs")
    served.call(Undrain("far"), Drained)
    served.call(Drain("near", "now there"), Drained)
    wait_until(lambda: "a is a link in a loop" in "".join(detail(served, job).notices), "gpq show names it")
    assert "a is a link in a loop" in "".join(served.call(Why(str(job)), Explanation).reasons)
    assert detail(served, job).job.state == "pending"
    assert detail(served, job).job.attempt <= 2, "it does not try again and again"
    served.call(Undrain("near"), Drained)
    wait_until(lambda: detail(served, job).job.state == "running", "it runs where its checkpoint is")
    assert [part.node for part in detail(served, job).job.placement] == ["near"]


class Servers:
    """What is on servers, requested as the daemon requests it."""

    def __init__(self, **kept: dict[str, list[Any]]) -> None:
        self.kept = kept
        self.dropped: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, node: str, operation: str, fields: Any, timeout: float) -> Any:
        if node not in self.kept:
            raise NodeSilent("cut")
        if operation == "drop":
            self.dropped.append((node, dict(fields)))
        return self.kept[node]


@pytest.mark.parametrize("archive", ["code", "stdin"])
def test_copies_of_ended_jobs_are_removed_except_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: str
) -> None:
    code, other = "a" * 64, "b" * 64
    live = builders.job(3, spec_=builders.spec(**{archive: code}))
    ended = replace(builders.job(2), files=FilesAt(builders.node("b").id, "s-b"))  # type: ignore[arg-type]
    nodes = [replace(builders.node(name), storage=f"s-{name}") for name in "abc"]
    snapshot = replace(builders.snapshot(live, *nodes), next_id=4)
    store = MemoryStore()
    store.commit([], builders.snapshot(ended))
    store.commit([], snapshot, [ended])
    kept = {"jobs": [1, 2, 3, 9], "code": [code], "coming": [other]}
    servers = Servers(a=kept, b=kept)
    (tmp_path / f"{code}.tar").touch()
    (tmp_path / f"{other}.tar").touch()
    keeper = GarbageCollector(servers, lambda: snapshot, store, str(tmp_path))
    keeper.look()
    assert servers.dropped == [("a", {"job": 2}), ("a", {"code": other}), ("b", {"code": other})]
    assert len(list(tmp_path.iterdir())) == 2, "an archive may be of a job that is being submitted"
    monkeypatch.setattr(garbage_collection, "YOUNG", -1.0)
    keeper.look()
    assert [path.name for path in tmp_path.iterdir()] == [f"{code}.tar"]


def test_files_of_removed_jobs_go_unless_they_are_back(tmp_path: Path) -> None:
    """2 ended and has a row, 3 lives, and nobody knows 2001, which a lost database may have had. The server never
    removes an attempt of job 1500, and refuses job 1."""
    node, live = replace(builders.node("a"), storage="s-a"), builders.job(3)
    snapshot = replace(builders.snapshot(live, node), next_id=3000)
    store = MemoryStore()
    store.commit([], builders.snapshot(builders.job(2)))
    store.commit([JobsRemoved(9.0, tuple(map(JobId, (1, 4, 7, 1500))))], snapshot, [builders.job(2)])
    asked: list[dict[str, Any]] = []
    lefts = iter((1, 0, 1, 1))

    def server(node: str, operation: str, fields: dict[str, Any], timeout: float) -> Any:
        if operation == "kept":
            return {"jobs": [1, 2, 3, 2001], "early": [2, 7], "code": [], "coming": [], "forgotten": ["0", "1", "2"]}
        asked.append(dict(fields))
        if fields.get("job") == 1:
            raise Refused("job 1 runs here")
        return {"left": next(lefts)} if "forgotten" in fields else {}

    GarbageCollector(server, lambda: snapshot, store, str(tmp_path)).look()
    first, second = {"forgotten": "0", "jobs": [1, 4, 7]}, {"forgotten": "1", "jobs": [1500]}
    assert asked == [{"job": 1, "early": False}, {"job": 7, "early": True}, first, first, second, second]


def test_a_look_asks_for_no_removed_job_while_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, store = replace(builders.node("a"), storage="s-a"), MemoryStore()
    questions, asked = list[object](), list[str]()
    monkeypatch.setattr(MemoryStore, "removed_ids", lambda _, ids: questions.append(ids) or [])

    def server(node: str, operation: str, fields: dict[str, Any], timeout: float) -> Any:
        asked.append(operation)
        return {"jobs": [1], "early": [1], "code": [], "coming": [], "forgotten": ["0", "1"]}

    snapshot = replace(builders.snapshot(node), next_id=3000)
    GarbageCollector(server, lambda: snapshot, store, str(tmp_path)).look()
    assert (asked, questions) == (["kept"], [])


def test_a_server_with_many_folders_of_removed_jobs_keeps_no_other_from_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage_collection, "SWEEP", 0.05)
    node, store, rest = replace(builders.node("a"), storage="s-a"), MemoryStore(), set(range(1, 9))
    snapshot = replace(builders.snapshot(node), next_id=9)
    store.commit([JobsRemoved(9.0, tuple(map(JobId, rest)))], snapshot)

    def server(node: str, operation: str, fields: dict[str, Any], timeout: float) -> Any:
        if operation == "kept":
            return {"jobs": sorted(rest), "code": [], "coming": []}
        time.sleep(0.02)
        rest.remove(fields["job"])
        return {}

    collector = GarbageCollector(server, lambda: snapshot, store, str(tmp_path))
    collector.look()
    assert len(rest) >= 5, "what takes longer than its time waits for the next look"
    for _ in range(8):
        collector.look()
    assert not rest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_only_if_somebody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    brought = StagingView("its checkpoint from a", 500_000_000, 1_000_000_000, 80e6)
    job = changed(fixtures.job(4, "starting"), staging=brought)
    monkeypatch.setenv("COLUMNS", "100")
    assert wait.bar_line(job, 100, "#") == (
        "job 4 [############            ] copying its checkpoint from a: 500 MB of 1 GB, 80 MB/s"
    )
    for screen, drawn in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", screen)
        bar = Bar()
        bar.show([job])
        assert ("500 MB of 1 GB" in screen.getvalue()) is drawn
        assert bar.patience(30.0) == (wait.SHORT_PAUSE if drawn else 30.0)
        bar.show([fixtures.job(4, "running")])
        assert bar.patience(30.0) == 30.0
        assert screen.getvalue().endswith("\r\x1b[K") is drawn


def test_frozen_code_runs_everywhere_whatever_is_edited_later(
    served: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "say.sh").write_text("#!/bin/sh\necho then; pwd; cat\n")
    (work / "say.sh").chmod(0o755)
    monkeypatch.setenv("GPQ_HOME", str(served.home))
    frozen = snapshot.freeze(str(work))
    (work / "say.sh").write_text("#!/bin/sh\necho now\n")
    served.call(Drain("near", "so that it goes to the other"), Drained)
    code = {"code": frozen.code, "code_cwd": frozen.cwd, "code_from": frozen.summary}
    job = served.submit("./say.sh", max_gpus=1, stdin=snapshot.keep_stdin(b"input"), **code)
    wait_until(lambda: detail(served, job).job.state == "completed", "it ends")
    said = base64.b64decode(served.call(Logs(str(job), wait=5.0), LogChunk).data).decode().split()
    assert said[0] == "then"
    assert said[1].endswith(f"/.code/{frozen.code}")
    assert said[2] == "input"
    assert any(frozen.summary in line for line in lines(detail(served, job), 200))
    with pytest.raises(Refused, match="the copy ffffffffffff of the code or stdin is missing"):
        served.submit("./say.sh", max_gpus=1, **{**code, "code": "f" * 64})
    with pytest.raises(UsageError, match="is no kept stdin"):
        served.submit("cat", stdin="../../x")
    for wrong in ({"code": "../../x"}, {"code_cwd": "../.."}, {"code_cwd": "/"}):
        with pytest.raises(UsageError, match="is not frozen code"):
            served.submit("./say.sh", max_gpus=1, **{**code, **wrong})
