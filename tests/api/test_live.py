"""`gpq.Job` with a real daemon, which runs real processes and which the tests kill."""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import gpq as api
from gpq.client import daemon_control
from tests.cli.conftest import ROOT, Gpq
from tests.e2e.harness import Daemon
from tests.support.waiting import PATIENCE, asks, wait_until


@pytest.fixture(scope="module")
def running() -> Iterator[Daemon]:
    with Daemon(slots=2) as running:
        yield running


@pytest.fixture
def daemon(running: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """This process uses the daemon as a user's program would. The fixture also stops a daemon that the test starts
    itself."""
    for name, value in running.environment().items():
        if name.startswith(("GPQ_", "PYTHONPATH")):
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    with running.emptied(tmp_path):
        yield running
        if running.process is not None and running.process.poll() is not None:
            daemon_control.stop()


def shell(line: str, **options: object) -> api.Job:
    return api.submit(command=["sh", "-c", line], **options)  # type: ignore[call-overload, no-any-return]


def test_a_job_runs_from_its_submission_to_its_log(daemon: Daemon) -> None:
    job = shell("echo to $NAME; printf 'no\\377end'; exit 7", env={"NAME": "me"}, name="hello")
    assert job.wait(timeout=PATIENCE) == 7
    row = job.status()
    assert (row.id, row.name, row.state, row.exit_status) == (job.id, "hello", "failed", 7)
    assert list(job.logs()) == ["to me", "no\ufffdend"]
    assert b"".join(piece.data for piece in job.log_pieces(attempt=1)) == b"to me\nno\xffend"
    assert list(job.logs(lines=1)) == ["no\ufffdend"]
    with pytest.raises(api.errors.UsageError, match="--lines -1"):
        list(job.logs(lines=-1))
    assert job.show().spec.argv[0] == "sh"
    assert job.why().state == "failed"
    assert api.job() == api.job("hello") == api.Job(job.id) == job
    assert api.jobs(job, state="failed") == [job]
    assert api.jobs(state=["running", "held"]) == []
    assert api.jobs("exit>3 name=hello sort=-id") == [job]
    with pytest.raises(api.errors.UsageError, match="colour"):
        api.status("colour=red")
    assert [node.name for node in api.nodes("local").nodes] == ["local"]
    assert api.wait(job, "hello", timeout=PATIENCE) == 7


def test_jobs_can_be_held_released_requeued_and_cancelled(daemon: Daemon) -> None:
    job = shell("trap 'exit 75' TERM; while :; do sleep 0.05; done", preemptible=True, hold=True)
    with pytest.raises(api.errors.Refused, match="is already held"):
        job.hold()
    with pytest.raises(api.errors.GpqError, match="has not started"):
        list(job.logs())
    job.release()
    wait_until(lambda: job.status().state == "running", "the job runs")
    assert job.requeue() == job
    wait_until(lambda: job.status().restarts == 1 and job.status().state == "running", "the job runs again")
    with pytest.raises(TimeoutError, match="did not end within"):
        job.wait(timeout=0.2)
    with pytest.raises(TimeoutError):
        job.wait(timeout=0)
    assert job.cancel(timeout="1m").cancelled == [job.id]
    assert api.cancel(job, "all").ended == [job.id]
    with pytest.raises(api.errors.Refused, match="has ended"):
        job.hold()
    assert job.wait() == job.status().exit_status
    assert job.requeue() == job
    job.cancel()


def test_an_array_has_many_jobs_and_edit_changes_a_waiting_job(daemon: Daemon) -> None:
    several = api.submit_array(
        command=["sh", "-c", "echo {lr} $GPQ_ARRAY_INDEX; exit {seed}"], sweep={"lr": [0.1, 0.2], "seed": [0, 3]}
    )
    assert (len(several), [job.id for job in several]) == (4, [several.id + n for n in range(1, 5)])
    assert several.wait(timeout=PATIENCE) == api.wait(several) == 3
    assert [list(job.logs()) for job in several] == [["0.1 0"], ["0.1 1"], ["0.2 2"], ["0.2 3"]]
    assert [row.params for row in several.status()][-1] == {"lr": "0.2", "seed": "3"}
    with pytest.raises(api.errors.UsageError, match="is an array of 4 jobs"):
        api.Job(several.id).status()
    later = shell("true", after=several.jobs[0], begin="+9h", hold=True)
    assert later.edit(name="soon", begin="now", after="none") != []
    assert later.status().name == "soon"
    assert several.jobs[0].edit(priority=3) == [
        f"job {several.jobs[0].id}: priority 0 -> 3. It has ended: `gpq requeue {several.jobs[0].id}` runs it with that"
    ]
    later.release()
    assert later.wait(timeout=PATIENCE) == 0


def test_history_and_report_cover_a_time_window(daemon: Daemon) -> None:
    job = shell("true")
    job.wait(timeout=PATIENCE)
    [row] = api.history(job, since=timedelta(hours=1)).jobs
    assert (row.id, row.state) == (job.id, "completed")
    assert api.history(until=datetime.now() - timedelta(days=1)).jobs == []
    assert str(job.id) in [row.key for row in api.report(since="7d", by="job").rows]
    with pytest.raises(api.errors.UsageError, match="expected a time"):
        api.report(since="someday")
    with pytest.raises(api.errors.UsageError, match="below 0"):
        api.history(number=-1)


def test_an_unknown_job_or_server_is_named(daemon: Daemon) -> None:
    shell("true").wait(timeout=PATIENCE)
    for look in (api.Job(99).status, api.Job(99).wait, api.Job(99).show, api.Job(99).cancel, api.Job(99).hold):
        with pytest.raises(api.errors.NotFound, match="there is no job 99"):
            look()
    with pytest.raises(api.errors.NotFound, match="nobody"):
        api.job("nobody")
    with pytest.raises(api.errors.NotFound):
        api.nodes("nowhere")
    with pytest.raises(api.errors.UsageError, match="no job to cancel"):
        api.cancel()
    with pytest.raises(api.errors.UsageError, match="no job to wait for"):
        api.wait()


def test_waiting_and_following_survive_when_the_daemon_is_killed(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "gpq")
    gate = daemon.work / "gate"
    job = shell(f"echo before; while ! test -e {gate}; do sleep 0.05; done; echo after; exit 3")
    lines: list[str] = []
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: lines.extend(job.logs(follow=True))),
        threading.Thread(target=lambda: codes.append(job.wait(timeout=PATIENCE))),
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: "before" in daemon.log(job.id), "the job prints")
    daemon.kill()
    wait_until(lambda: "asking again" in caplog.text, "a thread noticed that the daemon is gone")
    gate.touch()
    for thread in threads:
        thread.join(PATIENCE)
    assert (lines, codes) == (["before", "after"], [3])


