"""`gpq top` with keys on real terminals: what it shows, requests and sends, and how it leaves the terminal."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpq.rpc import requests
from tests.cli.conftest import Gpq, submitted
from tests.cli.served import EVIL, Made, job, serving
from tests.cli.terminals import Terminal, stopped
from tests.support.waiting import wait_until

COLOUR = re.compile(rb"\x1b\[(?:[0-9;]*;)?[34][0-7](?:;[0-9;]*)?m")
CUP_AND_DIRECTION = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][AB0]|[=>78])|[\r\n\x08\x0f]")


@pytest.fixture
def several(home: Path) -> Iterator[Made]:
    rows = [
        job(1, goodput=50.0), job(2, "pending"), job(3, user="bob", goodput=200.0), job(4, "held"), job(5, goodput=100.0),
    ]  # fmt: skip
    with serving(home, rows) as made:
        yield made


def top(gpq: Gpq, *argv: str, columns: int = 80, lines: int = 24, **environ: str) -> Terminal:
    return Terminal({**gpq.environment, **environ}, "top", *argv, columns=columns, lines=lines)


def listed(terminal: Terminal) -> list[int]:
    """The ids in the order on the screen."""
    return [int(found[1]) for row in terminal.rows if (found := re.match(r"[│|] [> ] +(\d+) +train-", row))]


def cursor(terminal: Terminal) -> str:
    return next((row for row in terminal.rows if re.match(r"[│|] > ", row)), "")


def asked(made: Made, kind: type[requests.Request]) -> list[requests.Request]:
    return [each for each in made.asked if isinstance(each, kind)]


def test_the_cursor_moves_and_columns_sort_both_ways(gpq: Gpq, several: Made) -> None:
    with top(gpq) as terminal:
        terminal.until(lambda seen: listed(seen) == [1, 3, 5, 2, 4], "running ones first")
        assert terminal.highlighted() == [cursor(terminal)]
        for keys, chosen in (("j", 3), ("\x1b[B", 5), ("G", 4), ("k", 2), ("\x1b[A\x1bOA", 3), ("g", 1)):
            terminal.press(keys)
            terminal.until(lambda seen, job=chosen: f"train-{job} " in cursor(seen), f"the cursor on {chosen}")
        terminal.press("sssssss")
        terminal.shows("by GOODPUT", "GOODPUT↑")
        terminal.until(lambda seen: listed(seen) == [1, 5, 3, 2, 4], "those that have none last")
        terminal.press("r")
        terminal.until(lambda seen: listed(seen) == [3, 5, 1, 2, 4], "the reverse order")
        assert "train-1" in cursor(terminal), "the cursor stays on its job"
        terminal.press("q")
        assert terminal.end() == 0
    assert b"\x1b[?1049l" in terminal.written


def test_filters_work_as_in_status_and_an_invalid_one_is_reported(gpq: Gpq, several: Made) -> None:
    with top(gpq, "goodput>60") as terminal:
        terminal.until(lambda seen: listed(seen) == [3, 5], "the jobs that match the arguments")
        terminal.press("/\x15user=alice sort=-id\r")
        terminal.until(lambda seen: listed(seen) == [5, 4, 2, 1], "in the order of the query")
        assert "/user=alice sort=-id" in terminal.text
        terminal.press("/\x15usr=alice\r")
        terminal.shows("jobs have no `usr` (did you mean user")
        terminal.until(lambda seen: listed(seen) == [5, 4, 2, 1], "the previous filter stays")
        terminal.press("/\x15name~'train\r")
        terminal.shows("a quote is not closed")
        terminal.press("/3\x7f\x7f\x1b")
        terminal.press("\x1b")
        terminal.until(lambda seen: listed(seen) == [1, 3, 5, 2, 4], "all jobs again")
        terminal.press("/name=nobody\r")
        terminal.shows("no job matches")
        terminal.press("c\r")
        terminal.press("?")
        terminal.shows("asks first")
    assert not asked(several, requests.Cancel)
    refused = gpq("top", "usr=alice")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "did you mean user" in refused.stderr


def test_the_first_line_shows_a_filter_and_still_counts_all_jobs(gpq: Gpq, several: Made) -> None:
    with top(gpq, columns=100) as terminal:
        terminal.shows("3 running, 1 pending, 1 held")
        assert "shown" not in terminal.rows[0]
        terminal.press("/user=bob\r")
        terminal.until(lambda seen: "1 of 5 jobs shown" in seen.rows[0], "a filter is on")
        assert listed(terminal) == [3]
        assert "3 running, 1 pending, 1 held" in terminal.rows[0]
        terminal.press("\x1b")
        terminal.until(lambda seen: "shown" not in seen.rows[0], "the filter is off")
    once = gpq("top", "--once", "user=bob", COLUMNS="100").stdout.splitlines()[0]
    assert "3 running, 1 pending, 1 held  1 of 5 jobs shown" in once
    nobody = gpq("top", "--once", "user=nobody", COLUMNS="100").stdout
    assert "0 of 5 jobs shown" in nobody
    assert "no live job matches the filter" in nobody
    assert "states" not in gpq("top", "--json", "user=bob").stdout


def test_a_note_disappears_with_the_next_key(gpq: Gpq, several: Made) -> None:
    with top(gpq) as terminal:
        terminal.shows("train-1")
        terminal.press("/\x15usr=alice\r")
        terminal.shows("jobs have no `usr`")
        terminal.press("j")
        terminal.shows_no_more("jobs have no")
        assert terminal.rows[-1].endswith("q quit")


def test_cancelling_an_ended_job_asks_nothing(gpq: Gpq, home: Path) -> None:
    with serving(home, [job(1, "failed", exit_status=1), job(2)]) as made, top(gpq) as terminal:
        terminal.shows("train-1")
        terminal.press("Gc")
        terminal.shows("job 1 has already ended (failed)")
        terminal.press("y")
        terminal.shows_no_more("has ended")
        terminal.press("gc")
        terminal.shows("cancel job 2 train-2?")
        terminal.press("y")
        terminal.shows("job 3 is being cancelled")  # the fake daemon always answers with this id
        made.rows.append(job(3, "cancelled"))
        terminal.shows("job 3 cancelled")
        terminal.shows_no_more("being cancelled")
    assert asked(made, requests.Cancel) == [requests.Cancel(["2"], wait=0.0)]


def test_the_list_says_why_a_job_is_pending_and_omits_empty_columns(gpq: Gpq, home: Path) -> None:
    plain: dict[str, object] = dict.fromkeys(("goodput", "throughput", "efficiency", "progress", "eta_seconds"))
    rows = [job(1, total_batch=0, **plain), job(2, "pending"), job(3, "failed", reason="", exit_status=7)]
    with serving(home, rows), top(gpq) as terminal:
        terminal.shows("waits for 2 GPUs: 8 in use", "exit 7")
        assert terminal.row("REASON").split()[1:-1] == [
            "ID",
            "NAME",
            "USER",
            "STATE",
            "GPUS",
            "RESTARTS",
            "PRIO",
            "REASON",
        ]
        terminal.resize(40, 24)
        terminal.shows_no_more("REASON")


def test_a_job_opens_with_its_curves_reasons_and_log(gpq: Gpq, several: Made) -> None:
    with top(gpq) as terminal:
        terminal.shows("train-1")
        terminal.press("\r")
        terminal.shows("job 1 train-1 of alice", "loss", "2.24 -> 0.11", "goodput by number of GPUs", "<- now")
        terminal.shows("-- log of attempt 1 on a", "first")
        for _ in range(12):
            terminal.press("\x1b[B")
        terminal.shows("straggler", "rank 1 is slow")
        terminal.press("ll")
        terminal.shows_no_more("-- log of")
        terminal.press("\x1b[F")
        terminal.shows("train.py --epochs 10")
        terminal.press("q")
        terminal.until(lambda seen: len(listed(seen)) == 5, "the list again")
        terminal.press("n")
        terminal.shows("pid 200  bob", "not gpq's", "job 1 of alice", "cores")
        terminal.press("\x1bq")
        assert terminal.end() == 0


def test_only_the_y_key_cancels(gpq: Gpq, several: Made) -> None:
    with top(gpq) as terminal:
        terminal.shows("train-1")
        for keys in ("cn", "c\r", "c\x1b", "cq"):
            terminal.press(keys[0])
            terminal.shows("cancel job 1 train-1? y: yes")
            terminal.press(keys[1])
            terminal.shows("nothing was cancelled")
        assert not asked(several, requests.Cancel)
        terminal.press("c")
        terminal.shows("cancel job 1 train-1?")
        terminal.press("y")
        wait_until(lambda: asked(several, requests.Cancel), "a request to cancel")
        terminal.shows("job 3 is being cancelled")  # the fake daemon answers with this id
        terminal.press("Gc")
        terminal.shows("cancel job 4 train-4?")
        terminal.press("yq")  # leaving right after the `y` still cancels the job
        assert terminal.end() == 0
    assert asked(several, requests.Cancel) == [requests.Cancel(["1"], wait=0.0), requests.Cancel(["4"], wait=0.0)]


def test_keys_hold_release_and_prioritise_jobs(gpq: Gpq, several: Made) -> None:
    with top(gpq) as terminal:
        terminal.shows("train-4")
        terminal.press("h")
        terminal.shows("job 1 will be held")
        terminal.press("Gh")
        terminal.shows("job 1 released")  # the fake daemon always answers with this id
        terminal.press("\x1b[H+++-")
        wait_until(lambda: len(asked(several, requests.Edit)) == 4, "all four requests")
    assert asked(several, requests.Hold) == [requests.Hold(["1"])]
    assert asked(several, requests.Release) == [requests.Release(["4"])]
    assert [each.changes for each in asked(several, requests.Edit) if isinstance(each, requests.Edit)][-1] == {
        "priority": 2
    }


def test_a_resized_terminal_is_redrawn(gpq: Gpq, home: Path) -> None:
    with serving(home, [job(number) for number in range(1, 31)]), top(gpq) as terminal:
        terminal.shows("fairness", "train-1 ")
        terminal.press("G")
        terminal.shows("train-30")
        terminal.resize(40, 10)
        terminal.until(
            lambda seen: seen.rows[1].startswith("╭─ goodput") and seen.rows[9].endswith("q quit"), "10 lines"
        )
        assert "> " in terminal.row("train-30")
        assert terminal.rows[8] == "╰" + 38 * "─" + "╯"
        terminal.resize(80, 24)
        terminal.shows("fairness", "GPUs", "train-30")
        assert "> " in terminal.row("train-30")
        terminal.resize(20, 3)
        terminal.resize(200, 60)
        terminal.shows("PRIO", "train-1 ", "train-30")
        terminal.press("q")
        assert terminal.end() == 0


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "vt100"}])
def test_the_cursor_and_states_are_visible_without_colour(gpq: Gpq, several: Made, environ: dict[str, str]) -> None:
    with top(gpq, **environ) as terminal:
        terminal.until(lambda seen: len(listed(seen)) == 5, "the list")
        terminal.press("j")
        terminal.until(lambda seen: "train-3" in cursor(seen), "the cursor on 3")
        assert terminal.highlighted() == [cursor(terminal)]
        assert re.search(r"running +2", terminal.row("train-1"))
        assert "held" in terminal.row("train-4")
        terminal.press("\r")
        terminal.shows("job 3 train-3", "first")
        terminal.press("qq")
        assert terminal.end() == 0
    assert not COLOUR.search(terminal.written)


def test_states_have_colours(gpq: Gpq, several: Made) -> None:
    with top(gpq) as terminal:
        terminal.until(lambda seen: len(listed(seen)) == 5, "the list")
    assert COLOUR.search(terminal.written)


@pytest.mark.parametrize(
    ("environ", "ascii_only"),
    [
        ({"LANG": "C", "LC_ALL": "C"}, False),
        ({"LANG": "en_XX.UTF-8"}, False),
        ({"PYTHONIOENCODING": "ascii"}, True),
        ({"TERM": "nobody-knows-it"}, False),
    ],
)
def test_top_works_in_any_locale_and_on_unknown_terminals(
    gpq: Gpq, home: Path, environ: dict[str, str], ascii_only: bool
) -> None:
    with serving(home, [job(1, name="Grüße-漢字"), job(2)]), top(gpq, **environ) as terminal:
        terminal.shows("train-2", "fairness")
        terminal.press("n")
        terminal.shows("pid 200  bob")
        terminal.press("qq")
        assert terminal.end() == 0
    assert terminal.written.isascii() is ascii_only


def test_control_codes_from_jobs_have_no_effect(gpq: Gpq, home: Path) -> None:
    rows = [job(1, name=EVIL, user=EVIL, reason=EVIL, command=EVIL), job(2, "failed" + EVIL)]
    with serving(home, rows) as made:
        made.logs[1] = b"one " + EVIL.encode() + b" \x1b[31mred\x1b[0m\rbar 50%\rbar 60%\nlast\x00\x07\n"
        with top(gpq, columns=200, lines=60) as terminal:
            terminal.shows(r"\x1b]52;c;")
            terminal.press("\r")
            terminal.shows("bar 60%", r"last\x00\x07", r"\u202egpj.exe")
            assert "bar 50%" not in terminal.text
            terminal.press("q")
            terminal.press("c")
            terminal.shows("cancel job 1")
            terminal.press("n")
            terminal.press("/" + "name~x[red]\r")
            terminal.shows("/name~x[red]")
            terminal.press("q")
            assert terminal.end() == 0
    text = CUP_AND_DIRECTION.sub("", terminal.written.decode())
    assert text.isprintable(), sorted({char for char in text if not char.isprintable()})


def ended_as_found(terminal: Terminal) -> None:
    assert b"\x1b[?1049l" in terminal.written
    assert terminal.after == terminal.before


def test_sigterm_leaves_the_terminal_as_it_was(gpq: Gpq, several: Made) -> None:
    with top(gpq) as terminal:
        terminal.shows("train-1")
        assert terminal.modes() != terminal.before
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.end() == -signal.SIGTERM
        ended_as_found(terminal)


def test_ctrl_c_also_leaves_the_terminal_as_it_was(gpq: Gpq, several: Made) -> None:
    with top(gpq) as terminal:
        terminal.shows("train-1")
        terminal.press("\x03")
        assert terminal.end() == 130
        ended_as_found(terminal)


def test_ctrl_z_returns_the_terminal_to_the_shell_and_fg_redraws(gpq: Gpq, several: Made) -> None:
    environ = {**gpq.environment, "PS1": "prompt$ ", "ENV": ""}
    with Terminal(environ, shell=True) as terminal:
        terminal.shows("prompt$")
        terminal.press("gpq top\n")
        terminal.shows("fairness", "train-5")
        children = Path(f"/proc/{terminal.pid}/task/{terminal.pid}/children")
        child = int(children.read_text().split()[0])
        terminal.press("\x1a")
        wait_until(lambda: stopped(child), "the process is stopped")
        terminal.press("stty -a | tr ';' '\\n' | grep -w -o -e '-*icanon' -e '-*echo' | tr '\\n' '+'\n")
        terminal.until(lambda seen: "icanon+echo+" in seen.text and "-icanon" not in seen.text, "a normal terminal")
        terminal.resize(60, 20)
        terminal.press("fg\n")
        terminal.until(
            lambda seen: seen.rows[0].startswith("gpq ") and seen.rows[19].endswith("q quit"), "a complete new picture"
        )
        terminal.shows("train-1", "train-3", "1-4 of 5")
        terminal.press("q")
        terminal.shows("prompt$")
        terminal.press("exit\n")
        terminal.end()


def test_top_shows_a_real_jobs_growing_log_and_its_end(queue: Gpq, tmp_path: Path) -> None:
    script = f"echo begun; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; echo more; sleep 1000"
    job = submitted(queue, "--name", "growing", "--", "sh", "-c", script)
    submitted(queue, "--hold", "--name", "waits", "--", "true")
    with top(queue) as terminal:
        terminal.until(
            lambda seen: "running" in seen.row("growing") if "growing" in seen.text else False, "the job runs"
        )
        terminal.press("\r")
        terminal.shows(f"job {job} growing", "-- log of attempt 1 on local", "begun")
        assert "more" not in terminal.rows[-3]
        (tmp_path / "go").touch()
        terminal.until(lambda seen: "more" in seen.rows, "the new line of the log")
        terminal.press("+")
        terminal.shows("priority 0 -> 1")
        terminal.press("c")
        terminal.shows(f"cancel job {job} growing?")
        terminal.press("y")
        terminal.shows(f"job {job} growing of root" if os.getuid() == 0 else f"job {job} growing", "cancelled")
        terminal.press("\x1b")
        terminal.shows("waits", "held")
        terminal.until(
            lambda seen: re.search(r"growing \w+ +cancelled", seen.row("growing")), "cancelled, not being cancelled"
        )
        terminal.press("gh")  # the waiting job is first now
        terminal.until(lambda seen: "completed" in seen.row("waits"), "the job was released and ran")
        terminal.press("q")
        assert terminal.end() == 0
    row = json.loads(queue("status", job, "--json").stdout)["jobs"][0]
    assert (row["state"], row["priority"]) == ("cancelled", 1)


def test_an_idle_second_sends_few_bytes(queue: Gpq) -> None:
    for name in ("one", "two", "three"):
        submitted(queue, "--name", name, "--", "sleep", "1000")
    with top(queue) as terminal:
        terminal.shows("three", "starts with")
        clocks = {terminal.rows[0][:12]}
        terminal.until(lambda seen: clocks.add(seen.rows[0][:12]) or len(clocks) > 2, "the clock runs")
        begin, clocks = len(terminal.written), set()
        terminal.until(lambda seen: clocks.add(seen.rows[0][:12]) or len(clocks) > 5, "five seconds")
        sent = len(terminal.written) - begin
    assert sent < 5 * 300, sent  # a whole picture has 3,000 bytes, and a second usually takes 31


def test_top_waits_for_a_daemon_that_died(queue: Gpq) -> None:
    home = queue.home
    submitted(queue, "--name", "sturdy", "--", "sleep", "1000")
    with top(queue) as terminal:
        terminal.until(lambda seen: "running" in seen.text, "the job runs")
        (home / "config.toml").rename(home / "kept.toml")
        (home / "config.toml").write_text("grace = soon\n")
        os.kill(json.loads(queue("daemon", "status", "--json").stdout)["pid"], signal.SIGKILL)
        terminal.until(
            lambda seen: re.match(r"gpq as of \d+s ago: .*config.toml", seen.rows[0]), "the reason in the first line"
        )
        assert "sturdy" in terminal.text
        terminal.press("j?")
        terminal.shows("asks first")
        terminal.press("q")
        (home / "kept.toml").rename(home / "config.toml")
        terminal.until(lambda seen: "policy" in seen.rows[0], "the next one answers")
        terminal.until(lambda seen: "running" in seen.row("sturdy"), "its job runs on")
        terminal.until(lambda seen: seen.rows[1].startswith("╭─ GPUs"), "the whole picture")
        terminal.press("q")
        assert terminal.end() == 0
