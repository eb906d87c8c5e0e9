"""`gpq history` and `gpq report` on the command line: what they request, print, write and refuse."""

from __future__ import annotations

import csv
import io
import json
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gpq.rpc import protocol, requests
from tests.cli.conftest import Call, Gpq
from tests.cli.jobs.test_live import ok, wait_for_state
from tests.cli.served import Made

EMPTY = "no job used a GPU, waited or ended in this time"


def test_history_sends_the_filters_that_the_user_typed(gpq: Gpq, made: Made) -> None:
    ok(
        gpq,
        "history",
        "train",
        "3-7",
        "-u",
        "ana",
        "-s",
        "failed",
        "-s",
        "timeout",
        "--since",
        "7d",
        "--until",
        "now",
        "-n",
        "5",
    )
    [asked] = made.asked
    assert isinstance(asked, requests.History)
    assert (asked.jobs, asked.user, asked.states, asked.limit) == (["train", "3-7"], "ana", ["failed", "timeout"], 5)
    assert asked.since is not None
    assert asked.until is not None
    assert asked.until - asked.since == pytest.approx(7 * 86400, abs=5)


def test_history_is_a_table_of_the_latest_jobs_or_all_jobs_as_csv_and_json(gpq: Gpq, made: Made) -> None:
    table = ok(gpq, "history")
    assert table.splitlines()[0].split()[:4] == ["ID", "NAME", "USER", "STATE"]
    assert "39 more ended earlier: gpq history -n 42" in table
    rows = list(csv.DictReader(io.StringIO(ok(gpq, "history", "--csv"))))
    told = json.loads(ok(gpq, "history", "--json"))
    assert told["schema"] == protocol.SCHEMA
    assert [int(row["id"]) for row in rows] == [row["id"] for row in told["jobs"]] == [1, 2, 3]
    assert list(rows[0]) == list(told["jobs"][0])
    assert [each.limit for each in made.asked if isinstance(each, requests.History)] == [20, 0, 0]


def test_report_groups_by_user_by_default(gpq: Gpq, made: Made) -> None:
    assert "USER" in ok(gpq, "report")
    rows = list(csv.DictReader(io.StringIO(ok(gpq, "report", "--by", "job", "--csv", "--since", "2026-03-01"))))
    assert [row["key"] for row in rows] == ["1", "2"]
    assert json.loads(ok(gpq, "report", "--by", "day", "--json"))["by"] == "day"
    since = datetime(2026, 3, 1).timestamp()
    assert [each.by for each in made.asked if isinstance(each, requests.Report)] == ["user", "job", "day"]
    assert [each.since for each in made.asked if isinstance(each, requests.Report)] == [None, since, None]


def test_the_page_is_written_and_stdout_stays_free(gpq: Gpq, made: Made, home: Path) -> None:
    assert ok(gpq, "report", "--html", "page.html") == "wrote page.html\n"
    assert "<!doctype html>" in (home / "page.html").read_text()
    (home / "page.html").unlink()
    assert json.loads(ok(gpq, "report", "--by", "job", "--html", "page.html", "--json"))["by"] == "job"
    assert "By job" in (home / "page.html").read_text()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["history", "--since", "soon"], "invalid --since 'soon': expected a time"),
        (["report", "--since", "2026-13-01"], "invalid --since '2026-13-01': expected a time"),
        (["report", "--until", "7"], "invalid --until '7': expected a time"),
        (["history", "--since", "1d", "--until", "2d"], "--until 2d is not after --since 1d"),
        (["history", "-n", "0"], "--number must be 1 or more"),
        (["history", "--csv", "--json"], "--csv and --json cannot be combined"),
        (["report", "--csv", "--json"], "--csv and --json cannot be combined"),
        (["report", "--by", "week"], "week"),
        (["report", "--html", "none/page.html"], "--html none/page.html: cannot write there"),
        (["report", "--html", "."], "--html .: cannot write there"),
    ],
)
def test_a_mistake_gets_one_line_and_a_hint(call: Call, made: Made, argv: list[str], said: str) -> None:
    done = call(*argv)
    assert (done.returncode, done.stdout or "") == (2, "") or "--json" in argv
    assert done.returncode == 2
    words = done.stderr or done.stdout
    assert said in words, words
    assert "hint" in words
    assert not made.asked


