"""User mistakes, and failures of the machine: the real command line against a real daemon.

Each case gives one clear line, a hint and the right exit code, and changes nothing.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
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


def test_a_job_whose_directory_is_gone_waits_and_says_why(gpq: Gpq, daemon: Daemon) -> None:
    (daemon.work / "gone").mkdir()
    job = gpq("submit", "--hold", "--", "true", cwd=daemon.work / "gone").stdout.split()[1]
    (daemon.work / "gone").rmdir()
    assert gpq("release", job).returncode == 0
    wait_until(lambda: f"no folder {daemon.work}/gone" in gpq("why", job).stdout, "the reason is shown", PATIENCE)
    assert daemon.state(int(job)) == "pending"
    assert gpq("cancel", job).returncode == 0


def test_a_failed_attempt_that_is_retried_is_not_reported_as_stopped(gpq: Gpq, daemon: Daemon) -> None:
    job = gpq("submit", "--retries", "1", "--", "sh", "-c", "exit 3").stdout.split()[1]
    assert gpq("wait", job).returncode == 3
    detail = daemon.detail(int(job))
    assert [one.outcome for one in detail.attempts] == ["failed, queued again", "failed"]
    assert any("attempt failed, queued again: exit 3" in event.text for event in detail.history)
