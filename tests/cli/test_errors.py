"""Bad input gets one clear line and a hint on stderr and the right exit code. The daemon gets no request."""

import errno
import io
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpq.cli import app, fast_path
from gpq.cli.app import names
from gpq.client import quick
from gpq.policies.registry import POLICIES
from gpq.rpc import protocol
from tests.cli.conftest import Call, Gpq
from tests.cli.served import Made

BAD = [
    (["submit"], "nothing to run"),
    (["submit", "--gpus", "0", "--", "true"], "at least 1 GPU"),
    (["submit", "--gpus", "4-2", "train.py"], "did you mean --gpus 2-4?"),
    (["submit", "--gpus", "many", "train.py"], "invalid --gpus 'many': expected N or A-B"),
    (["submit", "--gpus", "1-4", "--", "true"], "fixed number"),
    (["submit", "--gpus", "1-4", "--rigid", "train.py"], "cannot be combined with a range"),
    (["submit", "--time", "90", "--", "true"], "use 90s, 90m or 90h"),
    (["submit", "--time", "soon", "--", "true"], "expected a duration"),
    (["submit", "--min-gpu-memory", "40", "--", "true"], "use 40G"),
    (["submit", "--name", "a\x1b[2Jb", "--", "true"], "not a valid name"),
    (["submit", "--name", "x" * 65, "--", "true"], "not a valid name"),
    (["submit", "--tag", "two words", "--", "true"], "not a valid name"),
    (["submit", "--env", "1A=b", "--", "true"], "expected NAME=VALUE"),
    (["submit", "--env", "NOT_SET_ANYWHERE", "--", "true"], "is not set here"),
    (["submit", "--priority", "high", "--", "true"], "--priority must be a whole number"),
    (["nodes", "add", "a", "--slots", "-1"], "--slots must be 0 or more"),
    (["nodes", "add", "a", "--port", "70000"], "--port must be 65535 or less"),
    (["nodes", "reserve", "a", "--until", "2020-01-02 10:00"], "--until 2020-01-02 10:00 is in the past"),
    (["nodes", "unreserve", "x"], "RESERVATION must be a whole number"),
    (["top", "--interval", "x"], "--interval must be a number"),
    (["submit", "--retries", "-1", "--", "true"], "--retries -1 is too small"),
    (["submit", "--signal", "USR1", "--", "true"], "needs --preemptible"),
    (["submit", "--preemptible", "--signal", "KILL", "--", "true"], "cannot be caught"),
    (["submit", "--preemptible", "train.py"], "save a checkpoint on a signal"),
    (["submit", "--rigid", "--", "true"], "for training scripts"),
    (["submit", "--atomic-batch-size", "9-3", "train.py"], "did you mean --atomic-batch-size 3-9?"),
    (["submit", "--batch-size", "64", "--max-batch-size", "32", "train.py"], "below --batch-size"),
    (["submit", "--batch-size", "0", "train.py"], "--batch-size 0 is too small"),
    (["submit", "--max-batch-size=0", "train.py"], "--max-batch-size 0 is too small"),
    (["submit", "--cwd", "/nowhere", "--", "true"], "no such directory"),
    (["submit", "--python", "/nowhere/python", "train.py"], "no such program"),
    (["submit", "--gpsu", "2", "--", "true"], "did you mean"),
    (["submit", "missing.py"], "no script missing.py"),
    (["submit", "folder"], "is a directory"),
    (["submit", "python3 train.py"], "remove the quotes: gpq submit -- python3 train.py"),
    (["submit", "notes.txt"], "gpq submit -- notes.txt"),
    (["submit", "nothing"], "gpq submit -- nothing"),
    (["sumbit", "x"], "did you mean submit?"),
    (["kill", "4"], "`gpq cancel` does that"),
    (["delete", "4"], "`gpq cancel` does that"),
    (["queue"], "`gpq status` does that"),
    (["sbatch", "job.sh"], "`gpq submit` does that"),
    (["srun", "hostname"], "`gpq run` does that"),
    (["status", "--watch"], "`gpq top`"),
    (["cancel", "--all"], "`gpq cancel all`"),
    (["submit", "--wrap", "ls", "train.py"], "--wrap cannot be combined with a script"),
    (["submit", "--nodes=2", "--", "true"], "one server"),
    (["submit", "--dependency", "singleton", "--", "true"], "cannot wait for singleton"),
    (["submit", "--time", "1:30", "--", "true"], "the unit is missing"),
    (["import"], "missing command"),
    (["import", "slurm"], "missing argument"),
    (["import", "sge", "x"], "no such command 'sge'"),
    (["status", "--color", "pink"], "pink"),
    (["status", "--user"], "requires an argument"),
    (["cancel"], "missing"),
    (["cancel", "1", "--timeout", "5"], "use 5s, 5m or 5h"),
    (["top", "--interval", "0"], "out of range"),
    (["completion", "tcsh"], "tcsh"),
    (["demo", "--policy", "fastest"], "unknown policy `fastest`"),
    (["daemon", "restart"], "restart"),
    (["config", "check", "missing.toml"], "no file missing.toml"),
    (["--frobnicate"], "no option"),
    (["import", "slurm", "gone.sh"], "gone.sh: no such file"),
    (["import", "slurm", "job.sh", "gone.sh", "--submit"], "gone.sh: no such file"),
    (["import", "slurm", "folder"], "folder: it is a directory"),
    (["import", "slurm", "folder/"], "such as folder/*.sh"),
    (["import", "slurm", "/dev/null"], "/dev/null: it is not a regular file"),
    (["import", "slurm", "/proc/self/mem"], "it cannot be read (Input/output error)"),
    (["submit", "--sweep-file", "gone.csv", "--", "true"], "--sweep-file gone.csv: No such file"),
    (["submit", "--sweep-file", "folder", "--", "true"], "--sweep-file folder: Is a directory"),
    (["submit", "--cwd", "notes.txt", "--", "true"], "no such directory"),
    (["submit", "--python", "notes.txt", "train.py"], "no such program"),
    (["report", "--html", "folder"], "--html folder: cannot write there"),
    (["report", "--html", "gone/report.html"], "--html gone/report.html: cannot write there"),
    (["nodes", "add", "a", "-F", "gone"], "-F gone: no such file"),
    (["nodes", "add", "a", "-F", "folder"], "-F folder: it is a directory"),
    (["nodes", "add", "--from-ssh-config", "-F", "folder"], "-F folder: it is a directory"),
    (["nodes", "add", "a", "-F", "/proc/self/mem"], "it cannot be read (Input/output error)"),
    (["config", "check", "folder"], "folder: Is a directory"),
    (["submit", "--", "cat", "a\udcff.txt"], "`a\\xff.txt` contains a byte that is not UTF-8"),
    (["submit", "--sweep", "x=a,\udcff", "--", "echo", "{x}"], "`\\xff` contains a byte that is not UTF-8"),
    (["submit", "--env", "MODE=\udcff", "--", "true"], "the variable MODE contains a byte that is not UTF-8"),
    (["status", "\udcff"], "`\\xff` contains a byte that is not UTF-8"),
    (["show", "\udcff"], "`\\xff` contains a byte that is not UTF-8"),
    (["simulate", "gone.csv", "--traces", "gone"], "no folder gone"),
    (["simulate", "train.py", "--traces", "folder"], "folder has no measurements"),
    (["simulate", "train.py", "--traces", "folder", "--plot", "gone/a.svg"], "gone/a.svg: cannot write there"),
]