def test_a_daemon_reports_what_its_jobs_used(live: Gpq, call: Call) -> None:
    assert ok(call, "history") == "no jobs ended in this time\n"
    assert ok(call, "report").splitlines()[-1] == EMPTY
    assert ok(call, "report", "--csv").count("\n") == 1
    assert ok(call, "history", "--csv").count("\n") == 1
    assert json.loads(ok(call, "report", "--by", "day", "--json"))["rows"] == []
    begin = time.time()
    ok(live, "submit", "--name", "one", "--wait", "--", "sleep", "1")
    assert live("submit", "--name", "two", "--gpus", "2", "--wait", "--", "sh", "-c", "exit 3").returncode == 3
    ok(live, "submit", "--", "sleep", "1000")
    wait_for_state(live, "3", "running")
    took = time.time() - begin
    first, second = json.loads(ok(call, "history", "--json"))["jobs"]
    assert (first["name"], first["state"], first["gpus"], first["goodput_hours"]) == ("one", "completed", 1.0, None)
    assert 1 / 3600 <= first["gpu_hours"] <= took / 3600
    assert (second["exit_status"], second["gpus"], second["restarts"], second["restart_gpu_hours"]) == (3, 2.0, 0, 0.0)
    assert second["failed_gpu_hours"] == pytest.approx(second["gpu_hours"])
    assert 0 <= first["wait_seconds"] <= took

    answers = {by: json.loads(ok(call, "report", "--by", by, "--json")) for by in ("user", "job", "server", "day")}
    for by, answer in answers.items():
        assert sum(row["gpu_hours"] for row in answer["rows"]) == pytest.approx(answer["total"]["gpu_hours"]), by
    jobs = {row["key"]: row["gpu_hours"] for row in answers["job"]["rows"]}
    assert jobs["1"] == pytest.approx(first["gpu_hours"])
    assert jobs["2"] == pytest.approx(second["gpu_hours"])
    assert jobs["3"] > 0, "a running job counts up to now"
    [user] = answers["user"]["rows"]
    assert (user["jobs"], user["completed"], user["failed"], user["waits"]) == (3, 1, 1, 3)
    assert (user["share"], user["fair_share"]) == (pytest.approx(1.0), pytest.approx(1.0))
    assert [row["key"] for row in answers["server"]["rows"]] == ["local"]

    tomorrow = (datetime.now() + timedelta(days=1)).strftime("%Y-%m-%d")
    assert ok(call, "history", "--since", tomorrow) == "no jobs ended in this time\n"
    assert ok(call, "report", "--since", tomorrow).splitlines()[-1] == EMPTY
    named = call("history", "two", "3")
    assert (named.returncode, named.stderr) == (0, "note: job 3 has not ended\n")
    assert "two" in named.stdout
    assert "one" not in named.stdout
    only = call("history", "3")
    assert (only.returncode, "job 3 has not ended" in only.stderr) == (4, True)
    assert call("history", "--state", "running").returncode == 2
    assert ok(call, "report", "--html", "page.html") == "wrote page.html\n"
    # A restarted daemon gives the same answers.
    ok(live, "daemon", "stop")
    again = json.loads(ok(call, "history", "--json"))["jobs"]
    assert again == [first, second]
    rows = {row["key"]: row["gpu_hours"] for row in json.loads(ok(call, "report", "--by", "job", "--json"))["rows"]}
    assert rows["3"] >= jobs["3"]
    assert (rows["1"], rows["2"]) == (jobs["1"], jobs["2"])
