"""The console of a job of `gpq run`, and the relay's reading of what it wrote, without gpq around them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.node.console import console
from gpq_agent.node.console.relay import Printed, enter
from gpq_agent.node.spool.spool import Spool

from tests.agent.node.harness import wait_until
from tests.contract.test_sqlite_store import fill, mounted, needs_root

PATIENCE = 30.0
AHEAD = 1 << 20
FIRST, SECOND = b"a" * 16, b"b" * 16  # sessions


class Running:
    """A console with a program."""

    def __init__(self, folder: Path, *argv: str, log: Path | None = None) -> None:
        self.folder = folder
        self.lines: list[Line] = []
        with open(log or folder / wire.LOG, "ab") as output:
            self.process = subprocess.Popen(
                console.command("pipes", str(folder), AHEAD, argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
            )
        wait_until(lambda: (folder / wire.CONSOLE).exists() or self.process.poll() is not None, "it listens")

    def log(self) -> bytes:
        return (self.folder / wire.LOG).read_bytes()

    def connect(self, session: bytes, connection: int = 1, *, known: bool = False) -> Line:
        self.lines.append(Line(self.folder, wire.Greeting(session, connection, known, 0, wire.EVERYTHING)))
        return self.lines[-1]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for line in self.lines:
            line.socket.close()


class Line:
    """A relay's end of its connection to the console."""

    def __init__(self, folder: Path, greeting: wire.Greeting) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        wait_until(lambda: self.socket.connect_ex(str(folder / wire.CONSOLE)) == 0, "it listens")
        self.send(wire.HELLO, greeting.packed())

    def send(self, kind: bytes, body: bytes = b"") -> None:
        self.socket.sendall(wire.frame(kind, body))

    def hear(self) -> tuple[bytes, bytes]:
        return wire.read_frame(self.socket.recv)

    def until(self, good: Callable[[int, int, bool], bool]) -> None:
        """Hear STATE frames until one is good."""
        while True:
            kind, body = self.hear()
            assert kind == wire.STATE, kind
            if good(*wire.PROGRESS.unpack(body)):
                return

    def end(self) -> bytes:
        """The last frame that is no STATE, once the console has hung up."""
        last = b""
        with suppress(EOFError):
            while True:
                kind, _ = self.hear()
                last = last if kind == wire.STATE else kind
        return last


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin(*argv: str, log: Path | None = None) -> Running:
        started.append(Running(tmp_path, *argv, log=log))
        return started[-1]

    yield begin
    for one in started:
        one.close()


Start = Callable[..., Running]


def test_a_second_session_takes_over_and_the_first_cannot_come_back(start: Start) -> None:
    running = start("cat")
    first = running.connect(FIRST)
    first.until(lambda *_: True)
    second = running.connect(SECOND)
    second.until(lambda *_: True)
    assert first.end() == wire.REPLACED
    assert running.connect(FIRST, 2, known=True).end() == wire.REPLACED
    second.send(wire.INPUT, b"still here\n")
    second.send(wire.CLOSE)
    assert running.process.wait(PATIENCE) == 0
    assert running.log() == b"still here\n"


def test_a_late_connection_of_a_session_does_not_replace_its_newer_one(start: Start) -> None:
    running = start("cat")
    newer = running.connect(FIRST, 2)
    newer.until(lambda *_: True)
    assert running.connect(FIRST, 1).end() == b""
    newer.send(wire.CLOSE)
    assert running.process.wait(PATIENCE) == 0


def test_a_new_connection_sends_again_what_the_program_has_not_taken(start: Start) -> None:
    running = start("sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; exec cat")
    data = os.urandom(1 << 18)
    first = running.connect(FIRST)
    first.send(wire.INPUT, data)
    first.until(lambda taken, *_: taken > 0)  # as much as its pipe holds
    first.socket.close()
    second = running.connect(FIRST, 2, known=True)
    counts: list[int] = []
    second.until(lambda taken, *_: not counts.append(taken))
    assert 0 < counts[0] < len(data)
    second.send(wire.INPUT, data[counts[0] :])
    second.send(wire.CLOSE)
    (running.folder / "go").touch()
    assert running.process.wait(PATIENCE) == 0
    assert running.log() == data


def test_a_signal_that_is_sent_again_comes_once(start: Start) -> None:
    script = "trap 'echo got' USR1; echo ready; while [ ! -e go ]; do sleep 0.01; done; true"
    running = start("sh", "-c", script)
    wait_until(lambda: running.log() == b"ready\n", "its trap is set")
    first = running.connect(FIRST)
    first.send(wire.SIGNAL, wire.NUMBERED.pack(0, signal.SIGUSR1))
    first.until(lambda taken, obeyed, *_: obeyed == 1)
    second = running.connect(FIRST, 2, known=True)
    second.send(wire.SIGNAL, wire.NUMBERED.pack(0, signal.SIGUSR1))
    second.send(wire.SIGNAL, wire.NUMBERED.pack(1, 0))
    second.until(lambda taken, obeyed, *_: obeyed == 2)
    (running.folder / "go").touch()
    assert running.process.wait(PATIENCE) == 0
    assert running.log().count(b"got\n") == 1


