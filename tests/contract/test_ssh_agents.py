"""The ssh-agents of logins: gpq uses the newest that can help, whatever happened to the others. With real agents."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpq.connectors.ssh_agents import SshAgents, of_process
from tests.support.sshagent import SshAgent


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, because a socket's path must be short."""
    path = Path(tempfile.mkdtemp(prefix="gpq-agents-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def key(folder: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    return folder / "key"


def test_the_newest_ssh_agent_that_has_keys_is_used(folder: Path, key: Path) -> None:
    agents = SshAgents()
    assert agents.answering() == ""
    assert not agents.is_gone  # there never was one
    with SshAgent(folder / "a", key) as first, SshAgent(folder / "b") as empty, SshAgent(folder / "c", key) as second:
        assert agents.note(empty.path)
        assert agents.answering() == empty.path  # a key can be added
        assert agents.note(first.path)
        assert agents.note(second.path)
        assert agents.answering() == second.path
        assert not agents.note(first.path), "it is known"
        assert agents.answering() == first.path  # of the latest login
        assert not agents.note(empty.path)
        assert agents.answering() == first.path  # the newest has no key
        first.end()
        assert agents.answering() == second.path
        second.end()
        assert agents.answering() == empty.path
        assert not agents.is_gone
    assert agents.answering() == ""
    assert agents.is_gone
    assert not agents.note(str(folder / "c")), "nobody listens there"
    with SshAgent(folder / "c", key) as again:  # like a shell that gives its agent a fixed path
        assert agents.note(again.path)
        assert agents.answering() == again.path
        assert not agents.is_gone


def test_an_agent_that_hangs_or_does_not_exist_blocks_nobody(
    folder: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpq.connectors.ssh_agents.PATIENCE", 0.2)
    agents = SshAgents()
    with contextlib.ExitStack() as stack:
        good = stack.enter_context(SshAgent(folder / "good", key))
        assert agents.note(good.path)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(str(folder / "hung"))
        listener.listen(0)
        assert agents.note(str(folder / "hung"))
        assert agents.answering() == good.path
        (folder / "file").touch()
        for path in ("", "relative", str(folder / "file"), str(folder / "missing"), "/" + "x" * 200, "\0"):
            assert not agents.note(path), path
        assert agents.answering() == good.path


def test_the_agent_is_read_from_the_requesting_process() -> None:
    for given, found in (({"SSH_AUTH_SOCK": "/tmp/a b"}, "/tmp/a b"), ({}, "")):
        command = [sys.executable, "-c", "print(flush=True); input()"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, env=given, **pipes) as process:  # type: ignore[call-overload]
            process.stdout.readline()
            assert of_process(process.pid) == found
            process.stdin.close()
    assert of_process(process.pid) == ""  # it has ended
    assert os.getpid() != process.pid
