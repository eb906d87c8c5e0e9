"""What every connector promises, on each of them."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from gpq_agent import wire

from gpq.connectors.bundle import bundle
from gpq.connectors.local import RING, Channel, LocalConnector
from gpq.connectors.ssh import SshConnector, Target
from gpq.errors import GpqError
from tests.support.sshd import Sshd
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


Spawn = Callable[[list[str]], Channel]
# In the place of the agent's bootstrap: becomes the command that the arguments are.
COMMAND = """
import json, os
request = json.loads(os.read(0, int(os.read(0, 8), 16)))
os.chdir("/")
os.write(1, (request["word"] + ' {"ok": true, "have": true}\\n').encode())
os.execvp(request["arguments"][0], request["arguments"])
"""


@pytest.fixture(params=["local", "ssh"])
def spawn(request: pytest.FixtureRequest, tmp_path: Path) -> Spawn:
    """Starts a command through the pipes of a connector."""
    errors = tmp_path / "errors"
    if request.param == "local":
        return LocalConnector(errors).spawn
    reached: Sshd = request.getfixturevalue("server")
    target = Target(reached.name, command=tuple(reached.command))
    return SshConnector(target, replace(bundle(), bootstrap=COMMAND), errors=errors).agent


@pytest.fixture
def channel(spawn: Spawn) -> Iterator[Channel]:
    opened = spawn(["cat"])
    yield opened
    opened.close()


def test_what_is_written_comes_back_and_closing_ends_the_process(channel: Channel) -> None:
    content = os.urandom(50_000).replace(b"\n", b"") + b"\n"
    channel.writer.write(content)
    read = b""
    while not read.endswith(b"\n"):
        read += os.read(channel.reader.fileno(), 1 << 16)
    assert read == content
    channel.close()
    channel.close()


def test_reading_ends_when_the_process_does(spawn: Spawn) -> None:
    channel = spawn(["sh", "-c", "echo last words"])
    assert channel.reader.read() in (b"last words\n", b"last words")
    assert channel.reader.read() == b""
    channel.close()


def test_only_the_last_line_of_stderr_is_kept(spawn: Spawn) -> None:
    for complaints, last in (("echo one >&2; echo two >&2; echo >&2", "two"), ("true", "")):
        channel = spawn(["sh", "-c", complaints])
        assert channel.reader.read() == b""
        assert channel.last_words() == last
        channel.close()


def test_stderr_without_end_fills_no_disk_and_its_end_can_be_read(spawn: Spawn, tmp_path: Path) -> None:
    """After it and during it, with what an earlier connection wrote."""
    channel = spawn(["sh", "-c", "echo earlier words >&2"])
    assert channel.reader.read() == b""
    assert channel.last_words() == "earlier words"
    channel.close()
    channel = spawn(["sh", "-c", "echo soon >&2; read go; yes flood 2>&- | head -c 3999996 >&2; echo why >&2"])
    errors = tmp_path / "errors"
    wait_until(lambda: errors.read_bytes().endswith(b"earlier words\nsoon\n"), "what it says is in the file at once")
    channel.writer.write(b"\n")
    sizes = [errors.stat().st_size]
    while select.select([channel.reader], [], [], 0.01)[0] == []:
        sizes.append(errors.stat().st_size)
    assert channel.last_words() == "why"
    assert errors.read_bytes().endswith(b"flood\nwhy\n")
    assert max(*sizes, errors.stat().st_size) <= 3 * RING
    channel.close()


def test_a_missing_command_is_a_clear_error() -> None:
    with pytest.raises(GpqError, match="cannot start no-such-command"):
        LocalConnector().spawn(["no-such-command"])


def test_terminal_and_current_folder_do_not_reach_the_process(spawn: Spawn) -> None:
    code = "import os; print(os.getsid(0) == os.getpid(), os.getcwd(), sorted(os.listdir('/proc/self/fd')))"
    channel = spawn([sys.executable, "-c", code])
    assert channel.reader.read() == b"True / ['0', '1', '2', '3']\n"
    channel.close()


def test_an_agent_needs_no_installation_and_keeps_its_environment_from_jobs(tmp_path: Path) -> None:
    """Also from within a job. What gpq sets for that job is left out, above all its mark."""
    before = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": "/of/the/user",
        "SEED": "1",
        wire.ENV_MARK: "x:1.1",
        wire.ENV_JOB: "1",
    }
    connector = LocalConnector(environ=before)
    channel = connector.agent(["--spool", str(tmp_path / "spool"), "--slots", "1"])
    greeting = wire.decode(channel.reader.readline())
    assert greeting["version"] == wire.VERSION
    order = {
        "job": 7,
        "attempt": 1,
        "argv": ["sh", "-c", 'echo "$PYTHONPATH|$SEED|$GPQ_JOB_ID"'],
        "cwd": str(tmp_path),
        "env": {},
        "devices": ["slot-0"],
        "level": "black-box",
    }
    channel.writer.write(wire.encode({"v": wire.VERSION, "id": 1, "op": "start", "order": order}))
    assert wire.decode(channel.reader.readline())["ok"]
    seen = ""
    while True:
        watch = {"v": wire.VERSION, "id": 2, "op": "watch", "offsets": {}, "wait": 5, "seen": seen}
        channel.writer.write(wire.encode(watch))
        news = wire.decode(channel.reader.readline())
        seen = news["digest"]
        if news["attempts"][0]["state"] == "exited":
            break
    channel.close()
    assert (tmp_path / "spool" / "attempts" / "7.1" / "log").read_text() == "||7\n"
