"""Every command with difficult terminals, pipes and users. None prints a traceback, hangs or exits with a wrong code."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import BARE, FIFO, Gpq
from tests.generated import reference
from tests.support.figures import Figures
from tests.support.waiting import wait_until

NAME = "A" + "._-" * 21  # 64 characters, with every unusual character that a name may contain
# The arguments of each command here, and its exit status. NAME is a job that has ended, and job 2 is running.
CASES: dict[str, tuple[list[str], int]] = {
    "submit": (["--hold", "--", "true"], 0),
    "run": (["--time", "never", "true"], 2),
    "attach": ([NAME], 2),
    "shell": (["--time", "never"], 2),
    "status": ([], 0),
    "show": ([NAME], 0),
    "why": ([NAME], 0),
    "logs": ([NAME], 0),
    "cancel": ([NAME], 0),
    "hold": ([NAME], 5),
    "release": ([NAME], 5),
    "requeue": (["2"], 5),
    "edit": (["2", "--untag", "none"], 5),
    "wait": ([NAME], 0),
    "nodes list": ([], 0),
    "nodes add": (["no-such-host.invalid", "--yes"], 1),
    "nodes remove": (["nowhere"], 4),
    "nodes drain": (["local", "--reason", "a new driver"], 0),
    "nodes undrain": (["local"], 0),
    "nodes reserve": (["local", "--for", "ana", "--for-duration", "1h", "--from", "2099-01-01"], 2),
    "nodes unreserve": (["77"], 4),
    "nodes clean": (["--older", "90d"], 0),
    "yield": (["--end"], 0),
    "top": (["--once"], 0),
    "history": ([NAME], 0),
    "report": ([], 0),
    "team init": (["no/name"], 2),
    "team show": ([], 5),
    "team add": (["root"], 5),
    "team remove": (["ana"], 5),
    "team share": (["ana", "none"], 2),
    "team pause": (["ana"], 5),
    "team resume": (["ana"], 5),
    "team admin": (["ana", "on"], 5),
    "team recall": (["ana"], 2),
    "team audit": ([], 5),
    "team check": ([], 5),
    "team link": (["no-such-team"], 4),
    "join": (["no-such-team"], 4),
    "leave": ([], 5),
    "notify list": ([], 0),
    "notify test": (["nowhere"], 2),
    "import slurm": (["no-such-file.sh"], 2),
    "import ts": ([], 4),
    "schema": (["status"], 0),
    "daemon start": ([], 0),
    "daemon stop": ([], 0),
    "daemon status": ([], 0),
    "daemon logs": ([], 0),
    "check": (["no-such-file.py"], 2),
    "doctor": (["--python", BARE], 0),
    "config show": ([], 0),
    "config check": ([], 0),
    "config path": ([], 0),
    "config library": ([], 0),
    "config policies": ([], 0),
    "simulate": ([], 2),
    "demo": (["--policy", "nonsense"], 2),
    "completion": (["bash"], 0),
}
# One example of each way in which a command asks the daemon: a request on the fast path, a request on the normal path,
# a request that makes a job, a wait, a log, a picture.
ASKS = ["status", "show", "submit", "wait", "logs", "top"]
# One example of each way in which a command prints: on the fast path, as a table, piece by piece, as a picture, a file,
# an error.
PRINTS = ["status", "show", "nodes list", "logs", "top", "daemon logs", "completion", "requeue"]


@contextmanager
def home() -> Iterator[Gpq]:
    with tempfile.TemporaryDirectory(prefix="gpq-cli-") as path:
        (Path(path) / "config.toml").write_text(FIFO)
        yield Gpq(Path(path))


@pytest.fixture(scope="module")
def lab() -> Iterator[Gpq]:
    """A daemon with one job that has ended and one that is running."""
    with home() as gpq:
        assert (
            gpq(
                "submit", "--wait", "--name", NAME, "--", "sh", "-c", "for n in $(seq 200); do echo line $n; done"
            ).returncode
            == 0
        )
        assert gpq("submit", "--", "sleep", "1000").returncode == 0
        wait_until(
            lambda: json.loads(gpq("status", "2", "--json").stdout)["jobs"][0]["state"] == "running", "job 2 runs"
        )
        yield gpq
        gpq("cancel", "all")
        gpq("daemon", "stop")


def argv(path: str) -> list[str]:
    return [*path.split(), *CASES[path][0]]


def test_every_command_is_covered() -> None:
    assert [path for path, _ in reference.leaves() if path not in CASES] == []


PLAIN = {"COLUMNS": "20", "LANG": "C", "LC_ALL": "C", "NO_COLOR": "1"}


@pytest.mark.parametrize("path", [path for path in CASES if path != "daemon stop"])
def test_every_command_works_without_colour_in_twenty_columns(lab: Gpq, path: str) -> None:
    done = lab(*argv(path), **PLAIN)
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert done.returncode == CASES[path][1], done


@pytest.mark.parametrize("path", PRINTS)
def test_every_command_works_when_piped_into_head(lab: Gpq, path: str) -> None:
    words = [sys.executable, "-m", "gpq", *argv(path)]
    done = subprocess.run(
        ["bash", "-c", '"$@" | head -1; exit ${PIPESTATUS[0]}', "-", *words],
        env={**lab.environment, **PLAIN}, cwd=lab.home, stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert b"Traceback" not in done.stderr
    assert done.returncode == CASES[path][1], done


def in_shell(gpq: Gpq, line: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `gpq WORDS` where `"$@"` is in a line of a shell."""
    return subprocess.run(
        ["bash", "-c", line, "-", sys.executable, "-m", "gpq", *words],
        env={**gpq.environment, **environ}, cwd=gpq.home, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


GONE = "gpq: the current directory no longer exists\nhint: change to one that exists\n"


@pytest.mark.parametrize("path", [path for path in CASES if path != "daemon stop"])
def test_every_command_works_or_says_so_where_the_directory_is_gone(lab: Gpq, path: str) -> None:
    done = in_shell(lab, 'mkdir gone && cd gone && rmdir ../gone && "$@"', *argv(path))
    assert (done.returncode, done.stderr) == (2, GONE) or done.returncode == CASES[path][1], done
    assert "Traceback" not in done.stderr


def test_a_daemon_starts_from_a_directory_that_is_gone_unless_its_place_is_relative() -> None:
    with home() as gpq:
        line = 'mkdir gone && cd gone && rmdir ../gone && "$@"'
        done = in_shell(gpq, line, "status", PYTHONPATH="")
        assert (done.returncode, done.stdout) == (0, "no jobs\n"), done
        relative = in_shell(gpq, line, "daemon", "status", GPQ_HOME="state")
        assert (relative.returncode, relative.stderr) == (2, GONE)
        assert gpq("daemon", "stop").returncode == 0


@pytest.mark.parametrize("path", [path for path in CASES if path != "daemon stop"])
def test_every_command_works_with_closed_input_and_errors(lab: Gpq, path: str) -> None:
    done = in_shell(lab, '"$@" <&- 2>&-', *argv(path))
    assert done.returncode == CASES[path][1], done
    full = in_shell(lab, '"$@" 2>/dev/full', *argv(path))
    assert full.returncode == CASES[path][1], full


@pytest.mark.parametrize("path", ["status", "show", "nodes list", "top", "daemon logs", "completion"])
def test_a_closed_output_gives_one_line(lab: Gpq, path: str) -> None:
    done = in_shell(lab, '"$@" >&-', *argv(path))
    assert (done.returncode, done.stderr) == (1, "gpq: cannot write the output: Bad file descriptor\n")


@pytest.mark.parametrize("output", [">&-", ">/dev/full", ">&- 2>&- <&-", "| true"])
def test_an_output_that_fails_leaves_the_exit_code_of_what_was_done(lab: Gpq, output: str) -> None:
    """A script that tries again after a failure would submit the job twice."""
    before = {row["id"] for row in json.loads(lab("status", "--all", "--json").stdout)["jobs"]}
    line = f'set -o pipefail; "$@" {output}'
    assert in_shell(lab, line, "submit", "--hold", "--", "true").returncode == 0
    done = in_shell(lab, line, "submit", "--json", "--wait", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7, done
    after = json.loads(lab("status", "--all", "--json").stdout)["jobs"]
    rows = sorted((row for row in after if row["id"] not in before), key=lambda row: row["id"])
    assert [row["command"] for row in rows] == ["true", "sh -c 'exit 7'"]
    if output in (">&-", ">/dev/full"):
        assert f"\nnote: job {rows[1]['id']} submitted\n" in done.stderr
    assert in_shell(lab, line, "wait", str(rows[1]["id"])).returncode == 7
    assert in_shell(lab, line, "release", str(rows[0]["id"])).returncode == 0


@pytest.mark.parametrize("path", ["status", "show", "why", "nodes list", "top"])
@pytest.mark.parametrize("columns", [20, 40])
def test_tables_fit_narrow_terminals(lab: Gpq, path: str, columns: int) -> None:
    done = lab(*argv(path), COLUMNS=str(columns))
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= columns


@pytest.mark.parametrize("path", ASKS)
def test_a_killed_daemon_is_started_again(lab: Gpq, path: str) -> None:
    pid = json.loads(lab("daemon", "status", "--json").stdout)["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the daemon is dead")
    done = lab(*argv(path))
    assert "Traceback" not in done.stderr
    assert done.returncode == CASES[path][1], done


@contextmanager
def deaf(gpq: Gpq) -> Iterator[socket.socket]:
    """A daemon that accepts connections but never answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(gpq.home / "gpq.sock"))
        listening.listen()
        listening.settimeout(60)
        yield listening


@pytest.mark.parametrize("path", ASKS)
def test_ctrl_c_ends_a_command_with_at_most_one_note(path: str) -> None:
    with home() as gpq, deaf(gpq) as listening:
        words = [sys.executable, "-m", "gpq", *argv(path)]
        process = subprocess.Popen(
            words,
            env=gpq.environment,
            cwd=gpq.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        connection, _ = listening.accept()
        with connection:
            assert connection.recv(1 << 16)  # the command has sent its request and waits for the answer
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert err == (b"note: the jobs stay queued or keep running: `gpq cancel` stops them\n" if path == "wait" else b"")


@pytest.mark.parametrize(
    "name", ["ä" * 64, "☃" * 64, "$(touch canary)" * 4, "\x1b[31m" * 12, "-" * 64, "a/b" * 21, " " * 64]
)
def test_an_invalid_name_is_refused_in_one_line(lab: Gpq, name: str) -> None:
    for words in (["submit", f"--name={name}", "--", "true"], ["show", "--", name], ["edit", "2", f"--name={name}"]):
        done = lab(*words, LANG="C", LC_ALL="C")
        assert done.returncode in (2, 4), done
        assert done.stderr.startswith("gpq: ")
        assert len(done.stderr.splitlines()) == 2
        assert "\x1b" not in done.stderr
    assert not (lab.home / "canary").exists()


def test_reading_commands_end_quickly_while_the_daemon_is_busy(lab: Gpq, figures: Figures) -> None:
    """A stopped daemon answers nothing. The first command that waits for it says so in time and does not hang."""
    pid = json.loads(lab("daemon", "status", "--json").stdout)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        done = lab("status")
        assert done.returncode == 3
        assert "daemon" in done.stderr
        figures.at_most("status says that the daemon does not answer", time.monotonic() - began, 60.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert lab("status").returncode == 0
