"""The first process of an attempt with several replicas, run as the shim runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from gpq_agent.node.shim import replicas

from tests.support.waiting import wait_until

LIMIT = 30.0


def command(note: Path, ranks: str, script: str, *, before: str = "") -> list[str]:
    """Starts one `script` for each rank. `before`: what happens first in the process that starts them."""
    if not before:
        first = [sys.executable, "-I", "-S", replicas.__file__]
    else:
        lines = (
            f"import sys\nfrom gpq_agent.node.shim import replicas\n{before}\nsys.exit(replicas.main(*sys.argv[1:]))"
        )
        first = [sys.executable, "-c", lines]
    return [*first, str(note), ranks, sys.executable, "-c", script]


def run(note: Path, ranks: str, script: str, *, before: str = "") -> subprocess.CompletedProcess[str]:
    argv = command(note, ranks, script, before=before)
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT)


def failures(note: Path) -> list[list[int]]:
    found: list[list[int]] = json.loads(note.read_text())["failures"]
    return found


def test_each_replica_has_its_rank_and_its_own_session(tmp_path: Path) -> None:
    script = (
        "import os; numbers = [os.environ[name] for name in ('RANK', 'ROLE_RANK', 'LOCAL_RANK')];"
        " os.write(1, f'{numbers} {os.getsid(0) == os.getpid()}\\n'.encode())"
    )
    done = run(tmp_path / "note", "4,5", script)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [
        "['4', '4', '0'] True",
        "['5', '5', '1'] True",
    ]
    assert not (tmp_path / "note").exists()


def test_each_replica_reads_all_of_stdin(tmp_path: Path) -> None:
    (tmp_path / "stdin").write_text("input")
    argv = command(tmp_path / "note", "0,1,2", "import sys; sys.stdout.write(sys.stdin.read() + chr(10))")
    with open(tmp_path / "stdin") as stream:
        done = subprocess.run(argv, stdin=stream, capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout.split() == ["input"] * 3


def test_a_replica_has_no_signal_blocked_or_ignored(tmp_path: Path) -> None:
    script = "print([line for line in open('/proc/self/status') if line.startswith(('SigBlk', 'SigIgn'))])"
    done = run(tmp_path / "note", "0", script)
    plain = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == plain.stdout


def test_the_first_failure_ends_the_others_and_its_code_is_the_result(tmp_path: Path) -> None:
    script = "import os, time; os.environ['RANK'] == '1' and exit(3); time.sleep(3600)"
    done = run(tmp_path / "note", "0,1,2", script)
    assert done.returncode == 3
    first, *others = failures(tmp_path / "note")
    assert first == [1, 3]
    assert sorted(others) == [[0, -signal.SIGTERM], [2, -signal.SIGTERM]]


def test_a_replica_that_ends_well_ends_nobody(tmp_path: Path) -> None:
    go, ready = tmp_path / "go", tmp_path / "ready"
    script = (
        f"import os, time\nif os.environ['RANK'] == '0': exit(0)\n"
        f"open({str(ready)!r}, 'w').close()\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    )
    with subprocess.Popen(command(tmp_path / "note", "0,1", script)) as first:
        wait_until(ready.exists, "rank 1")
        wait_until(lambda: len(children(first.pid)) == 1, "the end of rank 0")
        go.touch()
        assert first.wait(LIMIT) == 0


def test_a_killed_replica_counts_before_those_that_fail_because_of_it(tmp_path: Path) -> None:
    script = "import os, signal; os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGKILL); exit(1)"
    both_end_before_the_first_look = (
        "import os\nexecute = replicas.execute\n"
        "def execute_and_wait(*arguments):\n"
        "    pid = execute(*arguments)\n"
        "    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\n"
        "    return pid\n"
        "replicas.execute = execute_and_wait"
    )
    done = run(tmp_path / "note", "0,1", script, before=both_end_before_the_first_look)
    assert done.returncode == 128 + signal.SIGKILL
    assert failures(tmp_path / "note") == [[1, -signal.SIGKILL], [0, 1]]


def test_a_replica_that_ignores_term_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = (
        "import os, signal, time\n"
        "if os.environ['RANK'] == '0':\n"
        f"    while not os.path.exists({str(ready)!r}): time.sleep(0.01)\n"
        "    exit(7)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(ready)!r}, 'w').close()\n"
        "time.sleep(3600)\n"
    )
    done = run(tmp_path / "note", "0,1", script, before="replicas.TERM_GRACE = 0.2")
    assert done.returncode == 7
    assert failures(tmp_path / "note") == [[0, 7], [1, -signal.SIGKILL]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_waits_for_its_replicas_when_gpq_signals_all_processes(tmp_path: Path, number: int) -> None:
    """A replica that saves on the signal and ends well must not become an end by a signal."""
    script = (
        "import os, signal, time\n"
        f"signal.signal({int(number)}, lambda *_: exit(0))\n"
        f"open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').close()\n"
        "time.sleep(3600)\n"
    )
    with subprocess.Popen(command(tmp_path / "note", "0,1", script)) as first:
        wait_until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists(), "the replicas")
        pids = children(first.pid)
        for pid in (first.pid, *pids):
            os.kill(pid, number)
        assert first.wait(LIMIT) == 0


def test_a_command_that_is_missing_is_named(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-S", replicas.__file__, str(tmp_path / "note"), "0,1", "/no/python"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 127
    assert "gpq: cannot run /no/python: No such file or directory" in done.stdout


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_lines_of_two_replicas_do_not_mix(tmp_path: Path) -> None:
    """Both write to one log, and an unbuffered print writes its line end on its own."""
    script = (
        "import os\nfor _ in range(2000):\n for piece in (os.environ['RANK'] * 30, ' ', 'x' * 30, '\\n'):"
        "\n  os.write(1 + _ % 2, piece.encode())\nos.write(1, b'the end')"
    )
    with open(tmp_path / "log", "wb+") as log:
        done = subprocess.run(
            command(tmp_path / "note", "0,1", script), stdout=log, stderr=log, check=False, timeout=LIMIT
        )
    lines = Counter((tmp_path / "log").read_text().splitlines())
    assert done.returncode == 0
    assert lines == {"0" * 30 + " " + "x" * 30: 2000, "1" * 30 + " " + "x" * 30: 2000, "the end": 2}


def test_an_unfinished_line_is_shown_and_a_long_one_is_cut(tmp_path: Path) -> None:
    script = (
        "import os, time\nif os.environ['RANK'] == '0':\n os.write(1, b'10%')\n"
        " while not os.path.exists('gate'): time.sleep(0.01)\nelse:\n os.write(1, b'x' * 1_000_000)"
    )
    process = subprocess.Popen(command(tmp_path / "note", "0,1", script), stdout=subprocess.PIPE, cwd=tmp_path)
    assert process.stdout is not None
    printed = b""
    while b"10%" not in printed or printed.count(b"x") < 1_000_000:
        piece = os.read(process.stdout.fileno(), 1 << 16)
        assert piece
        printed += piece
    (tmp_path / "gate").touch()
    assert process.wait(LIMIT) == 0
    process.stdout.close()
    assert sorted(printed.splitlines()) == [b"10%", b"x" * 1_000_000]


def test_a_process_that_outlives_its_replica_keeps_nobody_waiting(tmp_path: Path) -> None:
    script = "import subprocess; print('started', subprocess.Popen(['sleep', '600']).pid, flush=True)"
    done = run(tmp_path / "note", "0", script)
    os.kill(int(done.stdout.split()[1]), signal.SIGKILL)
    assert done.returncode == 0
