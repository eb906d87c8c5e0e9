"""`gpq status` on the fast path, at every width and in every encoding. The terminal never obeys text from a job."""

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from gpq.rpc import protocol, requests
from gpq.views.queue import TABLE
from tests.cli.conftest import Gpq
from tests.cli.served import EVIL, NOW, Made, job, serving

FIRST = {
    "ID": "1", "NAME": "train-1", "USER": "alice", "STATE": "running", "GPUS": "a:0-1", "BATCH": "256", "GOODPUT": "123.4",
    "SPEEDUP": "1.25x", "DONE": "42%", "ETA": "1h02m", "RUN": "1h23m", "AGE": "1h30m",
}  # fmt: skip
SECOND = {
    "STATE": "pending",
    "GPUS": "-",
    "SPEEDUP": "-",
    "RUN": "-",
    "AGE": "1h30m",
    "REASON": "waits for 2 GPUs: 8 in use",
}


def test_the_table_shows_who_has_which_gpus(gpq: Gpq, made: Made) -> None:
    said = gpq("status", COLUMNS="150")
    assert said.returncode == 0, said.stderr
    title, first, second, hidden = said.stdout.splitlines()
    titles, *rows = [re.split("  +", line.strip()) for line in (title, first, second)]
    assert dict(zip(titles, rows[0], strict=False)).items() >= FIRST.items()
    assert dict(zip(titles, rows[1], strict=True)).items() >= SECOND.items()
    assert hidden == "and 7 more that ended: gpq status --all"


def test_the_hint_about_logs_of_failed_jobs_is_shown_once_and_only_to_people(gpq: Gpq, home: Path) -> None:
    failed = [
        job(1, "failed", exit_status=1, started_at=NOW),
        job(2),
        job(3, "failed", exit_status=1),
    ]  # job 3 never ran because its server refused it
    with serving(home, failed) as made:
        assert gpq("status", COLUMNS="80").stdout.splitlines()[-1] == "why job 1 failed: gpq logs 1"
        assert gpq("show", "1").stdout.splitlines()[-1] == "why it failed: gpq logs 1"
        assert "gpq logs" not in gpq("show", "3").stdout + gpq("show", "2").stdout
        made.rows.append(job(4, "failed", exit_status=1, started_at=NOW))
        assert gpq("status").stdout.count("gpq logs") == 1
        assert gpq("status").stdout.endswith("why a job failed: gpq logs JOB\n")
        assert "gpq logs" not in gpq("status", COLUMNS="20").stdout
        assert "gpq logs" not in gpq("status", "--json").stdout + gpq("show", "1", "--json").stdout


def test_age_counts_from_the_submission_and_run_is_the_run_time(gpq: Gpq, home: Path) -> None:
    times = {"age_seconds": 605.0, "run_seconds": 2.0}
    rows = [
        job(1, "completed", reason="", started_at=NOW, **times),
        job(2, started_at=NOW, **times),
        job(3, "pending", **times),
    ]
    with serving(home, rows):
        title, *drawn, _ = gpq("status", COLUMNS="200").stdout.splitlines()
    at = title.index("  RUN") + 5, title.index("  AGE") + 5
    found = [[line[:end].split()[-1] for end in at] for line in drawn]
    assert found == [["2s", "10m05s"], ["2s", "10m05s"], ["-", "10m05s"]]