def test_a_signal_reaches_a_program_that_does_not_run_yet() -> None:
    """The console ignores signals that are meant for its program, and so did the program at its very first."""
    gate, gate_end = os.pipe()

    class Late(console.Program):
        def lead(self) -> None:
            super().lead()
            os.read(gate, 1)

    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        program = Late(["true"])
        program.send(signal.SIGUSR1)
        os.write(gate_end, b"x")
        _, status = os.waitpid(program.pid, 0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    program.close_input()
    program.close_output(console.OUT, console.ERR)
    for descriptor in (gate, gate_end):
        os.close(descriptor)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGUSR1
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])


@needs_root
def test_output_that_waited_for_space_on_a_full_disk_is_news(start: Start, tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "256k") as small:
        log = small / wire.LOG
        running = start("sh", "-c", "read line; echo $line; exec cat", log=log)
        fill(small)
        line = running.connect(FIRST)
        line.send(wire.INPUT, b"words\n")
        line.until(lambda taken, *_: taken == 6)
        line.until(lambda *_: True)  # the console has the words, and no space for them
        assert not log.read_bytes()
        (small / "filler").unlink()
        line.until(lambda *_: log.read_bytes() == b"words\n")
        line.send(wire.CLOSE)
        assert running.process.wait(PATIENCE) == 0


def test_on_a_full_disk_the_console_obeys_and_ends(start: Start) -> None:
    script = "trap 'exit 7' USR1; touch ready; echo lost; while :; do sleep 0.01; done"
    running = start("sh", "-c", script, log=Path("/dev/full"))
    wait_until((running.folder / "ready").exists, "its trap is set")
    line = running.connect(FIRST)
    line.until(lambda *_: True)
    line.send(wire.SIGNAL, wire.NUMBERED.pack(0, signal.SIGUSR1))
    assert running.process.wait(PATIENCE) == 7


def test_output_that_found_no_place_is_a_fault(start: Start) -> None:
    assert start("echo", "lost", log=Path("/dev/full")).process.wait(PATIENCE) == 1


def test_an_ended_program_waits_for_no_client(start: Start) -> None:
    running = start("sh", "-c", "read line; head -c 1100000 /dev/zero; exit 3")
    line = running.connect(FIRST)  # acknowledges nothing
    line.send(wire.INPUT, b"\n")
    assert running.process.wait(PATIENCE) == 3
    assert len(running.log()) == 1_100_000


def test_the_console_ends_with_a_program_that_closed_its_streams(tmp_path: Path) -> None:
    words = console.command("pipes", str(tmp_path), AHEAD, ["sh", "-c", "exec <&- >&- 2>&-; sleep 0.2"])
    words = [word.replace("sys.exit", "console.LINGER = 1e6; sys.exit") for word in words]
    assert subprocess.run(words, stdin=subprocess.DEVNULL, timeout=PATIENCE, check=False).returncode == 0


def test_the_program_waits_for_a_client_that_is_behind(start: Start) -> None:
    running = start("sh", "-c", "head -c 3000000 /dev/zero; touch done")
    line = running.connect(FIRST)
    wait_until(lambda: len(running.log()) > AHEAD, "it is ahead")
    assert len(running.log()) < AHEAD + (1 << 17)
    assert not (running.folder / "done").exists()
    line.send(wire.ACK, wire.COUNT.pack(3_000_000))
    assert running.process.wait(PATIENCE) == 0
    assert len(running.log()) == 3_000_000


def test_a_stranger_is_not_heard(start: Start) -> None:
    """What is no frame, and frames before HELLO, change nothing."""
    running = start("cat")
    for noise in (b"\xff" * 100, wire.frame(wire.CLOSE), wire.frame(wire.SIGNAL), wire.frame(wire.HELLO, b"x")):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(running.folder / wire.CONSOLE))
            stranger.sendall(noise)
    line = running.connect(FIRST)
    line.send(wire.INPUT, b"x")
    line.send(wire.CLOSE)
    assert running.process.wait(PATIENCE) == 0
    assert running.log() == b"x"


TO_CONSOLE = """
import os, socket, sys
os.setgid(54321)
os.setuid(54321)
with socket.socket(socket.AF_UNIX) as console:
    try:
        console.connect(sys.argv[1])
        print("connected")
        console.sendall(bytes.fromhex(sys.argv[2]))
        print(console.recv(1))
    except OSError as error:
        print(type(error).__name__)
"""