@pytest.mark.parametrize(
    ("argv", "said"), BAD, ids=[" ".join(argv)[:40].encode("unicode_escape").decode() for argv, _ in BAD]
)
def test_a_mistake_gets_one_line_and_a_hint_and_changes_nothing(
    call: Call, made: Made, home: Path, argv: list[str], said: str
) -> None:
    (home / "train.py").write_text("print('hello')\n")
    (home / "notes.txt").write_text("buy milk\n")
    (home / "folder").mkdir()
    (home / "job.sh").write_text("#!/bin/sh\n#SBATCH --gpus=1\n")
    answer = call(*argv)
    assert (answer.returncode, answer.stdout) == (2, ""), answer
    problem, *hint = answer.stderr.splitlines()
    assert problem.startswith("gpq: ")
    assert len(hint) == 1
    assert hint[0].startswith("hint: ")
    assert said.lower() in answer.stderr.lower()
    assert "\x1b" not in answer.stderr
    assert made.asked == []


def test_an_unreadable_script_is_named(gpq: Gpq, made: Made) -> None:
    answer = gpq("submit", "/proc/self/mem")  # even root cannot read the start of this file
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "cannot read /proc/self/mem: Input/output error" in answer.stderr
    assert made.asked == []


def test_errors_of_the_daemon_keep_their_code_and_hint(gpq: Gpq, made: Made) -> None:
    answer = gpq("show", "99")
    assert (answer.returncode, answer.stdout) == (4, "")
    assert answer.stderr == "gpq: there is no job 99\nhint: `gpq status` lists the jobs\n"


