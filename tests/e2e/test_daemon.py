"""A real daemon, real agents, real processes. Each job runs once, and gpq reports its end as it was."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from gpq_agent import wire

from gpq.rpc.job_answers import CancelResult, Changed
from gpq.rpc.requests import Cancel, Hold, Release, Requeue
from tests.e2e.harness import Daemon
from tests.support.waiting import PATIENCE, pid_in, wait_until


@pytest.fixture(scope="module")
def running() -> Iterator[Daemon]:
    """One daemon for all tests here. Tests that kill it start it again."""
    with Daemon(slots=2) as running:
        yield running


@pytest.fixture
def daemon(running: Daemon, tmp_path: Path) -> Iterator[Daemon]:
    """Has no live job, and has a folder for the files of the test's own jobs."""
    with running.emptied(tmp_path):
        yield running


def test_jobs_run_and_end_with_their_own_exit_codes(daemon: Daemon) -> None:
    good, bad, killed = daemon.shell("echo fine"), daemon.shell("exit 3"), daemon.shell("kill -KILL $$")
    assert daemon.ended(good, bad, killed) == {
        good: ("completed", 0),
        bad: ("failed", 3),
        killed: ("failed", 137),
    }
    assert daemon.log(good) == "fine\n"


def test_a_job_does_not_notice_that_the_daemon_was_killed(daemon: Daemon) -> None:
    command = "echo $$ > pid; echo run >> ran; while [ ! -e go ]; do sleep 0.05; done; exit 9"
    job = daemon.shell(command)
    daemon.until(job, "running")
    pid = pid_in(daemon.work / "pid")
    daemon.kill()
    assert psutil.pid_exists(pid)
    daemon.start()
    assert daemon.state(job) == "running"
    (daemon.work / "go").touch()
    assert daemon.ended(job) == {job: ("failed", 9)}
    assert (daemon.work / "ran").read_text() == "run\n"


def test_a_job_that_ended_while_no_daemon_ran_is_recorded_later(daemon: Daemon) -> None:
    job = daemon.shell("echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done; exit 11")
    daemon.until(job, "running")
    pid = pid_in(daemon.work / "pid")
    daemon.kill()
    (daemon.work / "go").touch()
    wait_until(lambda: not psutil.pid_exists(pid), "the job has ended")
    record = daemon.home / "nodes" / "local" / "attempts" / f"{job}.1" / wire.EXIT
    wait_until(record.exists, "its end is recorded while no daemon runs")
    again = time.time()
    daemon.start()
    assert daemon.ended(job) == {job: ("failed", 11)}
    told = daemon.detail(job)
    stamp = datetime.fromisoformat((told.job.ended_at or "").replace("Z", "+00:00")).timestamp()
    # Not the time at which the daemon learned of it. The server counts from its boot, so the clock may have been
    # corrected by milliseconds in between.
    assert stamp <= again + 0.1
    began = datetime.fromisoformat(told.attempts[0].launched_at.replace("Z", "+00:00")).timestamp()
    assert told.attempts[0].ended_at == told.job.ended_at
    assert told.job.run_seconds == pytest.approx(stamp - began, abs=0.1)
    assert told.gpu_seconds == pytest.approx(told.job.run_seconds, abs=0.1)


def test_a_daemon_that_stops_cleanly_leaves_its_jobs_alone(daemon: Daemon) -> None:
    job = daemon.shell("while [ ! -e go ]; do sleep 0.05; done")
    daemon.until(job, "running")
    assert daemon.stop() == 0
    daemon.start()
    (daemon.work / "go").touch()
    assert daemon.ended(job) == {job: ("completed", 0)}


def test_cancel_returns_only_when_every_process_is_gone(daemon: Daemon) -> None:
    child = "trap '' TERM HUP INT; echo $$ >> pids; while :; do sleep 0.2; done"
    command = f"trap \"\" TERM; echo $$ >> pids; (setsid sh -c '{child}' &); setsid nohup sh -c '{child}' & wait"
    (daemon.work / "job.sh").write_text(command)
    job = daemon.submit("sh", "job.sh")
    path = daemon.work / "pids"
    pids = wait_until(lambda: path.exists() and len(path.read_text().split()) == 3 and path.read_text().split(), "3")
    answer = daemon.call(Cancel([str(job)], wait=PATIENCE), CancelResult)
    assert answer.cancelled == [job]
    assert [pid for pid in pids if psutil.pid_exists(int(pid))] == []
    assert daemon.state(job) == "cancelled"


