"""Pages at a fixed width, compared with those that somebody last looked at, in tests/views/golden.

GPQ_GOLDEN=write rewrites them. Look at the difference before you commit it.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console, RenderableType

from gpq.cli.doctor import doctor
from gpq.cli.doctor.server_lines import Check
from gpq.core.model.accounts import UserShare
from gpq.rpc import daemon_answers, job_answers, node_answers
from gpq.views import accounts, detail, job_page, nodes, queue, top, top_tables
from gpq.views.plain import moment, width
from gpq.views.utilisation import Past
from tests.cli import served

GOLDEN = Path(__file__).parent / "golden"
CHECKS = [Check("python", "ok", "3.12.1"), Check("socket", "fail", "too long a path", "set GPQ_HOME to a shorter path")]


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pages show times in local time: here it is two hours ahead of UTC."""
    monkeypatch.setenv("TZ", "XXX-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def _failed(number: int = 3, **changes: object) -> job_answers.JobView:
    said = {
        "exit_status": 137,
        "reason": "killed by signal KILL: out of memory",
        "started_at": served.NOW,
        "ended_at": served.NOW,
    }
    return served.job(number, "failed", **{**said, **changes})


def _strict() -> job_answers.JobDetail:
    """The status of a job whose loop takes freedoms from gpq. One of them is known only from an earlier job."""
    habits = [
        job_answers.HabitView(
            "two-passes", ["accumulate", "split"], "two backward passes a step \x1b[31m", "none is needed", False
        ),
        job_answers.HabitView(
            "own-epochs", ["resize"], "the loop is outside job.epochs()", "for epoch in job.epochs(3):", True
        ),
        job_answers.HabitView("of-a-newer-library", ["retune"], "", "", False),
    ]
    short = {"attempts": [], "curve": [], "losses": [], "ranks": [], "history": [], "model": {}}
    return msgspec.structs.replace(served.detail(served.job(1)), habits=habits, **short)


def status(columns: int) -> list[str]:
    rows = [_failed(), served.job(1), served.job(2, "pending")]
    return queue.lines(msgspec.to_builtins(job_answers.JobList(rows, 3, hidden=2)), columns)


def lab(columns: int) -> list[str]:
    """Jobs of several users, with their reasons to wait and what is busy."""
    path = "/home/carol/projects/segmentation/experiments/run.sh"
    rows = [
        _failed(7, user="carol", name="segment", exit_status=127, reason=f"exit 127: no command {path}"),
        _failed(8, name="unet-large-batch"),
        served.job(9, user="bob", name="gpt-small-pretraining"), served.job(10, "pending"),
        served.job(11, "held", user="bob", reason="held: after three failures within a minute each"),
    ]  # fmt: skip
    return queue.lines(msgspec.to_builtins(job_answers.JobList(rows, 5)), columns)


TEAM = [
    UserShare("alice", 2, 8, 0.727, 0.333, 1.25, 0.8, 7200.0, floor=5, borrowed=3),
    UserShare("bob", 1, 3, 0.273, 0.333, 0.6, 1.9, 1800.0, floor=5),
    UserShare("carol", 1, 0, 0.0, 0.333, None, None, 0.0, floor=6),
]


def drawn(columns: int, height: int | None, users: list[UserShare] | None = None) -> list[str]:
    view = served.top() if users is None else msgspec.structs.replace(served.top(), users=users)
    sink = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    Console(file=sink, width=columns, height=height, color_system=None).print(top.frame(view, columns, height))
    sink.flush()
    sink.seek(0)
    return sink.read().splitlines()


def rendered(picture: RenderableType, columns: int, height: int) -> list[str]:
    sink = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    Console(file=sink, width=columns, height=height, color_system=None, markup=False).print(picture)
    sink.flush()
    sink.seek(0)
    return sink.read().splitlines()


def listed(columns: int, height: int) -> list[str]:
    """The list of the interactive `gpq top`, as it looks after some minutes."""
    view, past = served.top(), Past()
    for piece in range(12):
        past.note(view.nodes, view.jobs, 20.0 * piece)
    look = top_tables.ListView(selected=2, sort="gpus", descending=True)
    return rendered(top.picture(view, top.in_order(view.jobs, look), look, past, columns, height), columns, height)


def opened(columns: int, height: int, part: str = "all", scroll: int = 0) -> list[str]:
    row = served.job(1)
    log = tuple(f"step {number} loss {1 / number:.3f}" for number in range(1, 40))
    page = job_page.Page(served.detail(row), served.explanation(row), log, "attempt 2 on a")
    return rendered(job_page.picture(page, part, scroll, columns, height)[0], columns, height)


PAGES = {
    "status-120": lambda: status(120),
    "status-80": lambda: status(80),
    "status-100": lambda: status(100),
    "status-20": lambda: status(20),
    "status-lab-80": lambda: lab(80),
    "status-lab-100": lambda: lab(100),
    "show-failed-80": lambda: detail.lines(served.detail(_failed()), 80),
    "show-80": lambda: detail.lines(served.detail(served.job(1)), 80),
    "show-habits-80": lambda: detail.lines(_strict(), 80),
    "show-habits-40": lambda: detail.lines(_strict(), 40),
    "show-40": lambda: detail.lines(served.detail(served.job(1)), 40),
    "why-80": lambda: detail.why(served.explanation(served.job(1)), 80),
    "nodes-100": lambda: nodes.lines(node_answers.NodeList(served.nodes()), 100),
    "nodes-60": lambda: nodes.lines(node_answers.NodeList(served.nodes()), 60),
    "history-160": lambda: accounts.history(served.history(), 160),
    "history-80": lambda: accounts.history(served.history(), 80),
    "history-40": lambda: accounts.history(served.history(), 40),
    "report-140": lambda: accounts.report(served.report(), 140),
    "history-20": lambda: accounts.history(served.history(), 20),
    "report-20": lambda: accounts.report(served.report(), 20),
    "report-60": lambda: accounts.report(served.report(), 60),
    "report-job-100": lambda: accounts.report(served.report("job"), 100),
    "report-day-80": lambda: accounts.report(served.report("day"), 80),
    "doctor-60": lambda: doctor.lines(CHECKS, 60),
    "top-80x24": lambda: drawn(80, 24),
    "top-120": lambda: drawn(120, None),
    "top-team-100": lambda: drawn(100, None, TEAM),
    "top-40x20": lambda: drawn(40, 20),
    "board-80x22": lambda: listed(80, 22),
    "board-40x10": lambda: listed(40, 10),
    "board-120x30": lambda: listed(120, 30),
    "job-80x22": lambda: opened(80, 22),
    "job-log-40x10": lambda: opened(40, 10, "log", 3),
    "occupants-100": lambda: [line.plain for line in top_tables.process_lines(served.nodes(), Past(), 100)],
    "keys-80": lambda: [line.plain for line in top.keys(80)],
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_looks_as_it_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # the bars depend on the encoding of the output
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    text = "\n".join(line.rstrip() for line in PAGES[name]()) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GPQ_GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", PAGES)
def test_no_line_of_a_page_is_too_wide(name: str) -> None:
    limit = int(name.rpartition("-")[2].partition("x")[0])
    lines = (GOLDEN / f"{name}.txt").read_text().splitlines()
    assert max(map(width, lines)) <= limit or name == "status-20"  # its last line is a sentence


@pytest.mark.parametrize(("columns", "height"), [(80, 24), (120, 40), (60, 20), (40, 16), (200, 60)])
def test_the_live_view_fits_its_screen(columns: int, height: int) -> None:
    big = daemon_answers.TopView(
        nodes=served.nodes() * 8, jobs=[served.job(number) for number in range(60)],
        users=[UserShare(f"user-{n}", 1, 1, 0.1, 0.1, 1.0, 1.0, 1.0, n % 3, n // 3) for n in range(20)],
        changes=served.events() * 20, policy="goodput", round_seconds=None, round_age=None, cluster_goodput=1.0, now=served.NOW,
    )  # fmt: skip
    holdings = [job_answers.HoldingView(f"user-{n}", 1, 1, n) for n in range(20)]
    shared = msgspec.structs.replace(big, team=job_answers.TeamView("lab", 32, holdings))
    empty = msgspec.structs.replace(big, nodes=[], jobs=[], users=[], changes=[])
    for view in (served.top(), big, shared, empty):
        sink = io.StringIO()
        Console(file=sink, width=columns, height=height, color_system=None).print(top.frame(view, columns, height))
        lines = sink.getvalue().splitlines()
        assert len(lines) <= height
        assert max(map(width, lines)) <= columns
        assert lines[1].startswith("team lab: you hold 1 of 32 GPUs"[:columns]) == (view is shared)
        past = Past()
        past.note(view.nodes, view.jobs, 0.0)
        for look in (top_tables.ListView(), top.ListView(59, 3, "goodput", True, "user=ana [red]" * 9)):
            rows = top.in_order(view.jobs, look)
            found = rendered(top.picture(view, rows, look, past, columns, height), columns, height)
            assert len(found) <= height
            assert max(map(width, found)) <= columns
            assert any("> " in line for line in found) is any(job.id == look.selected for job in rows)


def test_a_loss_curve_shows_its_range_and_is_drawn_if_the_terminal_can() -> None:
    points = [job_answers.LossView(10.0 * step, 4.0 - step) for step in range(4)]
    assert detail.loss_curve(points, 0) == ["  4 -> 1 over 30 base steps", "  █▆▃▁"]
    assert detail.loss_curve(points, 4)[-1] == "  █▁"
    assert detail.loss_curve(points, 0, "#") == ["  4 -> 1 over 30 base steps"]
    assert detail.loss_curve(points[:1], 0) == ["  4 after 0 base steps"]
    assert detail.loss_curve([], 0) == []
    assert detail.spark([2.0, 2.0], 10) == "▁▁"


def test_the_last_loss_is_in_the_curve_although_its_points_are_means() -> None:
    points = [job_answers.LossView(10.0 * step, 4.0 - step) for step in range(4)]
    assert detail.loss_curve(points, 0, last=0.5) == ["  4 -> 1 over 30 base steps, last 0.5", "  █▆▄▂▁"]
    assert detail.loss_curve(points, 5, last=8.0)[-1] == "  ▃▁█"
    assert detail.loss_curve(points[:1], 0, last=3.0) == ["  4 after 0 base steps, last 3"]
    assert detail.loss_curve(points, 0, last=1.0) == detail.loss_curve(points, 0)


def test_a_cancelled_job_has_no_exit_code_and_a_waiting_one_no_speedup() -> None:
    cancelled = served.job(3, "cancelled", exit_status=1, reason="", speedup=None)
    waiting = served.job(2, "pending", speedup=0.0)
    text = "\n".join(queue.lines(msgspec.to_builtins(job_answers.JobList([waiting, cancelled], 2)), 200))
    assert "exit" not in text
    assert "0.00x" not in text


def test_a_reason_in_the_headline_is_not_repeated() -> None:
    held = msgspec.structs.replace(
        served.explanation(served.job(1, "held")), headline="held by its user", reasons=["held by its user", "and more"]
    )
    assert detail.why(held, 80)[:2] == ["job 1 (held): held by its user", "  - and more"]


def test_times_are_local_and_in_one_style() -> None:
    assert moment("2026-03-01T23:30:00.123Z") == "2026-03-02 01:30:00"
    assert moment("") == ""
    for page in (
        detail.lines(served.detail(served.job(1)), 0),
        detail.why(served.explanation(served.job(1)), 0),
    ):
        assert any("2026-03-01 14:00:00" in line for line in page)
        assert not any("T12:00" in line for line in page)


def test_a_long_curve_is_thinned_but_keeps_its_ends_and_the_present() -> None:
    points = [job_answers.CurvePoint(gpus, float(gpus), 64 * gpus, float(gpus), gpus == 37) for gpus in range(1, 65)]
    kept = [point.gpus for point in detail.thin(points)]
    assert {1, 37, 64} <= set(kept)
    assert len(kept) <= detail.MOST_POINTS


def test_a_job_on_an_unreachable_server_is_unknown_in_every_view(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "unknown for 40 s: server b does not answer"
    row = served.job(1, unknown=said, unknown_seconds=40.0, reason=said)
    assert said in queue.lines(msgspec.to_builtins(job_answers.JobList([row], 1)), 200)[1]
    view = msgspec.structs.replace(served.top(), jobs=[row])
    monkeypatch.setattr(served, "top", lambda: view)
    assert any("unknown 40s" in line for line in drawn(120, 40))
    shown = detail.lines(served.detail(row), 120)
    assert said in shown[0]


def test_a_job_that_hangs_or_waits_for_one_replica_says_so_in_every_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    line = "no step for 90 s: the others wait for rank 3 on b"
    hung = served.job(1, hung=line, hung_seconds=90.0, reason=line)
    slow = served.job(2, stragglers=[3])
    assert line in "\n".join(queue.lines(msgspec.to_builtins(job_answers.JobList([hung], 1)), 160))
    assert line in " ".join(" ".join(detail.lines(served.detail(hung), 80)).split())
    sink = io.StringIO()
    view = msgspec.structs.replace(served.top(), jobs=[hung, slow])
    Console(file=sink, width=100, color_system=None).print(top.frame(view, 100, None))
    assert "hung 1m30s" in sink.getvalue() or "hung 90s" in sink.getvalue()
    assert "running !3" in sink.getvalue()


def test_the_list_marks_unreachable_hung_slow_and_ended_jobs() -> None:
    rows = [
        served.job(1, unknown="unknown for 40 s: server a does not answer", unknown_seconds=40.0),
        served.job(2, hung="no step for 90 s: rank 3 on b has not arrived", hung_seconds=90.0),
        served.job(3, stragglers=[3]),
        served.job(4, "failed", name="sweep", index=7, params={"lr": "0.1"}),
    ]
    view = msgspec.structs.replace(served.top(), jobs=rows)
    text = "\n".join(rendered(top.picture(view, rows, top_tables.ListView(4), Past(), 139, 30), 139, 30))
    for word in ("unknown 40s", "hung 1m30s", "running !3", "failed", "sweep[lr=0.1]"):
        assert word in text
    page = job_page.Page(served.detail(rows[1]), served.explanation(rows[1]))
    assert "rank 3 on b has not arrived" in "\n".join(line.plain for line in job_page.lines(page, 100))
    assert "hung 1m30s" in job_page.head(rows[1], 100).plain
