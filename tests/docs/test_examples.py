"""Every example runs: alone, through gpq, and all together in the demonstration."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpq.rpc.job_answers import Changed
from gpq.rpc.requests import Hold, Release
from tests.e2e.harness import Daemon
from tests.support import schemas
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
ALONE = {"PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}", "OMP_NUM_THREADS": "1"}


def run(*argv: str, seconds: float = 250.0, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPQ_")}
    return subprocess.run(
        [*argv], capture_output=True, text=True, timeout=seconds, check=False, env={**kept, **ALONE, **env}
    )


def test_every_example_is_run_here() -> None:
    found = {path.name for path in EXAMPLES.iterdir() if path.name != "__pycache__"}
    assert found == {"digits", "chargpt", "blackbox.sh", "signal_checkpoint.py", "grafana", "pictures"}


def test_digits_reaches_its_target_without_gpq() -> None:
    done = run(sys.executable, str(EXAMPLES / "digits" / "train.py"), "--epochs", "25")
    assert done.returncode == 0, done.stderr
    assert "reached" in done.stdout.splitlines()[-1]


def test_a_missed_target_gives_exit_code_1() -> None:
    done = run(sys.executable, str(EXAMPLES / "digits" / "train.py"), "--epochs", "1", "--lr", "0.0001")
    assert done.returncode == 1, done.stderr
    assert "missed" in done.stdout.splitlines()[-1]


def test_chargpt_learns_in_two_processes_of_plain_torchrun() -> None:
    options = ["--epochs", "1", "--text", "120000", "--target", "3.0"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run(sys.executable, *launcher, str(EXAMPLES / "chargpt" / "train.py"), *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("target 3.0: reached") == 1  # only one replica prints


def test_the_black_box_runs_through_gpq() -> None:
    with Daemon(slots=1) as daemon:
        job = daemon.submit("sh", str(EXAMPLES / "blackbox.sh"), "2")
        assert daemon.ended(job) == {job: ("completed", 0)}
        assert "step 2/2: pi is about 3.14159" in daemon.log(job)


def test_the_signal_example_stops_resumes_and_counts_the_same() -> None:
    with Daemon(slots=1) as daemon:
        script = str(EXAMPLES / "signal_checkpoint.py")
        job = daemon.submit(sys.executable, script, "--below", "400000", level="signal", signal="USR1", grace=60.0)
        wait_until(lambda: "primes below" in daemon.log(job), "the script counts")
        daemon.call(Hold([str(job)]), Changed)
        daemon.until(job, "held")
        assert "stopped at" in daemon.log(job)
        daemon.call(Release([str(job)]), Changed)
        assert daemon.ended(job) == {job: ("completed", 0)}
        assert daemon.detail(job).job.restarts == 1
        last = daemon.log(job, attempt=2)
    assert "going on at" in last
    assert last.splitlines()[-1] == "33860 primes below 400000"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_in_the_demo_of_a_team_nobody_stays_below_their_floor(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="gpq-demo-") as home:  # the path of a socket has at most 107 bytes
        command = [sys.executable, "-m", "gpq", "demo", "--team", "--json", "--home", home, "--timeout", "10m"]
        done = run(*command, seconds=800)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    [result] = schemas.check("demo", done.stdout)
    assert [row["floor"] for row in result["members"]] == [2, 1, 1]


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_the_demo_keeps_all_its_promises(tmp_path: Path) -> None:
    home = Path("/tmp") / f"gpq-demo-test-{os.getpid()}"  # the path of a socket has at most 107 bytes
    try:
        done = run(sys.executable, "-m", "gpq", "demo", "--json", "--home", str(home), "--timeout", "20m", seconds=1300)
        [result] = schemas.check("demo", done.stdout)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    finally:
        lock = home / "daemon.lock"
        if lock.exists():
            left = lock.read_text().split()
            assert not left or not Path(f"/proc/{left[0]}").exists() or os.kill(int(left[0]), signal.SIGTERM) is None
        subprocess.run(["rm", "-rf", str(home)], check=True)
    assert result["completed"] == result["targets_reached"] == len(result["jobs"]) == 3
    assert result["resized"] >= 1
    assert result["batch_changed"] >= 1
    assert result["samples_exact"]
