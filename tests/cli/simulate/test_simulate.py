"""`gpq simulate` as a user types it: its output, for any number of processes, and the error for each mistake."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpq.cli import fast_path
from gpq.core.model.events import Event, Held, Launched, Released, Submitted
from gpq.core.model.jobs import Job, JobState
from gpq.core.model.placements import BatchOrder
from gpq.lab import plan_runs
from gpq.lab.measurements.sources import Published
from gpq.lab.simulator.compare import Run
from gpq.lab.simulator.lies import MEASURED
from gpq.lab.simulator.replay import replay
from gpq.lab.simulator.rules import Rules, parse_cluster
from gpq.policies.registry import POLICIES
from gpq.store.sqlite import SqliteStore
from tests.cli.conftest import ROOT, Gpq
from tests.support.builders import black_box, job, on
from tests.support.measured import write
from tests.support.measurements import WORKLOAD, tiny, workload

COLUMNS = [
    "cluster", "policy", "workload", "seed", "jobs", "avg_jct", "p50_jct", "p99_jct", "makespan", "rho_p95", "rho_max",
    "rho_above_1", "restarts_per_job", "promised_hours", "gained_hours",
    "gpu_hours", "goodput", "round_ms_median", "round_ms_max", "wall_s",
]  # fmt: skip
CLOCK = ("round_ms_median", "round_ms_max", "wall_s")  # these figures depend on this machine, not on the simulation
Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs `gpq simulate ...` with a workload and measurements. Returns the exit status, stdout and stderr."""
    tiny(tmp_path / "traces")
    workload(tmp_path / "w.csv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("GPQ_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def run(*argv: str) -> tuple[int, str, str]:
        code = fast_path.run(["simulate", *argv])
        return code, *capsys.readouterr()

    return run


TRACES = ("w.csv", "--traces", "traces", "--nodes", "2x4")


def figures(text: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in run.items() if key not in CLOCK} for run in json.loads(text)["runs"]]


def test_policies_and_workloads_are_compared_in_a_table(say: Say, tmp_path: Path) -> None:
    workload(tmp_path / "v.csv", "a,0,tiny,1,32")
    code, out, err = say("v.csv", *TRACES, "--policy", "goodput,fifo")
    assert (code, err) == (0, "")
    words = [line.split() for line in out.splitlines()]
    assert words[0][:4] == ["POLICY", "WORKLOAD", "JOBS", "MEAN"]
    assert [line[:3] for line in words[1:5]] == [["goodput", "v", "1"], ["goodput", "w", "4"], ["fifo", "v", "1"],
                                                 ["fifo", "w", "4"]]  # fmt: skip
    assert [line[:3] for line in words[-2:]] == [["goodput", "2", "runs"], ["fifo", "2", "runs"]]


def test_json_has_the_documented_figures_and_repeats_them_exactly(say: Say) -> None:
    argv = (*TRACES, "--policy", "goodput,fifo", "--seed", "0,7", "--noise", "0.1", "--json")
    code, out, err = say(*argv)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema"] == 1
    assert [list(run) for run in found["runs"]] == [COLUMNS] * 4
    assert [(run["policy"], run["seed"]) for run in found["runs"]] == [
        ("goodput", 0), ("goodput", 7), ("fifo", 0), ("fifo", 7),
    ]  # fmt: skip
    assert [(mean["policy"], mean["runs"]) for mean in found["means"]] == [("goodput", 2), ("fifo", 2)]
    assert figures(say(*argv)[1]) == figures(out)
    assert figures(say(*argv, "--jobs-parallel", "2")[1]) == figures(out)


