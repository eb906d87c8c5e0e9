"""More finished jobs than a terminal shows: each command says what it leaves out, and what is long comes as a
stream."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import gpq as api
from benchmarks.past import fill
from gpq.client import quick, stream
from gpq.control import usage_report
from gpq.core.model.snapshot import Snapshot
from gpq.errors import GpqError
from gpq.ports import Wanted
from gpq.rpc import requests
from gpq.rpc.codec import encode_request
from gpq.store.sqlite import SqliteStore
from tests.cli.conftest import Gpq, started, state_directory, submitted
from tests.cli.jobs.test_live import ok

JOBS = 5000
OF_BEN = 1260


@pytest.fixture(scope="module")
def past() -> Iterator[Gpq]:
    """A daemon with `JOBS` finished jobs and one that is held, the last."""
    with state_directory() as home:
        fill(str(home / "gpq.db"), JOBS)
        with started(home) as gpq:
            submitted(gpq, "--hold", "--name", "live", "--", "echo", "täglich")
            yield gpq


def test_a_table_has_a_thousand_ended_jobs_and_says_how_to_see_the_others(past: Gpq) -> None:
    for words, left in ((("--all",), JOBS - 1000), (("--all", "--user", "ben"), OF_BEN - 1000)):
        title, *rows, last = ok(past, "status", *words).splitlines()
        assert title.split()[0] == "ID"
        assert len(rows) == 1000 + ("--user" not in words)
        assert last == f"and {left} more that ended: gpq status --all --json"
    recent = ok(past, "status", "--recent", "1500").splitlines()
    assert len(recent) == 1 + 1500 + 1 + 1


def test_json_streams_all_jobs_by_id_with_live_ones_last(past: Gpq) -> None:
    text = ok(past, "status", "--all", "--json")
    assert text.isascii()
    answer = json.loads(text)
    assert [row["id"] for row in answer["jobs"]] == list(range(1, JOBS + 2))
    assert (answer["total"], answer["hidden"]) == (JOBS + 1, 0)
    assert answer["jobs"][-1]["command"] == "echo 'täglich'"
    some = json.loads(ok(past, "status", "--recent", "1200", "--json", "--user", "ben"))
    assert {row["user"] for row in some["jobs"]} == {"ben"}
    assert len(some["jobs"]) == 1200


def test_history_streams_the_same_rows_as_json_and_csv(past: Gpq) -> None:
    rows = json.loads(ok(past, "history", "--json"))["jobs"]
    assert [row["id"] for row in rows] == list(range(1, JOBS + 1))
    lines = list(csv.DictReader(io.StringIO(ok(past, "history", "--csv"))))
    assert [int(line["id"]) for line in lines] == [row["id"] for row in rows]
    assert lines[-1]["name"] == rows[-1]["name"] == f"job-{JOBS}"
    assert len(json.loads(ok(past, "history", "--json", "-n", "1500"))["jobs"]) == 1500
    assert (
        ok(past, "history", "-n", "1500").splitlines()[-1] == f"{JOBS - 1500} more ended earlier: gpq history -n {JOBS}"
    )
    said = past("history", "--csv", f"{JOBS}-{JOBS + 1}")
    assert len(said.stdout.splitlines()) == 2
    assert said.stderr == f"note: job {JOBS + 1} has not ended\n"
    missing = past("history", "--csv", "no-such-job")
    assert (missing.returncode, missing.stdout) == (4, "")
    assert [*json.loads(past("history", "--json", "no-such-job").stdout)] == ["error", "hint"]


def test_a_query_searches_all_of_them(past: Gpq) -> None:
    rows = json.loads(ok(past, "status", "--all", "--json", "user=ben", "sort=-id", "limit=3"))["jobs"]
    assert len(rows) == 3
    assert {row["user"] for row in rows} == {"ben"}
    for words in (("--all",), (f"1-{JOBS}",)):  # more than are sent at once
        rows = json.loads(ok(past, "status", *words, "--json", "user=ben", "sort=-id"))["jobs"]
        ids = [row["id"] for row in rows]
        assert (len(ids), ids) == (OF_BEN, sorted(set(ids), reverse=True))


def test_cancel_says_in_one_line_that_thousands_had_ended(past: Gpq) -> None:
    said = ok(past, "cancel", f"1-{JOBS}")
    assert said == f"{JOBS} jobs (1-{JOBS}) had already ended: nothing to cancel\n"
    hold = past("hold", f"1-{JOBS}")
    assert hold.returncode == 5
    assert "job 7 has ended" in hold.stderr


def test_a_report_without_since_covers_the_latest_jobs_and_says_so(
    past: Gpq, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "not in this report" not in past("report").stderr
    monkeypatch.setattr(usage_report, "REPORTED", 2000)
    store = SqliteStore(f"{tmp_path}/gpq.db")
    store.close()
    fill(store.path, 3000)
    store = SqliteStore(store.path)
    newest, *_, begin = store.records(Wanted(limit=2000))
    now = (newest.ended_at or 0.0) + 1
    few = usage_report.report(requests.Report(), Snapshot(), store, now)
    asked = usage_report.report(requests.Report(since=begin.ended_at), Snapshot(), store, now)
    assert few == msgspec.structs.replace(asked, earlier=1000)
    assert few.total.jobs == 2000
    [*_, end, _] = store.records(Wanted(limit=501))
    [*_, begin] = store.records(Wanted(until=end.ended_at, limit=2000))
    few = usage_report.report(requests.Report(until=end.ended_at), Snapshot(), store, now)
    window = requests.Report(since=begin.ended_at, until=end.ended_at)
    asked = usage_report.report(window, Snapshot(), store, now)
    assert few == msgspec.structs.replace(asked, earlier=500)
    store.close()


@pytest.fixture
def here(past: Gpq, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process talks to the daemon."""
    for name, value in past.environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("here")
def test_python_gets_all_rows() -> None:
    assert len(api.status(all=True).jobs) == JOBS + 1
    assert len(api.history().jobs) == JOBS


@pytest.mark.usefixtures("here")
def test_who_reads_slowly_needs_no_daemon_after_the_first_row(past: Gpq) -> None:
    rows = stream.rows(encode_request(requests.History(limit=0)), lambda *notes: None)
    first = next(rows)
    assert past("daemon", "stop").returncode == 0
    assert [first["id"], *(row["id"] for row in rows)] == list(range(1, JOBS + 1))


@pytest.mark.usefixtures("here")
def test_an_answer_that_no_file_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(GpqError, match="temporary file") as refusal:
        stream.write_json(quick.line("history", {}))
    assert "TMPDIR" in refusal.value.hint