WITH_JSON = [["show", "99", "--json"], ["submit", "--json", "--gpus", "0", "--", "x"], ["status", "--json", "--nix"]]


@pytest.mark.parametrize("argv", WITH_JSON)
def test_errors_are_json_with_json_too(gpq: Gpq, made: Made, argv: list[str]) -> None:
    answer = gpq(*argv)
    assert answer.returncode in (2, 4)
    assert answer.stderr == ""
    assert set(json.loads(answer.stdout)) == {"error", "hint"}


def test_a_json_option_of_the_job_does_not_affect_gpq(gpq: Gpq, made: Made) -> None:
    answer = gpq("submit", "--gpus", "0", "--", "tool", "--json")
    assert (answer.returncode, answer.stdout) == (2, "")


@contextmanager
def answering(home: Path, line: bytes) -> Iterator[None]:
    """A socket that answers every request with the same line."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(home / "gpq.sock"))
        listener.listen(8)

        def serve() -> None:
            while True:
                try:
                    stream, _ = listener.accept()
                except OSError:
                    return
                with stream:
                    stream.recv(65536)
                    stream.sendall(line)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"hello\n", b"[]\n", b"{} {}\n", b"{"])
@pytest.mark.parametrize("argv", [["status"], ["show", "1"]])
def test_another_program_on_the_socket_gives_no_traceback(gpq: Gpq, home: Path, argv: list[str], line: bytes) -> None:
    with answering(home, line):
        answer = gpq(*argv)
    assert answer.returncode == 3
    assert answer.stderr.startswith("gpq: ")
    assert "Traceback" not in answer.stderr


def test_an_invalid_configuration_is_reported_with_line_and_column(gpq: Gpq, home: Path) -> None:
    (home / "config.toml").write_text("interval = 5.0\npolicy = goodput\n")
    listed = gpq("config", "policies")
    assert (listed.returncode, len(listed.stdout.splitlines()) >= len(POLICIES)) == (0, True)
    assert listed.stderr.startswith("note: no policy is marked: ")
    assert "line 2, column 10" in listed.stderr
    answer = gpq("config", "check")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "line 2, column 10" in answer.stderr
    assert "gpq config check" not in answer.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('policy = "best"', "unknown policy `best` (at line 2, column 1)"),
        (
            "[nodes.local]\ncores = [0, 99999]",
            "nodes.local.cores: gpq may not use core 99999 here (at line 3, column 1)",
        ),
    ],
)
def test_config_check_also_finds_values_that_only_this_server_or_version_refuses(
    gpq: Gpq, home: Path, line: str, said: str
) -> None:
    (home / "config.toml").write_text(f"interval = 5.0\n{line}\n")
    answer = gpq("config", "check")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert said in answer.stderr
    assert answer.stderr.count("\n") == 2


def test_the_fast_path_uses_the_protocol_version_of_the_messages() -> None:
    assert quick.VERSION == protocol.VERSION


@pytest.mark.parametrize("value", [{"a": [1, True, "ü\n\x00\u2028"], "b": {"c": ""}}, {}, {"x": [[], [0, -5]]}])
def test_the_fast_path_writes_and_reads_valid_json(value: dict[str, object]) -> None:
    assert json.loads(quick.encode(value)) == value
    assert quick.decode(quick.encode(value).encode()) == value


def test_a_bug_shows_its_traceback(gpq: Gpq, home: Path) -> None:
    with answering(home, b'{"v":1,"program":"0","ok":true,"result":{"jobs":[{"id":1}]}}\n'):
        answer = gpq("status")
    assert answer.returncode == 1
    assert "KeyError" in answer.stderr


# One example of each kind of output: the fast path's help, its table and its JSON, typer's help, a picture, an error as
# JSON, a file, CSV.
EVERYWHERE = [["--help"], ["status"], ["status", "--json"], ["submit", "--help"], ["top", "--once"], ["show", "99", "--json"],
              ["completion", "bash"], ["report", "--csv"]]  # fmt: skip


@pytest.mark.parametrize("argv", EVERYWHERE, ids=" ".join)
@pytest.mark.parametrize("buffering", ["", "1"])
def test_output_to_a_full_disk_gives_one_line(gpq: Gpq, made: Made, argv: list[str], buffering: str) -> None:
    with open("/dev/full", "w") as full:
        said = subprocess.run(
            [sys.executable, "-m", "gpq", *argv], env={**gpq.environment, "PYTHONUNBUFFERED": buffering}, stdout=full,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (said.returncode, said.stderr) == (1, "gpq: cannot write the output: No space left on device\n")


def test_a_disk_that_is_full_elsewhere_is_not_blamed_on_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(argv: list[str]) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fast_path, "_answer", fails)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(OSError, match="No space"):
        fast_path.run(["status"])


def test_no_arguments_show_the_commands(gpq: Gpq) -> None:
    said = gpq()
    assert (said.returncode, said.stderr) == (0, "")
    assert "submit" in said.stdout
    assert "`gpq --help` lists all commands" in said.stdout
    assert len(said.stdout.splitlines()) < 20
    assert len(gpq("--help").stdout) > 2 * len(said.stdout)


def test_synonyms_name_existing_commands() -> None:
    assert set(app.SYNONYMS) <= set(names())
    assert not set(" ".join(app.SYNONYMS.values()).split()) & set(names())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run.sh"], "did you mean `./run.sh`?"),
        (["./nosuch.sh"], "this machine has no command `./nosuch.sh`"),
        (["python3 train.py --lr 1"], "remove the quotes if this is a command with arguments"),
        (["./plain.sh"], "is not executable: run `chmod +x ./plain.sh`"),
        (["./run.sh"], ""),
        (["sh", "-c", "exit 1"], ""),
        (["/bin/sh"], ""),
    ],
)
def test_a_missing_command_gets_a_note(gpq: Gpq, made: Made, home: Path, words: list[str], said: str) -> None:
    (home / "run.sh").write_text("#!/bin/sh\n")
    (home / "run.sh").chmod(0o755)
    (home / "plain.sh").write_text("#!/bin/sh\n")
    answer = gpq("submit", "--", *words)
    assert answer.returncode == 0
    assert said in answer.stderr
    assert bool(answer.stderr) == bool(said)
    assert len(made.asked) == 1


def test_submit_accepts_the_short_help_option_too(gpq: Gpq) -> None:
    short = gpq("submit", "-h")
    assert (short.returncode, short.stdout) == (0, gpq("submit", "--help").stdout)
    assert gpq("cancel", "--help").stdout.count("default: 3m") == 1