def test_members_follow_the_runs_and_their_lies_are_named(say: Say) -> None:
    argv = (
        *TRACES,
        "--policy",
        "goodput,fifo",
        "--members",
        "10",
        "--lie",
        "member-02:speed,age",
        "--lie",
        "member-02:jobs",
    )
    code, out, err = say(*argv, "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)["members"]
    assert [(row["policy"], row["member"], row["jobs"]) for row in rows] == [
        (policy, f"member-0{number}", 4 if number == 2 else 1) for policy in ("goodput", "fifo") for number in range(1, 5)
    ]  # fmt: skip
    assert [row["lies"] for row in rows[:4]] == [[], ["speed", "age", "jobs"], [], []]
    for run, members in zip(json.loads(out)["runs"], (rows[:4], rows[4:]), strict=True):
        assert run["gpu_hours"] == pytest.approx(sum(row["gpu_hours"] for row in members))
        assert run["rho_max"] == max(row["rho_max"] for row in members)
    [title, *members] = say(*argv)[1].partition("\n\n")[2].splitlines()
    assert re.split(" {2,}", title.strip()) == [
        "POLICY",
        "WORKLOAD",
        "MEMBER",
        "JOBS",
        "MEAN",
        "RHO MAX",
        "GPU H",
        "LIES",
    ]
    assert [line.split()[2] for line in members] == [row["member"] for row in rows]
    assert members[1].split()[-1] == "speed,age,jobs"
    assert "MEMBER" not in say(*TRACES, "--members", "1")[1]


def test_csv_has_a_line_for_each_run(say: Say) -> None:
    code, out, _ = say(*TRACES, "--nodes", "1x4", "--policy", "fifo", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert list(rows[0]) == COLUMNS
    assert [row["cluster"] for row in rows] == ["2x4", "1x4"]
    assert float(rows[0]["avg_jct"]) < float(rows[1]["avg_jct"])


FAILS = (
    "w.csv",
    "--traces",
    "traces",
    "--nodes",
    "3x4",
    "--policy",
    "goodput,fifo",
)  # only the run finds out that 12 GPUs on 3 servers were not measured


def test_finished_runs_are_printed_even_if_another_failed(say: Say, tmp_path: Path) -> None:
    code, out, err = say(*FAILS)
    assert (code, [line.split()[0] for line in out.splitlines()]) == (1, ["POLICY", "fifo"])
    problem, hint = err.splitlines()
    assert problem == "gpq: goodput on w (3x4, seed 0): tiny was not measured on 12 GPUs of 3 nodes (4+4+4)"
    assert hint.startswith("hint: traces/tiny/placements.csv and scalability.csv have up to 4 GPUs on one node")
    code, out, _ = say(*FAILS, "--csv")
    assert (code, [row["policy"] for row in csv.DictReader(io.StringIO(out))]) == (1, ["fifo"])
    code, out, again = say(*FAILS, "--json", "--jobs-parallel", "2")
    found = json.loads(out)
    assert (code, again, [run["policy"] for run in found["runs"]]) == (1, err, ["fifo"])
    [failed] = found["failed"]
    assert (failed["policy"], failed["workload"], failed["cluster"], failed["seed"]) == ("goodput", "w", "3x4", 0)
    assert problem.endswith(failed["error"])


def test_there_is_no_table_if_no_run_finished(say: Say, tmp_path: Path) -> None:
    argv = FAILS[:-1]
    code, out, err = say(*argv, "goodput", "--plot", "x.svg")
    assert (code, out, err.splitlines()[0]) == (1, "", "note: --plot x.svg: there is nothing to plot")
    assert not (tmp_path / "x.svg").exists()
    code, out, _ = say(*argv, "goodput", "--csv")
    assert (code, out.splitlines()) == (1, [",".join(COLUMNS)])


def test_a_pipe_gets_all_columns_and_a_terminal_a_note_about_missing_ones(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = (*TRACES, "--nodes", "1x4", "--policy", "fifo", "--seed", "0,1", "--noise", "0.1")
    monkeypatch.delenv("COLUMNS")
    _, out, _ = say(*argv)
    assert {"CLUSTER", "SEED", "RHO", "MAX", "TOOK"} <= set(out.splitlines()[0].split())
    assert "left out" not in out
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = say(*argv)
    assert max(map(len, out.splitlines())) <= 60
    assert " TOOK" not in out.splitlines()[0]
    assert "columns left out at width 60: " in out
    assert out.rstrip().replace("\n", " ").endswith("TOOK (see --csv or --json)")


IDLE = [
    ("fifo", "--seed 3", "--seed (nothing is random without --noise)"),
    ("pollux,fifo", "--seed 3", ""),
    ("goodput", "--seed 3 --noise 0.1", ""),
    ("fifo,srtf", "--noise 0.1", "--noise (none of these policies uses measurements)"),
    ("goodput", "--set fairness_power=0", ""),
    ("goodput", "--set by_user=on", ""),
    ("fifo", "--set fairness_power=0", "--set fairness_power (none of these policies uses it)"),
    ("tiresias", "--priors --known-length",
     "--known-length (none of these policies uses it), --priors (none of these policies uses them)"),
    ("sia", "--priors", "--priors (none of these policies uses them)"),
    ("fifo", "--set floors=off --set floor_patience=0 --set borrow_limit=60 --set by_user=off --members 2", ""),
    ("goodput", "--set floors=off --members 1", "--set floors (there is only one user)"),
    ("fifo", "--set floor_patience=0 --set borrow_limit=60",
     "--set floor_patience (there is only one user), --set borrow_limit (there is only one user)"),
    ("fifo", "--members 2 --lie member-1:speed,age", "--lie member-1:speed (none of these policies uses measurements)"),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "argv", "said"), IDLE)
def test_an_option_without_effect_gets_a_note(
    say: Say, monkeypatch: pytest.MonkeyPatch, policy: str, argv: str, said: str
) -> None:
    monkeypatch.setattr("gpq.lab.simulator.compare.attempt_all", lambda *_: [])
    monkeypatch.setattr("gpq.lab.simulator.compare.plan", lambda *_: [])
    _, _, err = say(*TRACES, "--policy", policy, *argv.split())
    assert err == (f"note: no effect here: {said}\n" if said else "")


OPTIONS: dict[str, dict[str, Any]] = {
    "length": {"known_length": True},
    "priors": {"priors": True},
    "noise": {"noise": 0.3},
}


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in ("pollux", "goodput")])
def test_options_reported_as_unused_really_have_no_effect(tmp_path: Path, name: str) -> None:
    """With two types of GPUs, so the test also covers values that a policy carries from one type to the other."""
    tiny(tmp_path / "traces", kinds=("t4", "a100"), steps=300)
    rows = [f"j{number},{number * 40},tiny,{1 + number % 3},{(32, 64, 128)[number % 3]}" for number in range(8)]
    tasks = Published("w", str(workload(tmp_path / "w.csv", *rows)), str(tmp_path / "traces")).tasks()

    def figures(seed: int = 0, lies: tuple[str, ...] = (), **more: Any) -> list[tuple[float, object]]:
        rules = Rules(parse_cluster("1x4:t4,1x4:a100"), seed=seed, **more)
        return [
            (each.ended_at, each.sizes)
            for each in replay(name, [replace(each, lies=lies) for each in tasks], rules).jobs
        ]

    for option, more in OPTIONS.items():
        if option not in plan_runs.HEEDS.get(name, ()):
            assert figures(**more) == figures(), option
    assert figures(seed=7) == figures()
    if "noise" not in plan_runs.HEEDS.get(name, ()):
        assert figures(lies=tuple(MEASURED)) == figures()