def test_a_job_cancelled_before_its_start_never_runs(daemon: Daemon) -> None:
    busy = [daemon.shell("while [ ! -e go ]; do sleep 0.05; done") for _ in range(2)]
    waiting = daemon.shell("touch ran")
    for job in busy:
        daemon.until(job, "running")
    assert daemon.call(Cancel([str(waiting)]), CancelResult).cancelled == [waiting]
    (daemon.work / "go").touch()
    daemon.ended(*busy)
    assert not (daemon.work / "ran").exists()


def test_a_cancel_is_completed_although_the_daemon_died(daemon: Daemon) -> None:
    job = daemon.shell("trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done")
    daemon.until(job, "running")
    pid = pid_in(daemon.work / "pid")
    daemon.call(Cancel([str(job)], wait=0.0), CancelResult)
    daemon.kill()
    daemon.start()
    assert daemon.ended(job) == {job: ("cancelled", 137)}
    assert not psutil.pid_exists(pid)


def test_three_quick_failures_hold_the_job_and_a_release_retries_it(daemon: Daemon) -> None:
    job = daemon.shell("echo run >> ran; [ -e good ]", retries=20)
    daemon.until(job, "held", patience=2 * PATIENCE)
    assert (daemon.work / "ran").read_text() == "run\n" * 3
    (daemon.work / "good").touch()
    daemon.call(Release([str(job)]), Changed)
    assert daemon.ended(job) == {job: ("completed", 0)}


def test_a_job_that_checkpoints_on_a_signal_is_requeued_and_resumes(daemon: Daemon) -> None:
    command = (
        'if [ -n "$GPQ_RESUME" ]; then echo "resumed $*" > said; exit 0; fi; '
        "trap 'echo saved > state; exit 75' USR1; echo up > up; while :; do sleep 0.05; done"
    )
    (daemon.work / "job.sh").write_text(command)
    job = daemon.submit("sh", "job.sh", level="signal", signal="USR1", resume_argv=["--resume"])
    daemon.until(job, "running")
    wait_until((daemon.work / "up").exists, "its trap is set")
    daemon.call(Requeue([str(job)]), Changed)
    assert daemon.ended(job) == {job: ("completed", 0)}
    assert (daemon.work / "said").read_text() == "resumed --resume\n"


def test_a_job_that_hangs_while_saving_is_killed_after_its_grace(daemon: Daemon) -> None:
    command = "trap 'echo asked > asked' USR1; trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done"
    job = daemon.shell(command, level="signal", signal="USR1", grace=1.0)
    daemon.until(job, "running")
    pid = pid_in(daemon.work / "pid")
    daemon.call(Hold([str(job)]), Changed)
    daemon.until(job, "held")
    assert (daemon.work / "asked").exists()
    assert not psutil.pid_exists(pid)


DECLARING = """
import json, os, time
report = open(os.path.join(os.environ["GPQ_RUN_DIR"], "report.jsonl"), "a", buffering=1)
report.write(json.dumps({"kind": "declared", "level": "resizable"}) + "\\n")
open("pid", "w").write(str(os.getpid()))
while True:
    time.sleep(0.05)
"""


def test_a_training_script_that_hangs_while_saving_is_killed_after_its_grace(daemon: Daemon) -> None:
    (daemon.work / "train.py").write_text(DECLARING)
    job = daemon.submit("train.py", level="script", grace=1.0)
    pid = pid_in(daemon.work / "pid")
    wait_until(lambda: daemon.detail(job).job.level == "resizable", "it has declared itself")
    daemon.call(Hold([str(job)]), Changed)
    daemon.until(job, "held")
    assert not psutil.pid_exists(pid)