@needs_root
def test_another_user_does_not_get_to_the_console(tmp_path: Path) -> None:
    spool = Path(Spool(str(tmp_path / "spool")).path)
    folder = spool / "attempts" / "42.1"
    folder.mkdir()
    running = Running(folder, "cat")
    hello = wire.frame(wire.HELLO, wire.Greeting(SECOND, 1, False, 0, wire.EVERYTHING).packed())
    frames = hello + wire.frame(wire.INPUT, b"of a stranger") + wire.frame(wire.CLOSE)

    def as_stranger() -> list[str]:
        words = [sys.executable, "-c", TO_CONSOLE, f"attempts/42.1/{wire.CONSOLE}", frames.hex()]
        return subprocess.run(words, cwd=spool, capture_output=True, text=True, check=True).stdout.split()

    try:
        line = running.connect(FIRST)
        line.until(lambda *_: True)
        assert as_stranger() == ["PermissionError"]
        for path in (spool, folder.parent, folder, folder / wire.CONSOLE):
            path.chmod(0o777)
        assert as_stranger()[0] == "connected"
        line.send(wire.INPUT, b"of the user")
        line.send(wire.CLOSE)
        assert running.process.wait(PATIENCE) == 0
        assert running.log() == b"of the user"
    finally:
        running.close()


def test_the_environment_of_the_program_is_as_it_came(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.delenv("LC_CTYPE", raising=False)
    monkeypatch.setenv("GPQ_KEPT_LD_LIBRARY_PATH", "/nowhere")
    monkeypatch.setenv("LD_OF_AGENT", "x")
    running = start("env")
    assert running.process.wait(PATIENCE) == 0
    lines = running.log().splitlines()
    assert b"LD_LIBRARY_PATH=/nowhere" in lines
    assert not any(line.startswith((b"LC_CTYPE", b"GPQ_KEPT", b"LD_OF_AGENT")) for line in lines)
    assert console.environment({"LD_X": "1", "A": "2"}) == {"GPQ_KEPT_LD_X": "1", "A": "2", "LD_OF_AGENT": "x"}


# -- the relay ---------------------------------------------------------------------------------------------------------


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[tuple[int, bytes]]) -> None:
    """The log and its streams, as the console writes them."""
    with open(folder / wire.LOG, "ab") as log:
        with monkeypatch.context() as patch:
            patch.setattr(console, "OUT", log.fileno())
            transcript = console.Transcript(str(folder))
        for stream, data in pieces:
            transcript.append(stream, data)


def read(printed: Printed) -> tuple[bytes, bytes]:
    """stdout and stderr."""
    streams = {wire.STDOUT: b"", wire.STDERR: b""}
    for frame in printed.frames():
        kind, body = frame[:1], frame[wire.FRAME_HEAD.size :]
        streams[kind] += body
    return streams[wire.STDOUT], streams[wire.STDERR]


def test_output_goes_on_while_the_attempt_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Spool(str(tmp_path / "spool"))
    folder = Path(place.attempts) / "42.1"
    folder.mkdir()
    data = os.urandom(300_000)
    written(folder, monkeypatch, [(1, data)])
    monkeypatch.chdir(tmp_path)  # and back at the end
    assert enter(place, "42.1")
    frames = Printed(0, wire.EVERYTHING).frames()
    begin = next(frames)
    place.retire("42.1")
    rest = b"".join(frame[wire.FRAME_HEAD.size :] for frame in frames)
    assert begin[wire.FRAME_HEAD.size :] + rest == data
    assert enter(place, "42.1")
    assert not enter(place, "43.1")


def test_a_relay_ends_when_the_files_of_its_attempt_are_removed(tmp_path: Path) -> None:
    place = Spool(str(tmp_path / "spool"))
    folder = Path(place.attempts) / "42.1"
    folder.mkdir()
    (folder / wire.LOG).write_bytes(b"x")
    words = [sys.executable, "-m", "gpq_agent.node", "--spool", place.path, "--attach", "42.1"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as relay:
        assert relay.stdin is not None
        assert relay.stdout is not None
        assert relay.stderr is not None
        relay.stdin.write(wire.frame(wire.HELLO, wire.Greeting(FIRST, 1, False, 0, wire.EVERYTHING).packed()))
        relay.stdin.flush()
        assert wire.read_frame(relay.stdout.read) == (wire.STDERR, b"x")
        shutil.rmtree(folder)
        assert relay.wait(PATIENCE) == 1
        assert relay.stdout.read() == b""
        assert b"are gone" in relay.stderr.read()


def test_streams_stay_apart_from_any_offset_and_beyond_a_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "MOST_RECORDS", 1 << 14)
    count = 1 << 16
    written(tmp_path, monkeypatch, [(1 + number % 2, b"%08d" % number) for number in range(count)])
    assert (tmp_path / wire.STREAMS).stat().st_blocks * 512 < count * console.RECORD.size
    monkeypatch.chdir(tmp_path)
    for first in (count - 1000, count - 7, count):
        out, err = read(Printed(first * 8 + 3, wire.EVERYTHING))
        numbers = range(first, count)
        rest = b"".join(b"%08d" % number for number in numbers if number % 2 == 0)
        assert out == (rest[3:] if first % 2 == 0 else rest)
        rest = b"".join(b"%08d" % number for number in numbers if number % 2)
        assert err == (rest[3:] if first % 2 else rest)
