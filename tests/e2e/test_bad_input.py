"""User mistakes, and failures of the machine: the real command line against a real daemon.

Each case gives one clear line, a hint and the right exit code, and changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.cli.conftest import BARE, FIFO, Gpq
from tests.e2e.harness import Daemon
from tests.support.waiting import PATIENCE, wait_until

Said = CompletedProcess[str]

SCRIPT = """
import sys, time, torch
import gpq_agent.train as gpq

class Stuck:
    def state_dict(self): {inside}
    def load_state_dict(self, state): pass

job = gpq.init()
x = torch.randn(64, 4)
loader = job.loader(torch.utils.data.TensorDataset(x), batch_size=4)
model = job.wrap(torch.nn.Linear(4, 1))
model, optimizer, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
job.state(Stuck(), "stuck")
for epoch in job.epochs(100000):
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        print("step", flush=True)
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One daemon for all rows. It has to survive every one of them."""
    with Daemon(slots=2) as daemon:
        yield daemon


@pytest.fixture
def gpq(daemon: Daemon) -> Gpq:
    return Gpq(daemon.home)


@pytest.fixture
def mounted() -> Iterator[Path]:
    """A small separate file system as the state directory. Every process that uses it is gone when the test ends."""
    path = Path(tempfile.mkdtemp(prefix="gpq-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=755", "tmpfs", str(path)], check=True)
    try:
        (path / "config.toml").write_text(FIFO)
        yield path
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(path)], check=True)
        subprocess.run(["umount", "-l", str(path)], check=True)
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="gpq-"))
    (path / "config.toml").write_text(FIFO)
    yield path
    Gpq(path)("daemon", "stop")
    shutil.rmtree(path, ignore_errors=True)


def refused(said: Said, code: int, *parts: str) -> None:
    """One line and a hint, no traceback, and nothing on stdout."""
    assert (said.returncode, said.stdout) == (code, ""), said
    problem, hint = said.stderr.splitlines()
    assert problem.startswith("gpq: "), said
    assert hint.startswith("hint: "), said
    assert len(hint) > len("hint: ")
    for part in parts:
        assert part in said.stderr, said
    assert all(character.isprintable() for line in (problem, hint) for character in line)


def state(gpq: Gpq) -> tuple[object, ...]:
    """Everything that a command could have changed: the jobs, their attempts, and the number of journal entries."""
    said = gpq("status", "--all", "--json")
    assert said.returncode == 0, said
    jobs = [(job["id"], job["attempt"]) for job in json.loads(said.stdout)["jobs"]]
    with contextlib.closing(sqlite3.connect(f"file:{gpq.home}/gpq.db?mode=ro", uri=True)) as database:
        submitted = database.execute("SELECT count(*) FROM events WHERE kind = 'Submitted'").fetchone()
    return (jobs, submitted)


def test_an_unknown_job_is_named_with_the_existing_ones(gpq: Gpq) -> None:
    before = state(gpq)
    for command in (["show"], ["why"], ["logs"], ["cancel"], ["hold"], ["release"], ["requeue"], ["wait"], ["status"]):
        refused(gpq(*command, "999"), 4, "there is no job 999")
    for command in (["status"], ["cancel"], ["logs"]):
        refused(gpq(*command, "nobody"), 4, "no job is named `nobody`")
    assert state(gpq) == before


def test_an_unknown_option_value_is_named_with_the_valid_ones(gpq: Gpq) -> None:
    before = state(gpq)
    refused(gpq("status", "--color", "pink"), 2, "pink", "auto", "always", "never")
    refused(gpq("submit", "--priority", "high", "--", "true"), 2, "--priority", "a whole number")
    refused(gpq("submit", "--preemptible", "--signal", "NOPE", "--", "true"), 2, "NOPE")
    refused(gpq("status", "--state", "lost"), 2, "lost", "running")
    assert state(gpq) == before


def test_a_request_for_too_many_gpus_is_refused_with_what_the_servers_have(gpq: Gpq, daemon: Daemon) -> None:
    (daemon.work / "train.py").write_text("print(1)\n")
    before = state(gpq)
    for words in (["--", "true"], ["train.py"]):
        refused(gpq("submit", "--gpus", "64", *words, cwd=daemon.work), 5, "64 GPUs", "local has 2 x cpu slot")
    assert state(gpq) == before


def test_a_script_that_cannot_be_read_is_refused(gpq: Gpq, daemon: Daemon) -> None:
    before = state(gpq)
    refused(gpq("submit", "/proc/self/mem"), 2, "cannot read /proc/self/mem")  # not even root can read this
    if os.geteuid() != 0:  # root can read everything else
        locked = daemon.work / "locked.py"
        locked.write_text("print(1)\n")
        locked.chmod(0)
        refused(gpq("submit", str(locked)), 2, "cannot read", "Permission denied")
    assert state(gpq) == before


def test_a_job_name_with_escape_sequences_never_reaches_the_terminal(gpq: Gpq) -> None:
    before = state(gpq)
    for name in ("a\x1b[2Jb", "\x1b]0;mine\x07", "a\nb", "a\u202eb"):
        refused(gpq("submit", "--name", name, "--", "true"), 2, "not a valid name")
        said = gpq("show", name)
        assert said.returncode in (2, 4)
        refused(said, said.returncode)
    assert state(gpq) == before


def test_an_invalid_config_is_reported_with_line_and_column_and_starts_nothing(home: Path) -> None:
    gpq = Gpq(home)
    for text, place in (
        ("interval = 5.0\npolicy = goodput\n", "line 2, column 10"),
        ("interval = 5.0\n[nodes.local\n", "line 2"),
        ("interval = -5.0\n", "line 1, column 1"),
        ("interval = 5.0\nintervall = 5.0\n", "line 2, column 1"),
        ("[nodes.local]\nslots = 'two'\n", "line 2, column 1"),
    ):
        (home / "config.toml").write_text(text)
        refused(gpq("config", "check"), 2, place, "config.toml")
    # The last three start a daemon, and each reads the file in its own way.
    for argv in (["config", "show"], ["status"], ["submit", "--", "true"], ["daemon", "start"]):
        refused(gpq(*argv), 2, place, "config.toml", "gpq config check")
    assert not (home / "gpq.db").exists()
    assert gpq("daemon", "status").returncode == 3


def test_a_daemon_of_another_version_is_refused_and_left_alone(home: Path) -> None:
    gpq, heard = Gpq(home), list[bytes]()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "gpq.sock"))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    stream, _ = listener.accept()
                except OSError:
                    return
                with stream:
                    heard.append(stream.recv(1 << 16))
                    stream.sendall(b'{"v":99,"program":"9.9.9","ok":true,"result":{}}\n')

        thread = threading.Thread(target=serve)
        thread.start()
        commands = (
            ["status"], ["status", "--recent", "5"], ["show", "1"], ["nodes"], ["submit", "--", "true"], ["top"], ["logs", "1"],
            ["cancel", "1"],
        )  # fmt: skip
        for argv in commands:
            refused(gpq(*argv), 3, "another version", "9.9.9", "gpq daemon stop")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)
    assert len(heard) >= len(commands)
    assert not (home / "gpq.db").exists()


def fill(folder: Path) -> Path:
    """Leave no byte free."""
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(b"\0" * 4096):
            pass
    return filler


def test_no_daemon_starts_on_a_full_disk(mounted: Path) -> None:
    filler = fill(mounted)
    said = Gpq(mounted)("submit", "--", "true", cwd=Path("/"))
    refused(said, 5, "full", str(mounted))
    filler.unlink()
    assert not (mounted / "gpq.db").exists()
    assert Gpq(mounted)("daemon", "status").returncode == 3


def test_every_command_refuses_a_read_only_state_directory(mounted: Path) -> None:
    gpq = Gpq(mounted)
    (mounted / "s").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    there, new = mounted / "s", mounted / "new"
    asked = ((there, ["status"]), (there, ["submit", "--", "true"]), (there, ["daemon", "start"]), (new, ["top"]))
    for folder, argv in asked:
        said = gpq(*argv, cwd=Path("/"), GPQ_HOME=str(folder))
        refused(said, 5, "cannot write in the state directory", str(folder), "Read-only file system", "GPQ_HOME")
    assert list((mounted / "s").iterdir()) == []
    said = gpq("doctor", "--python", BARE, cwd=Path("/"), GPQ_HOME=str(mounted / "s"))
    assert said.returncode == 1
    assert "fail  state" in said.stdout


# -- training scripts that misbehave -----------------------------------------------------------------------------------


def submit(gpq: Gpq, daemon: Daemon, name: str, text: str, *options: str) -> str:
    (daemon.work / f"{name}.py").write_text(text)
    said = gpq("submit", "--python", sys.executable, *options, f"{name}.py", cwd=daemon.work)
    assert said.returncode == 0, said
    return said.stdout.split()[1]


def test_a_script_that_never_calls_the_library_gets_its_minimum_and_is_never_moved(gpq: Gpq, daemon: Daemon) -> None:
    go = daemon.work / "go"
    text = f"import os, time\nprint('alone', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.1)\n"
    job = submit(gpq, daemon, "plain", text, "--gpus", "1-2")
    daemon.until(int(job), "running")
    assert "has not declared itself" in wait_until(lambda: gpq("why", job).stdout, "why answers")
    refused(gpq("hold", job), 5, "has not declared itself")
    go.touch()
    assert gpq("wait", job).returncode == 0
    assert gpq("logs", job).stdout == "alone\n"
    detail = daemon.detail(int(job))
    assert [len(part.devices) for one in detail.attempts for part in one.placement] == [1]


def test_a_script_that_crashes_at_import_fails_at_once_with_its_traceback(gpq: Gpq, daemon: Daemon) -> None:
    job = submit(gpq, daemon, "crash", "import a_module_that_nobody_has\n")
    assert gpq("wait", job).returncode == 1
    assert "ModuleNotFoundError: No module named 'a_module_that_nobody_has'" in gpq("logs", job).stdout
    said = gpq("status", job)
    assert "failed" in said.stdout
    assert "exit 1" in said.stdout
    detail = daemon.detail(int(job))
    assert len(detail.attempts) == 1, "gpq does not retry a job that fails by itself"


@pytest.mark.long
def test_a_script_that_hangs_while_saving_is_killed_after_its_grace(gpq: Gpq, daemon: Daemon) -> None:
    job = submit(
        gpq,
        daemon,
        "hang",
        SCRIPT.format(inside="return job.step and time.sleep(100000)"),
        "--grace",
        "2s",
        "--gpus",
        "1",
    )
    wait_until(lambda: "step" in daemon.log(int(job)), f"job {job} trains", 3 * PATIENCE)
    detail = daemon.detail(int(job))
    assert detail.job.state == "running"
    said = gpq("cancel", job)
    assert (said.returncode, said.stdout) == (0, f"job {job} cancelled: every process is gone\n"), said
    assert daemon.state(int(job)) == "cancelled"
    assert gpq("nodes").stdout.count(f"job {job}") == 0


def test_a_job_whose_directory_is_gone_waits_and_says_why(gpq: Gpq, daemon: Daemon) -> None:
    (daemon.work / "gone").mkdir()
    job = gpq("submit", "--hold", "--", "true", cwd=daemon.work / "gone").stdout.split()[1]
    (daemon.work / "gone").rmdir()
    assert gpq("release", job).returncode == 0
    wait_until(lambda: f"no folder {daemon.work}/gone" in gpq("why", job).stdout, "the reason is shown", PATIENCE)
    assert daemon.state(int(job)) == "pending"
    assert gpq("cancel", job).returncode == 0


def test_gpq_logs_also_says_that_a_job_never_started(gpq: Gpq) -> None:
    job = gpq("submit", "--", "/no/such/program").stdout.split()[1]
    assert gpq("wait", job).returncode == 127
    refused(gpq("logs", job), 1, f"job {job} never started", f"gpq why {job}")


def test_status_all_lists_ended_jobs(home: Path) -> None:
    gpq = Gpq(home)
    assert gpq("submit", "--wait", "--", "true").returncode == 0
    for option in ("--all", "-a"):
        assert [job["id"] for job in json.loads(gpq("status", option, "--json").stdout)["jobs"]] == [1]


def test_a_failed_attempt_that_is_retried_is_not_reported_as_stopped(gpq: Gpq, daemon: Daemon) -> None:
    job = gpq("submit", "--retries", "1", "--", "sh", "-c", "exit 3").stdout.split()[1]
    assert gpq("wait", job).returncode == 3
    detail = daemon.detail(int(job))
    assert [one.outcome for one in detail.attempts] == ["failed, queued again", "failed"]
    assert any("attempt failed, queued again: exit 3" in event.text for event in detail.history)