def test_two_clusters_give_two_blocks(say: Say) -> None:
    _, out, _ = say(*TRACES, "--nodes", "1x4")
    rows = [line.split() for line in out.splitlines() if line]
    assert [row[0] for row in rows] == ["CLUSTER", "2x4", "CLUSTER", "1x4"]


def test_a_figure_is_drawn_in_addition_to_the_table(say: Say, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    code, out, _ = say(*TRACES, "--plot", "x.svg")
    assert code == 0
    assert out.startswith("POLICY")
    assert (tmp_path / "x.svg").read_text().startswith("<?xml")


def test_options_reach_the_rules(monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    seen: list[Run] = []

    def stop(runs: list[Run], *_: object) -> None:
        seen.extend(runs)
        raise KeyboardInterrupt

    monkeypatch.setattr("gpq.lab.simulator.compare.attempt_all", stop)
    argv = ["--interval", "360", "--restart", "5", "--known-length", "--priors", "--events"]
    code, _, _ = say(*TRACES, *argv, "--noise", "0.5", "--seed", "3", "--set", "by_user=off",
                     "--set", "fairness_power=-1", "--rules", "sia")  # fmt: skip
    assert code == 130
    [run] = seen
    rules = run.rules
    assert (rules.interval, rules.noise, rules.seed) == (360.0, 0.5, 3)
    assert (rules.known_length, rules.priors, rules.events, rules.profiled) == (True, True, True, True)
    assert (rules.config.by_user, rules.config.fairness_power) == (False, -1.0)
    assert [(task.restart, task.slowdown) for task in run.source.tasks()] == [(5.0, 1.2)] * 4
    say(*TRACES)
    assert not any((seen[1].rules.known_length, seen[1].rules.priors, seen[1].rules.events, seen[1].rules.profiled))
    assert [(task.restart, task.slowdown) for task in seen[1].source.tasks()] == [(30.0, 1.0)] * 4


MISTAKES: list[tuple[str, str]] = [
    ("", "no workload to simulate"),
    ("w.csv", "--traces DIR"),
    ("missing.csv --traces traces", "missing.csv"),
    ("w.csv --traces nowhere", "no folder nowhere"),
    ("w.csv --traces empty", "empty has no measurements"),
    ("w.csv --traces cut", "cut"),
    ("unknown.csv --traces traces", "unknown.csv row 3: there are no measurements of application giant"),
    ("negative.csv --traces traces", "negative.csv row 2: time is -3"),
    ("nan.csv --traces traces", "nan.csv row 3: time is 'nan', must be a number"),
    ("twice.csv --traces traces", "twice.csv row 3: the name a is already used in row 2"),
    ("none.csv --traces traces", "none.csv"),
    ("late.csv --traces traces", "late.csv row 2: time is 1e+300, must be at most"),
    ("pipe.csv --traces traces", "pipe.csv is not a regular file"),
    ("w.csv --traces traces --interval 0.001", "--interval 0.001 is out of range"),
    ("w.csv --traces traces --set fairness_power=2", "--set fairness_power 2 is out of range"),
    ("w.csv --traces traces --set hysteresis_seconds=-5", "--set hysteresis_seconds -5 is out of range"),
    ("w.csv --traces traces --nodes 1x2 --policy fifo", "w.csv row 4: job c does not fit 1x2: it asks for 4 GPUs"),
    ("w.csv --traces traces --nodes 2x4:h100", "w.csv row 2: job a does not fit 2x4:h100"),
    (
        "w.csv --traces traces --nodes 2x8",
        "w.csv row 2: job a does not fit 2x8: tiny was not measured on 5 GPUs of 1 node",
    ),
    (
        "w.csv --traces traces --nodes 2x8",
        "hint: traces/tiny/placements.csv and scalability.csv have up to 4 GPUs on one",
    ),
    ("w.csv --traces traces --nodes 0x4", "0x4 has no nodes"),
    ("w.csv --traces traces --nodes lots", "'lots'"),
    ("w.csv --traces traces --policy gopdut", "unknown policy `gopdut`"),
    ("w.csv --traces traces --policy ,", "names no policy"),
    ("w.csv --traces traces --set fairness=1", "there is no setting 'fairness'"),
    ("w.csv --traces traces --set by_user=perhaps", "use on or off"),
    ("w.csv --traces traces --set user_weights=2", "there is no setting 'user_weights'"),
    ("w.csv --traces traces --set floors=0.5", "use on or off"),
    ("w.csv --traces traces --set borrow_limit=-1", "--set borrow_limit -1 is out of range"),
    ("w.csv --traces traces --set fairness_power=nan", "use a number"),
    ("w.csv --traces traces --set by_user", "invalid value"),
    ("w.csv --traces traces --set interval=5", "use --interval"),
    ("w.csv --traces traces --plot x.pdf", "cannot draw .pdf"),
    ("w.csv --traces traces --plot nowhere/x.svg", "nowhere/x.svg: cannot write there"),
    ("w.csv --traces traces --jobs-parallel 0", "--jobs-parallel"),
    ("w.csv --traces traces --seed x", "invalid --seed 'x': expected whole numbers"),
    ("w.csv --traces traces --seed 1,-2", "--seed '1,-2'"),
    ("w.csv --traces traces --interval 0", "--interval 0 is out of range"),
    ("w.csv --traces traces --restart nan", "--restart nan is out of range"),
    ("w.csv --traces traces --noise -1", "--noise -1 is out of range"),
    ("w.csv --traces traces --rules pollux", "--rules"),
    ("w.csv --traces traces --csv --json", "cannot be combined"),
    ("w.csv --traces traces --since 3d", "--since needs --history"),
    ("w.csv --history", "cannot be combined with --history"),
    ("--history --traces traces", "--traces cannot be combined with --history"),
    ("--history --since 30", "the unit is missing"),
    ("--history --members 2", "--members cannot be combined with --history"),
    ("w.csv --traces traces --members 101", "--members"),
    ("w.csv --traces traces --lie member-1:speed", "--lie needs --members"),
    ("w.csv --traces traces --members 2 --lie speed", "--lie speed does not say who lies how"),
    ("w.csv --traces traces --members 2 --lie bob:speed", "hint: the members are member-1 to member-2"),
    ("w.csv --traces traces --members 2 --lie member-1:size", "hint: the lies are speed, superlinear, noise, length"),
    ("w.csv --traces traces --members 2 --lie member-1:length", "hint: add --known-length"),
]


@pytest.mark.parametrize(("argv", "said"), MISTAKES, ids=[argv for argv, _ in MISTAKES])
def test_a_mistake_gets_one_line_and_a_hint(say: Say, tmp_path: Path, argv: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    tiny(tmp_path / "cut")
    write(tmp_path / "cut" / "tiny" / "placements.csv", ["placement,local_bsz"])
    workload(tmp_path / "unknown.csv", "a,0,tiny,1,32", "b,0,giant,1,32")
    workload(tmp_path / "negative.csv", "a,-3,tiny,1,32")
    workload(tmp_path / "nan.csv", "a,0,tiny,1,32", "b,nan,tiny,1,32")
    workload(tmp_path / "twice.csv", "a,0,tiny,1,32", "a,0,tiny,1,32")
    write(tmp_path / "none.csv", [WORKLOAD])
    workload(tmp_path / "late.csv", "a,1e300,tiny,1,32")
    os.mkfifo(tmp_path / "pipe.csv")
    code, out, err = say(*argv.split())
    if "--json" in argv:
        assert set(json.loads(out)) == {"error", "hint"}
        err, out = f"gpq: {json.loads(out)['error']}\nhint: {json.loads(out)['hint']}\n", ""
    assert (code, out) == (2, "")
    problem, hint = err.splitlines()
    assert problem.startswith("gpq: ")
    assert hint.startswith("hint: ")
    assert said in err


def test_workloads_of_the_same_name_are_named_by_their_paths() -> None:
    assert plan_runs.short_names(["/x/philly/workload-1.csv", "w.2.csv"]) == ["workload-1", "w.2"]
    paths = ["philly/workload-1.csv", "saturn/workload-1.csv"]
    assert plan_runs.short_names(paths) == paths


# -- history -----------------------------------------------------------------------------------------------------------


def keep(home: Path, *jobs: Job) -> SqliteStore:
    """A store with these jobs, ended ones included. Its writer stays open."""
    store = SqliteStore(str(home / "gpq.db"))
    state = store.load()
    alive = {each.id: each for each in jobs if each.ended_at is None}
    events = [Submitted(each.submitted_at, each.id, each.spec) for each in jobs]
    ended = [each for each in jobs if each.ended_at is not None]
    store.commit(events, replace(state, jobs={each.id: each for each in jobs}, next_id=len(jobs) + 1))
    store.commit([], replace(store.load(), jobs=alive), ended)
    return store


def ran(number: int, at: float, seconds: float, gpus: int) -> Job:
    return job(
        number, at=at, spec_=black_box(gpus), state=JobState.COMPLETED, attempt=1, run_seconds=seconds,
        service=seconds * gpus, last_replicas=gpus, ended_at=at + seconds + 1,
    )  # fmt: skip


def test_your_own_jobs_are_replayed_on_other_clusters_while_the_daemon_runs(say: Say, tmp_path: Path) -> None:
    now = time.time()
    jobs = [ran(number, now - 5000.0 + number, 600.0, 1) for number in range(1, 5)]
    with closing(keep(tmp_path / "home", *jobs, job(5, at=now))) as store:
        argv = ("--history", "--nodes", "1x2", "--nodes", "1x4", "--policy", "fifo", "--restart", "0", "--json")
        code, out, err = say(*argv)
        assert code == 0, err
        assert err == "note: left out: 1 never ran (5)\n"
        assert store.ended_count() == 4
        store.commit([], replace(store.load(), next_id=9))  # the open writer still works
    two, four = json.loads(out)["runs"]
    assert (two["jobs"], two["cluster"], four["cluster"]) == (4, "1x2", "1x4")
    assert two["makespan"] == pytest.approx(1201.0, abs=5.0)  # rounds run on events, as in the daemon
    assert four["makespan"] == pytest.approx(603.0, abs=5.0)
    assert say(*argv)[0] == 0  # without a daemon
    code, _, err = say("--history", "--nodes", "1x2", "--since", "1m")
    assert (code, err.splitlines()[0][:34]) == (5, "gpq: there is no job to replay in ")


def test_what_is_due_between_users_counts_in_a_history_of_several(say: Say, tmp_path: Path) -> None:
    """ana's command without a time limit may use both GPUs, so bo waits for it, only where floors are off."""
    begin = time.time() - 5000.0
    jobs = [ran(1, begin, 600.0, 2), ran(2, begin, 600.0, 1)]
    jobs[1] = replace(jobs[1], spec=jobs[1].spec.having(user="bo"))
    argv = ("--history", "--policy", "fifo", "--restart", "0", "--nodes", "1x2", "--json", "--set")
    with closing(keep(tmp_path / "home", *jobs)):
        means = {}
        for floors in ("off", "on"):
            code, out, err = say(*argv, f"floors={floors}")
            assert (code, err) == (0, "")
            means[floors] = {row["member"]: round(row["avg_jct"]) for row in json.loads(out)["members"]}
    assert means == {"off": {"ana": 600, "bo": 1200}, "on": {"ana": 1200, "bo": 600}}


def test_the_replay_uses_holds_and_gpu_types_from_the_journal(say: Say, tmp_path: Path) -> None:
    begin = time.time() - 5000.0
    jobs = [ran(1, begin, 600.0, 1), ran(2, begin, 600.0, 1)]
    placement = replace(on("a", 0), gpu_type="Tesla T4")
    told: list[Event] = [
        Held(begin + 1.0, jobs[1].id), Released(begin + 1001.0, jobs[1].id),
        Launched(begin + 1001.0, jobs[1].id, 1, placement, BatchOrder()),
        Held(begin + 1200.0, jobs[1].id), Released(begin + 1900.0, jobs[1].id),
    ]  # fmt: skip
    with closing(keep(tmp_path / "home", *jobs)) as store:
        store.commit(told, store.load())
    argv = ("--history", "--policy", "fifo", "--restart", "0", "--json", "--nodes")
    [run] = json.loads(say(*argv, "1x1:t4")[1])["runs"]
    assert (run["avg_jct"], run["makespan"]) == (pytest.approx(600.0, abs=5.0), pytest.approx(1600.0, abs=5.0))
    code, out, _ = say(*argv, "1x1:h100")
    assert (code, json.loads(out)["hint"]) == (2, "there are measurements on Tesla T4")
    assert json.loads(out)["error"] == "no job was measured on GPUs of type h100"


def test_without_a_daemon_nobody_knows_your_servers(say: Say, tmp_path: Path) -> None:
    code, _, err = say("--history")
    assert (code, err.splitlines()[0]) == (4, f"gpq: there is no history at {tmp_path}/home/gpq.db")
    keep(tmp_path / "home", ran(1, time.time() - 100.0, 60.0, 1)).close()
    code, _, err = say("--history")
    assert (code, err.splitlines()[0]) == (2, "gpq: no daemon runs that knows your servers")


def test_a_running_daemons_servers_are_the_cluster(live: Gpq) -> None:
    assert live("submit", "--wait", "--", "sleep", "1").returncode == 0
    answer = live("simulate", "--history", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["runs"][0]["jobs"] == 1


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A comparison that would take hours, and its two processes."""
    tiny(tmp_path / "traces", steps=10**9)
    workload(tmp_path / "w.csv")
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT}/agent", "GPQ_HOME": str(tmp_path)}
    argv = [sys.executable, "-m", "gpq", "simulate", *TRACES, "--policy", "fifo,backfill"]
    with subprocess.Popen(
        [*argv, "--jobs-parallel", "2"],
        cwd=tmp_path,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process, wait_for_children(process.pid, 2)
        finally:
            process.kill()


def test_ctrl_c_ends_every_process_and_prints_one_line(busy: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, workers = busy
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)  # an impatient second Ctrl-C prints no traceback either
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "gpq: ended by Ctrl-C after 0 of 2 runs. It shows none of them\n")
    assert not any(map(alive, workers))


def test_a_signal_to_all_processes_also_prints_one_line(busy: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, workers = busy
    os.killpg(process.pid, signal.SIGTERM)  # a terminal and `timeout` also signal the whole group
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (143, "gpq: ended by SIGTERM after 0 of 2 runs. It shows none of them\n")
    assert not any(map(alive, workers))


def test_a_signal_to_a_single_process_also_prints_one_line(tmp_path: Path) -> None:
    tiny(tmp_path / "traces", steps=10**9)
    workload(tmp_path / "w.csv")
    code = (
        "import os, signal, sys, threading, time\n"
        "from gpq.cli import fast_path\n"
        "def simulates(frame):\n"
        "    here = frame.f_globals.get('__name__'), frame.f_code.co_name\n"
        "    return here == ('gpq.lab.simulator.replay', 'replay') or frame.f_back is not None and simulates(frame.f_back)\n"
        "def end():\n"
        "    while not simulates(sys._current_frames()[threading.main_thread().ident]): time.sleep(0.05)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "threading.Thread(target=end, daemon=True).start()\n"
        "sys.exit(fast_path.run(sys.argv[1:]))"
    )
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT}/agent", "GPQ_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code, "simulate", *TRACES, "--policy", "fifo"], cwd=tmp_path, env=environ,
                          capture_output=True, text=True, check=False, timeout=60)  # fmt: skip
    assert (done.returncode, done.stdout) == (143, "")
    assert done.stderr == "gpq: ended by SIGTERM after 0 of 1 runs. It shows none of them\n"


def test_a_killed_process_does_not_lose_finished_runs(busy: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, workers = busy
    os.kill(workers[0], signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    said = "a process of the simulation was killed\nhint: give it more memory, or use fewer processes\n"
    assert (process.returncode, err) == (
        1, f"gpq: fifo on w (2x4, seed 0): {said}gpq: backfill on w (2x4, seed 0): {said}",
    )  # fmt: skip


def test_workers_do_not_outlive_a_killed_parent(busy: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, workers = busy
    process.kill()
    process.wait(30)
    until = time.monotonic() + 30
    while any(map(alive, workers)):
        assert time.monotonic() < until
        time.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_children(parent: int, count: int) -> list[int]:
    """The simulation processes, without multiprocessing's tracker, after each has used some CPU time."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = []
        for task in Path("/proc").glob("[0-9]*"):
            try:
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                command = (task / "cmdline").read_text()
            except OSError:
                continue
            if int(fields[1]) == parent and "spawn_main" in command and int(fields[11]) > 100:
                found.append(int(task.name))
        if len(found) == count:
            return found
        time.sleep(0.1)
    raise AssertionError("no workers")


def test_matplotlib_and_torch_are_not_imported_without_need(gpq: Gpq, tmp_path: Path) -> None:
    tiny(tmp_path / "traces")
    workload(tmp_path / "w.csv")
    code = (
        "import sys; from gpq.cli import fast_path; fast_path.run(sys.argv[1:]); "
        "print([name for name in ('matplotlib', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "simulate", *TRACES], cwd=tmp_path, env=gpq.environment, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"
