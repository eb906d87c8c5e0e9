"""`gpq run` as `srun`: a command on a server whose streams, signals and exit code are those of the client."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from gpq.errors import Refused
from gpq.rpc.job_answers import CancelResult, Changed
from gpq.rpc.requests import Cancel, Requeue
from tests.chaos.sessions import ECHO, Client
from tests.e2e.harness import Daemon
from tests.support.waiting import PATIENCE

EVERY_BYTE = bytes(range(256)) * 400
PYTHON = sys.executable


@dataclass(frozen=True)
class Case:
    """What a command reads, and what comes of it. `signals` are sent to the client once the command has printed a
    line."""

    name: str
    command: tuple[str, ...]
    stdin: bytes = b""
    out: bytes = b""
    err: bytes = b""
    code: int = 0
    options: tuple[str, ...] = ()
    signals: tuple[int, ...] = field(default=())


def sh(name: str, script: str, **more: object) -> Case:
    return Case(name, ("sh", "-c", script), **more)  # type: ignore[arg-type]


def python(name: str, script: str, **more: object) -> Case:
    return Case(name, (PYTHON, "-c", script), **more)  # type: ignore[arg-type]


ON_SIGNAL = (
    "import signal, sys, time\n"
    "def end(number, _): print('got', number, flush=True); sys.exit(number)\n"
    "for number in (1, 2, 3, 10, 12, 15): signal.signal(number, end)\n"
    "print('ready', flush=True); time.sleep(600)"
)
CASES = (
    sh("prints nothing", "true"),
    sh("prints a line", "echo hello", out=b"hello\n"),
    sh("prints no newline", "printf x", out=b"x"),
    sh("prints to stderr", "echo oops >&2", err=b"oops\n"),
    sh("keeps the streams apart", "echo a; echo b >&2; echo c; echo d >&2", out=b"a\nc\n", err=b"b\nd\n"),
    sh("exit 1", "exit 1", code=1),
    sh("exit 7", "echo x; exit 7", out=b"x\n", code=7),
    sh("exit 126", "exit 126", code=126),
    sh("exit 255", "exit 255", code=255),
    sh("TERM of its own", "kill -TERM $$", code=143),
    sh("KILL of its own", "kill -KILL $$", err=b"note: killed by SIGKILL, not by gpq\n", code=137),
    sh("SEGV of its own", "kill -SEGV $$", code=139),
    sh("ABRT of its own", "echo x >&2; kill -ABRT $$", err=b"x\n", code=134),
    Case("a command without a shell", ("echo", "a  b", "$HOME", "*"), out=b"a  b $HOME *\n"),
    Case("options of the command", ("printf", "%s|", "--gpus", "-g"), out=b"--gpus|-g|"),
    Case("words after --", ("--", "echo", "-n", "x"), out=b"x"),
    Case("every byte", ("cat",), stdin=EVERY_BYTE, out=EVERY_BYTE),
    sh("every byte to stderr", "cat >&2", stdin=EVERY_BYTE, err=EVERY_BYTE),
    sh("no input", "wc -c", out=b"0\n"),
    sh("the end of input", "cat; echo end", stdin=b"a\nb", out=b"a\nbend\n"),
    sh("input that nobody reads", "echo done", stdin=b"x" * 3_000_000, out=b"done\n"),
    sh("half of the input", "head -c 3", stdin=b"abc" * 500_000, out=b"abc"),
    sh("a closed stdin", "exec 0<&-; echo ok", stdin=b"x" * 300_000, out=b"ok\n"),
    sh("input and code", 'read a; read b; echo "$b$a"; exit 4', stdin=b"1\n2\n", out=b"21\n", code=4),
    Case("much output", ("head", "-c", "3000000", "/dev/zero"), out=bytes(3_000_000)),
    sh(
        "much on both", "head -c 400000 /dev/zero; head -c 400000 /dev/zero >&2", out=bytes(400_000), err=bytes(400_000)
    ),
    sh("a megabyte there and back", "cat", stdin=os.urandom(1 << 20), out=b""),
    sh("a pipeline", "cat | sort -r | head -1", stdin=b"1\n3\n2\n", out=b"3\n"),
    sh("output of a child that ends later", "(sleep 0.3; echo late) & wait", out=b"late\n"),
    sh("output of a child that is left behind", "(sleep 0.2; echo late) &", out=b"late\n"),
    sh("closed streams", "exec 1>&- 2>&-; sleep 0.1; exit 5", code=5),
    sh("a variable", "echo $A-$GPQ_ATTEMPT", out=b"b-1\n", options=("--env", "A=b")),
    sh("one slot", "echo $GPQ_DEVICES | tr , '\\n' | wc -l", out=b"1\n"),
    sh("two slots", "echo $GPQ_DEVICES | tr , '\\n' | wc -l", out=b"2\n", options=("--gpus", "2")),
    sh("another folder", "pwd", out=b"/\n", options=("--cwd", "/")),
    python("INT", ON_SIGNAL, out=b"ready\ngot 2\n", code=2, signals=(signal.SIGINT,)),
    python("TERM", ON_SIGNAL, out=b"ready\ngot 15\n", code=15, signals=(signal.SIGTERM,)),
    python("HUP", ON_SIGNAL, out=b"ready\ngot 1\n", code=1, signals=(signal.SIGHUP,)),
    python("QUIT", ON_SIGNAL, out=b"ready\ngot 3\n", code=3, signals=(signal.SIGQUIT,)),
    python("USR1", ON_SIGNAL, out=b"ready\ngot 10\n", code=10, signals=(signal.SIGUSR1,)),
    python("USR2", ON_SIGNAL, out=b"ready\ngot 12\n", code=12, signals=(signal.SIGUSR2,)),
    sh("INT without a handler", "echo ready; exec sleep 600", out=b"ready\n", code=130, signals=(signal.SIGINT,)),
)
MEGABYTE = next(case for case in CASES if case.name == "a megabyte there and back")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(slots=4) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def results(daemon: Daemon) -> dict[str, tuple[bytes, bytes, int]]:
    """stdout, stderr and exit code of each case. Several run at once, as on a server of several people."""

    def result(case: Case) -> tuple[bytes, bytes, int]:
        client = Client(daemon, *case.options, *case.command, stdin=case.stdin)
        for number in case.signals:
            client.until_printed(b"ready\n")
            client.send(number)
        return client.result()

    with ThreadPoolExecutor(4) as pool:
        return dict(zip((case.name for case in CASES), pool.map(result, CASES), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_streams_signals_and_exit_code_are_those_of_the_command(
    case: Case, results: dict[str, tuple[bytes, bytes, int]]
) -> None:
    out = case.stdin if case is MEGABYTE else case.out
    assert results[case.name] == (out, case.err, case.code)


def test_a_signal_that_gpq_ignores_is_not_passed_on(daemon: Daemon) -> None:
    """As after `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        client = Client(daemon, PYTHON, "-c", ON_SIGNAL)
    finally:
        signal.signal(signal.SIGHUP, before)
    client.until_printed(b"ready\n")
    client.send(signal.SIGHUP)
    client.send(signal.SIGUSR1)
    assert client.result() == (b"ready\ngot 10\n", b"", 10)


def test_a_command_whose_reader_is_gone_ends_as_in_a_shell(daemon: Daemon) -> None:
    client = Client(daemon, "sh", "-c", "yes; echo $? >&2")
    client.until_printed(b"y\n")
    client.close_output()
    _, err, _ = client.result()
    assert err.splitlines()[-1] == b"141"  # `yes` got SIGPIPE


def test_ctrl_c_while_it_waits_cancels_it(daemon: Daemon) -> None:
    blocker = daemon.submit("sleep", "600", min_gpus=4, max_gpus=4)
    daemon.until(blocker, "running")
    client = Client(daemon, "echo", "never")
    client.until_complained(b"waits")
    client.send(signal.SIGINT)
    out, _, code = client.result()
    daemon.call(Cancel([str(blocker)], wait=PATIENCE), CancelResult)
    assert (out, code) == (b"", 130)
    assert daemon.state(blocker + 1) == "cancelled"


def test_a_command_that_the_server_lacks_ends_with_127_and_the_reason(daemon: Daemon) -> None:
    out, err, code = Client(daemon, "no-such-command").result()
    assert (out, code) == (b"", 127)
    assert b"no command no-such-command in PATH on this server" in err


def test_an_ended_one_is_not_queued_again(daemon: Daemon) -> None:
    Client(daemon, "true").result()
    job = max(row.id for row in daemon.rows().jobs)
    with pytest.raises(Refused, match="its input is gone"):
        daemon.call(Requeue([str(job)]), Changed)


def test_attach_brings_back_the_streams_of_a_client_that_was_killed(daemon: Daemon) -> None:
    first = Client(daemon, "sh", "-c", 'echo "ready"; read line; echo "got $line" >&2; exit 9', stdin=None)
    first.until_printed(b"ready\n")
    first.send(signal.SIGKILL)
    first.result()
    job = max(row.id for row in daemon.rows().jobs)
    out, err, code = Client(daemon, str(job), stdin=b"words\n", command="attach").result()
    assert (out, err, code) == (b"ready\n", b"got words\n", 9)


def test_the_second_client_takes_over_and_the_first_is_told(daemon: Daemon) -> None:
    first = Client(daemon, "sh", "-c", "echo ready; cat", stdin=None)
    first.until_printed(b"ready\n")
    job = max(row.id for row in daemon.rows().jobs)
    second = Client(daemon, str(job), stdin=b"x", command="attach")
    assert second.result() == (b"ready\nx", b"", 0)
    _, err, code = first.result()
    assert b"another terminal has taken over" in err
    assert code == 5


def test_nothing_is_lost_or_doubled_when_ways_break(daemon: Daemon) -> None:
    """The relay is killed again and again while the command prints to both streams and echoes its input."""
    client = Client(daemon, *ECHO, stdin=None)
    stop = threading.Event()
    breaks = []

    def break_it() -> None:
        while not stop.wait(0.7):
            breaks.append(client.break_way())

    breaker = threading.Thread(target=break_it)
    breaker.start()
    lines = b"".join(b"%d\n" % number for number in range(20_000))
    client.start_slowly(lines)
    out, err, code = client.result()
    stop.set()
    breaker.join()
    assert sum(breaks) >= 3
    assert (out, code) == (lines, 0)
    assert b"".join(line for line in err.splitlines(True) if not line.startswith(b"note:")) == lines