def test_many_threads_can_submit_and_wait_at_once(daemon: Daemon) -> None:
    codes: dict[int, int] = {}

    def one(number: int) -> None:
        job = shell(f"exit {number}", name=f"job-{number}")
        codes[number] = job.wait(timeout=PATIENCE)
        assert job.status().name == f"job-{number}"

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert codes == {number: number for number in range(8)}


def test_ctrl_c_ends_the_wait_but_not_the_job(live: Gpq, home: Path) -> None:
    program = """
        import gpq
        job = gpq.submit(command=["sleep", "1000"])
        print(job.id, flush=True)
        try:
            job.wait()
        except KeyboardInterrupt:
            print(job.status().state)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    waiting = subprocess.Popen(
        command, env=live.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=home
    )
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "1\n"
    wait_until(lambda: asks(waiting.pid), "the program waits for the daemon")
    wait_until(lambda: '"running"' in live("status", "1", "--json").stdout, "the job runs")
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=PATIENCE) == ("running\n", "")
    assert waiting.returncode == 0


def test_the_example_on_the_page_runs(live: Gpq, home: Path) -> None:
    example, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    (home / "train.py").write_text("import sys\nprint('trained with', sys.argv)\nsys.exit(sys.argv[2] == '0.1')\n")
    (home / "evaluate.sh").write_text("#!/bin/sh\necho evaluated $1 $SPLIT\n")
    (home / "evaluate.sh").chmod(0o755)
    example += "print(evaluation.wait(timeout=60), *evaluation.logs())\n"
    said = subprocess.run(
        [sys.executable, "-c", example], env=live.environment, cwd=home, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    script = home / "train.py"
    assert said.stdout.splitlines() == [
        f"trained with ['{script}', '--lr', '0.01']",
        "job 2 failed",
        f"trained with ['{script}', '--lr', '0.1']",
        "0 evaluated all test",
    ]