def test_a_script_that_crashes_at_import_fails_and_its_log_says_why(daemon: Daemon) -> None:
    (daemon.work / "broken.py").write_text("import no_such_module_anywhere\n")
    job = daemon.submit("broken.py", level="script")
    assert daemon.ended(job) == {job: ("failed", 1)}
    assert "no_such_module_anywhere" in daemon.log(job)


def test_a_script_finds_only_the_library_and_no_packages_next_to_it(daemon: Daemon) -> None:
    (daemon.work / "where.py").write_text(
        "import os, gpq_agent\nprint(gpq_agent.__file__)\nprint(os.environ['PYTHONPATH'])\n"
    )
    job = daemon.submit("where.py", level="script")
    assert daemon.ended(job) == {job: ("completed", 0)}
    where, path = daemon.log(job).splitlines()
    assert where == str(daemon.home / "lib" / "gpq_agent" / "__init__.py")
    assert (daemon.home / "lib").joinpath("gpq_agent").is_symlink()
    assert [entry.name for entry in (daemon.home / "lib").iterdir()] == ["gpq_agent"]
    # An interpreter with gpq installed finds more by itself. gpq adds only this folder.
    assert path.split(os.pathsep) == [str(daemon.home / "lib")]


def test_a_job_whose_shim_was_killed_keeps_its_device_and_can_be_cancelled() -> None:
    with Daemon(slots=1) as daemon:
        job = daemon.shell("echo $$ > pid; trap '' TERM; while :; do sleep 0.1; done")
        daemon.until(job, "running")
        process = psutil.Process(pid_in(daemon.work / "pid"))
        shim = process.parent()
        assert shim is not None
        shim.kill()
        other = daemon.shell("true")
        wait_until(lambda: "the shim of attempt" in daemon.output(), "the daemon notices")
        assert daemon.state(job) == "running"
        assert daemon.state(other) == "pending"
        assert daemon.call(Cancel([str(job)], wait=PATIENCE), CancelResult).cancelled == [job]
        # A zombie counts as dead, because nobody may be there to collect it in a container.
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        assert daemon.ended(other) == {other: ("completed", 0)}


def test_a_missing_command_fails_and_says_so(daemon: Daemon) -> None:
    job = daemon.submit("./nothing-here")
    assert daemon.ended(job)[job][0] == "failed"
    assert any("nothing-here" in line for line in daemon.detail(job).notices)


def test_a_time_limit_ends_a_job(daemon: Daemon) -> None:
    job = daemon.shell("while :; do sleep 0.05; done", time_limit=1.0)
    assert daemon.ended(job)[job][0] == "timeout"


def test_jobs_go_to_every_server_and_each_device_is_used_once() -> None:
    with Daemon(nodes={"left": 1, "right": 1}) as daemon:
        command = "echo $GPQ_JOB_ID >> ran; while [ ! -e go ]; do sleep 0.05; done"
        jobs = [daemon.shell(command) for _ in range(3)]
        wait_until(lambda: [daemon.state(job) for job in jobs].count("running") == 2, "two run")
        assert sorted(daemon.state(job) for job in jobs) == ["pending", "running", "running"]
        (daemon.work / "go").touch()
        assert set(daemon.ended(*jobs).values()) == {("completed", 0)}
        assert sorted((daemon.work / "ran").read_text().split()) == sorted(map(str, jobs))


PARTED = """
import os, time
open(f"rank{os.environ['RANK']}", "w").write(str(os.getpid()))
if os.environ["RANK"] == "1":
    raise SystemExit(5)
time.sleep(600)
"""


def test_a_training_job_that_fails_on_one_server_is_stopped_on_the_other() -> None:
    with Daemon(nodes={"left": 1, "right": 1}) as daemon:
        (daemon.work / "train.py").write_text(PARTED)
        job = daemon.submit("train.py", level="script", min_gpus=2, max_gpus=2)
        daemon.until(job, "failed", patience=3 * PATIENCE)
        assert not psutil.pid_exists(pid_in(daemon.work / "rank0"))
        assert len(daemon.detail(job).attempts[0].placement) == 2
