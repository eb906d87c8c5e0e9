"""What happens after failed tests, and which groups run whole: tests of the tests, with a small folder of planted ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers.again import environment, judge, settle
from tests.tiers.groups import GROUPS, PARTS, ROOT, drawn
from tests.tiers.reporting import LIST, Failure

CONFTEST = """\
from tests.support.dispositions import restore
from tests.tiers.reporting import (
    pytest_collectreport,
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
)

restore()
"""
PLANTED = """\
import signal, subprocess, sys
from pathlib import Path
from tests.support.promises import demand_no_crash

def test_good():
    pass

def test_every_second_time():
    tried = Path(__file__).with_name("tried")
    if not tried.exists():
        tried.touch()
        raise AssertionError("the first time")

def test_always():
    assert 1 == 2, "never"

def test_replica():
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    demand_no_crash([0, subprocess.run([sys.executable, "-c", crash]).returncode])

def test_hang_up():
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); print('deaf')"
    assert subprocess.run([sys.executable, "-c", crash]).returncode == -signal.SIGHUP
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_planted.py").write_text(PLANTED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("PYTEST_XDIST_WORKER", LIST):  # the planted run is not part of this one
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def outcome(folder: Path, names: str, workers: str = "0") -> bool:
    """Run the planted tests `names` as a tier does. Returns whether the run is green."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-k", names]
    path = folder / "failures"
    subprocess.run(command, cwd=folder, env=environment(path), capture_output=True, check=False)
    return settle(path, folder)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_test_that_fails_every_second_time_counts_as_flaky_once(
    planted: Path, workers: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert outcome(planted, "good or second", workers)
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if "FLAKY" in line] == [
        "FLAKY test_planted.py::test_every_second_time: AssertionError: the first time"
    ]
    assert lines[-1].startswith("FLAKY")


def test_a_test_that_fails_twice_is_red(planted: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert not outcome(planted, "good or always")
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith("RED test_planted.py::test_always: AssertionError: never")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_file_that_cannot_be_imported_is_red(planted: Path, workers: str, capfd: pytest.CaptureFixture[str]) -> None:
    (planted / "test_other.py").write_text("from os import nothing\n\ndef test_good():\n    pass\n")
    assert not outcome(planted, "good", workers)
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith("RED test_other.py: ImportError: cannot import name 'nothing'")


def test_a_replica_that_dies_of_a_signal_is_red_at_once(planted: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert not outcome(planted, "good or replica or second")
    shown = capfd.readouterr().out
    assert "once more" not in shown
    assert shown.splitlines()[-1] == ("RED test_planted.py::test_replica: replica 1 died of SIGSEGV (no second try)")


def test_children_have_the_signals_of_a_terminal_under_nohup(planted: Path) -> None:
    ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    ended = subprocess.run(
        ["bash", "-c", 'trap "" HUP INT QUIT; exec "$@"', "-", sys.executable, "-m", "pytest", "-k", "hang_up"],
        cwd=planted, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    assert all(signal.getsignal(number) != signal.SIG_IGN for number in ignored)


def test_a_failure_is_printed_before_the_run_ends(planted: Path) -> None:
    """A run that is killed has already said what failed."""
    (planted / "test_stuck.py").write_text("import time\ndef test_stuck():\n    time.sleep(600)\n")
    command = [sys.executable, "-m", "pytest", "-k", "always or stuck", "-n", "1"]
    with subprocess.Popen(
        command, cwd=planted, env={**os.environ}, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None
        try:
            assert any("FAILED test_planted.py::test_always" in line for line in run.stdout)
        finally:
            os.killpg(run.pid, signal.SIGKILL)


def test_flaky_tests_have_a_budget() -> None:
    failures = [Failure(f"test_{number}", "", "late", "") for number in range(6)]
    assert judge(failures[:3], [])[0]
    assert not judge(failures[:4], [])[0]
    assert not judge(failures, [])[0]
    assert not judge(failures[:1], failures[:1])[0]
    assert judge([], []) == (True, [])
    shared = [Failure(f"tests/test_lab.py::test_{number}", "", "no lab", "") for number in range(8)]
    assert judge(shared, [])[0], "one fixture failed, once"
    assert not judge([*shared, *failures[:3]], [])[0]


SYSTEM = {"daemon", "faults", "servers", "store", "trainings"}


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ("agent/gpq_agent/train/loop/loop.py", {"habits", "library", "gpu", "frameworks", "checks", "trainings"}),
        ("agent/gpq_agent/train/frameworks/versions.py", {"frameworks"}),
        ("agent/gpq_agent/node/shim/shim.py", {"agent", "simulation", *SYSTEM}),
        ("agent/gpq_agent/standby/interpreter.py", {"agent", *SYSTEM}),
        ("gpq/cli/jobs/status.py", set()),
        ("gpq/core/goodput/goodput.py", {"simulation", "policies", *SYSTEM}),
        ("tests/support/commands.py", {"agent", *SYSTEM}),
        ("tests/habits/loops_kept.py", {"habits"}),
        ("tests/habits/__pycache__/cells.pyc", set()),
        ("agent/gpq_agent/train/.ruff_cache/0.17/1", set()),
    ],
)
def test_a_change_makes_the_groups_stale_that_check_it(changed: str, names: set[str], tmp_path: Path) -> None:
    before = {group.name: group.digest(tmp_path) for group in GROUPS}
    path = tmp_path / changed
    path.parent.mkdir(parents=True)
    path.write_text("1\n")
    assert {group.name for group in GROUPS if group.digest(tmp_path) != before[group.name]} == names


def test_ten_turns_run_every_test() -> None:
    names = [f"tests/habits/test_habits.py::test_{number}" for number in range(200)]
    turns = [{name for name in names if drawn(name, number)} for number in range(PARTS)]
    assert set.union(*turns) == set(names)
    assert sum(len(turn) for turn in turns) == len(names)


def test_every_path_of_a_group_exists() -> None:
    missing = [place for group in GROUPS for place in (*group.tests, *group.sources) if not (ROOT / place).exists()]
    assert missing == []
    assert json.loads((ROOT / "tests" / "proven.json").read_text()).keys() <= {group.name for group in GROUPS}