@pytest.mark.parametrize("columns", [10, 20, 40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(gpq: Gpq, made: Made, columns: int) -> None:
    said = gpq("status", "--recent", "20", COLUMNS=str(columns))
    rows = [line for line in said.stdout.splitlines() if not line.startswith("and ")]
    assert len(rows) == 3
    assert max(map(len, rows)) <= columns


def test_json_is_exactly_the_daemons_result(gpq: Gpq, made: Made) -> None:
    said = gpq("status", "--json")
    assert (said.returncode, said.stderr) == (0, "")
    answer = json.loads(said.stdout)
    assert answer["schema"] == protocol.SCHEMA
    assert [row["id"] for row in answer["jobs"]] == [1, 2]
    assert answer["jobs"][0]["placement"] == [{"node": "a", "devices": ["GPU-0", "GPU-1"], "indices": [0, 1]}]


def test_options_mean_the_same_on_the_fast_path_and_with_typer(gpq: Gpq, made: Made) -> None:
    assert gpq("status", "3-7", "@", "-u", "bob", "--all").returncode == 0
    assert gpq("status", "3-7", "@", "-u", "bob", "--all", "--recent", "20").returncode == 0
    assert gpq("status", "--state", "running", "--state", "held").returncode == 0
    assert gpq("status", "-a").returncode == 0
    assert made.asked == [
        requests.Status(["3-7", "@"], recent=TABLE, user="bob"),
        requests.Status(["3-7", "@"], recent=TABLE, user="bob"),
        requests.Status([], states=["running", "held"]),
        requests.Status([], recent=TABLE),
    ]


def test_the_fast_path_imports_nothing_slow(gpq: Gpq, made: Made) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "gpq", "status"]
    said = subprocess.run(command, env=gpq.environment, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in said.stderr.splitlines() if line.startswith("import time:")}
    assert "gpq.cli.jobs.status_fast" in imported
    assert not imported & {
        "typer",
        "rich",
        "msgspec",
        "dataclasses",
        "argparse",
        "re",
        "json",
        "socket",
        "typing",
        "subprocess",
    }


ENCODINGS = [{"LANG": "C", "LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_any_encoding_works(gpq: Gpq, home: Path, encoding: dict[str, str]) -> None:
    environ = {**gpq.environment, **encoding, "COLUMNS": "70"}
    with serving(home, [job(1, "pending", name="nom", reason="Grüße … 漢字")]):
        for argv in (["status"], ["status", "--json"], ["show", "1"], ["top", "--once"]):
            said = subprocess.run([sys.executable, "-m", "gpq", *argv], env=environ, capture_output=True, check=False)
            assert (said.returncode, said.stderr) == (0, b""), argv
            assert b"nom" in said.stdout or argv == ["top", "--once"]


def test_text_from_a_job_is_escaped(gpq: Gpq, home: Path) -> None:
    with serving(home, [job(1, name=EVIL, user=EVIL, reason=EVIL, state="pending")]):
        for argv in (
            ["status"],
            ["status", "--recent", "5"],
            ["show", "1"],
            ["why", EVIL],
            ["wait", "1", "--timeout", "1s"],
        ):
            said = gpq(*argv)
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", said.stdout + said.stderr), argv
        assert r"\x1b]52;c;" in gpq("status").stdout
        assert r"\u202e" in gpq("status").stdout
        assert gpq("status", "--json").stdout.isascii()


def test_a_closed_pipe_is_no_error(gpq: Gpq, home: Path) -> None:
    with serving(home, [job(number) for number in range(1, 1000)]):
        for command in ("status", "status --json", "status --recent 20", "show 1", "top --once"):
            said = subprocess.run(
                ["bash", "-c", f"{sys.executable} -m gpq {command} | head -c 10; exit ${{PIPESTATUS[0]}}"],
                env=gpq.environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert (said.returncode, said.stderr) == (0, ""), command


def on_terminal(gpq: Gpq, *argv: str, keys: bytes = b"", **environ: str) -> bytes:
    """What the command writes to a terminal of 80 columns. `keys` are pressed after its first output."""
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    process = subprocess.Popen(
        [sys.executable, "-m", "gpq", *argv], env={**gpq.environment, "COLUMNS": "80", "LINES": "24", **environ},
        stdin=slave, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    written = b""
    while True:
        readable, _, _ = select.select([master], [], [], 60)
        assert readable, written
        try:
            piece = os.read(master, 65536)
        except OSError:  # EIO: the other end is closed
            break
        if not piece:
            break
        written += piece
        if keys and b"goodput" in written:
            os.write(master, keys)
            keys = b""
    os.close(master)
    assert process.wait(60) == 0, written
    return written


def test_only_terminals_without_no_color_get_colour(gpq: Gpq, made: Made) -> None:
    green = b"\x1b[32mrunning"
    assert green in on_terminal(gpq, "status")
    assert b"\x1b[" not in on_terminal(gpq, "status", NO_COLOR="1")
    assert b"\x1b[" not in on_terminal(gpq, "status", TERM="dumb")
    assert b"\x1b[" not in on_terminal(gpq, "status", "--color", "never")
    assert "\x1b[" not in gpq("status").stdout
    assert green.decode() in gpq("status", "--color=always").stdout
    assert green.decode() in gpq("status", "--color", "always", NO_COLOR="1").stdout


def test_logs_on_a_terminal_keep_colours_and_escape_other_codes(gpq: Gpq, made: Made) -> None:
    written = on_terminal(gpq, "logs", "1")
    assert b"\x1b[31mred\x1b[0m" in written
    assert b"\x1b]52" not in written
    assert b"\\x1b]52;c;" in written
    assert b"\x1b]52" in on_terminal(gpq, "logs", "1", "--raw")


def test_top_fills_the_terminal_and_q_ends_it(gpq: Gpq, made: Made) -> None:
    written = on_terminal(gpq, "top", "--interval", "60", keys=b"q")
    assert written.startswith(b"\x1b[?1049h")  # the alternate screen, which it leaves at the end
    assert b"\x1b[?1049l" in written
    for word in (b"GPUs", b"goodput", b"fairness", b"latest changes"):
        assert word in written
    assert not re.search(rb"\x1b\[[0-9;]*3[0-9]m", on_terminal(gpq, "top", keys=b"q", NO_COLOR="1"))
