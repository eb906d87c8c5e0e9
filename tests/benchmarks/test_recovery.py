"""The judge and the readers of the recovery comparison: what jobs wrote, what job managers print, what counts as a
failure."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.compare_recovery import PACKAGES, how_to_install, lacking
from benchmarks.recovery import slurm, spooler
from benchmarks.recovery.findings import Burst, Findings, Partition, Running, failures
from benchmarks.recovery.ledger import Run, overlap, read, script
from benchmarks.recovery.report import NO_NETWORK, page
from benchmarks.recovery.system import Told
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


def lived(first: float, last: float, name: str = "run") -> Run:
    return Run(name, "srv-a", first, last, ended=True)


@pytest.mark.parametrize(
    ("runs", "seconds"),
    [
        ([], 0.0),
        ([lived(0, 10)], 0.0),
        ([lived(0, 10), lived(10, 20)], 0.0),
        ([lived(0, 10), lived(8, 20)], 2.0),
        ([lived(8, 20), lived(0, 10)], 2.0),
        ([lived(0, 30), lived(5, 10), lived(12, 14)], 7.0),
        ([lived(0, 30), lived(5, 10), lived(6, 14)], 9.0),
        ([lived(0, 10), lived(0, 10), lived(0, 10)], 10.0),
    ],
)
def test_overlap_is_the_time_in_which_two_or_more_runs_lived(runs: list[Run], seconds: float) -> None:
    assert overlap(runs) == pytest.approx(seconds)


def test_the_ledger_shows_each_run_of_a_job(tmp_path: Path) -> None:
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    waiting = script("one", str(tmp_path), "srv-x", waits=True, code=7)
    with subprocess.Popen(["sh", "-c", waiting]) as job:
        wait_until(lambda: read_all(tmp_path).get("one"), "the first run is in the ledger")
        threading.Event().wait(0.05)  # their stamps are in hundredths of a second and must differ
        killed = subprocess.Popen(["sh", "-c", waiting])
        wait_until(lambda: len(read_all(tmp_path)["one"]) == 2, "the second run is in the ledger")
        killed.kill()
        killed.wait()
        (tmp_path / "go-one").touch()
        assert job.wait(60) == 7
    assert subprocess.run(["sh", "-c", script("two", str(tmp_path), "srv-y", waits=False)], check=False).returncode == 0
    found = read_all(tmp_path)
    first, second = found["one"]
    assert (first.node, first.ended, second.ended) == ("srv-x", True, False)
    assert began - 0.02 <= first.first <= second.first <= second.last <= first.last
    assert [(run.node, run.ended) for run in found["two"]] == [("srv-y", True)]


def read_all(folder: Path) -> dict[str, list[Run]]:
    ledger = folder / "ledger"
    return read([ledger.read_text()] if ledger.exists() else [])


def test_an_unfinished_line_is_ignored_and_servers_are_joined() -> None:
    here, there = "start job 1 2.0 a\nbeat job 1 3.0 a\nend job 1 4", "start job 2 1.0 b\nend job 2 9.5 b\n"
    assert read([here, there]) == {"job": [Run("2", "b", 1.0, 9.5, ended=True), Run("1", "a", 2.0, 3.0, ended=False)]}


def test_reads_the_output_of_scontrol() -> None:
    line = (
        "JobId={} JobName={} UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901757 Nice=0 Account=(null)"
        " QOS=(null) JobState={} Reason=None Dependency=(null) Requeue=1 Restarts={} BatchFlag=1 Reboot=0 ExitCode={}"
        " RunTime=00:00:20 TimeLimit=UNLIMITED NodeList=srv-a\n"
    )
    said = (
        line.format(1, "cut0-1", "RUNNING", 1, "0:0")
        + line.format(2, "m1-2", "FAILED", 0, "7:0")
        + line.format(3, "m0-3", "NODE_FAIL", 0, "0:1")
        + line.format(4, "burst-4", "FAILED", 0, "0:15")
        + line.format(5, "holder-5", "COMPLETED", 0, "0:0")
    )
    assert slurm.told(said) == {
        "cut0-1": Told("running again", over=False),
        "m1-2": Told("failed", over=True, exit_code=7),
        "m0-3": Told("node_fail", over=True),
        "burst-4": Told("failed", over=True),
        "holder-5": Told("completed", over=True, exit_code=0),
    }
    assert slurm.told("No jobs in the system\n") == {}


def test_reads_the_output_of_tsp() -> None:
    said = (
        "ID   State      Output               E-Level  Times(r/u/s)   Command [run=1/1]\n"
        "2    running    /tmp/x/ts-out.gP6BPO                         [holder-1]sh /tmp/x/holder-1.sh\n"
        "3    queued     (file)                                       [burst-2]sh /tmp/x/burst-2.sh\n"
        "0    finished   /tmp/x/ts-out.1qbUPP 7        0.00/0.00/0.00 [m1-3]sh /tmp/x/m1-3.sh\n"
        "1    finished   /tmp/x/ts-out.1qbUPR -1       0.00/0.00/0.00 [m1-4]sh /tmp/x/m1-4.sh\n"
    )
    assert spooler.told(said) == {
        "holder-1": Told("running", over=False),
        "burst-2": Told("queued", over=False),
        "m1-3": Told("finished", over=True, exit_code=7),
        "m1-4": Told("finished", over=True, exit_code=-1),
    }


def test_the_tsp_server_is_the_process_that_listens() -> None:
    table = (
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        "0000: 00000003 00000000 00000000 0001 03 111 /tmp/x/socket\n"
        "0000: 00000002 00000000 00010000 0001 01 222 /tmp/x/socket\n"
        "0000: 00000002 00000000 00010000 0001 01 333 /tmp/y/socket\n"
        "0000: 00000002 00000000 00000000 0002 01 444\n"
    )
    assert spooler.listener(table, "/tmp/x/socket") == 222
    assert spooler.listener(table, "/tmp/z/socket") == 0


BURST = Burst(rounds=12, acknowledged=60, lost=0, reused_ids=0, doubled=0, oldest_ack=0.4)
RUNNING = Running(
    "while away", tries=3, lived_on=3, code_known=3, code_wrong=0, doubled=0, said=("failed, exit code 7",)
)
CUT = Partition("default", 90.0, 1, 0.0, 110.0, ("running", "unknown"), ("running", "failed"), 7, code_right=True)
GOOD = Findings("gpq 1", ("as it is",), (), BURST, (RUNNING,), (CUT,))


def test_no_lost_or_doubled_job_means_no_failure() -> None:
    assert failures(GOOD) == []
    moved = dataclasses.replace(CUT, runs=2)  # one after the other
    assert failures(dataclasses.replace(GOOD, partitions=(moved,))) == []
    assert failures(dataclasses.replace(GOOD, partitions=None)) == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"burst": dataclasses.replace(BURST, lost=48)}, "48 acknowledged jobs lost"),
        ({"burst": dataclasses.replace(BURST, reused_ids=2)}, "2 job ids handed out again"),
        ({"burst": dataclasses.replace(BURST, doubled=1)}, "1 queued jobs run more than once"),
        ({"running": (dataclasses.replace(RUNNING, lived_on=1),)}, "2 jobs did not live on (while away)"),
        ({"running": (dataclasses.replace(RUNNING, code_known=2),)}, "1 exit codes not known or wrong (while away)"),
        ({"running": (dataclasses.replace(RUNNING, doubled=1),)}, "1 jobs run more than once (while away)"),
        ({"partitions": (dataclasses.replace(CUT, overlap_seconds=0.3),)}, "0.3 s of two runs at once (default)"),
        ({"partitions": (dataclasses.replace(CUT, exit_code=None, code_right=False),)}, "exit code None after"),
    ],
)
def test_each_failure_is_named(found: dict[str, object], said: str) -> None:
    [line] = failures(dataclasses.replace(GOOD, **found))  # type: ignore[arg-type]
    assert line.startswith(said)
    assert said in page([dataclasses.replace(GOOD, **found)], "about")  # type: ignore[arg-type]


def test_the_tables_have_a_column_for_each_system_and_say_what_does_not_apply() -> None:
    other = dataclasses.replace(GOOD, system="other 2", partitions=None, better=("a setting",))
    text = page([GOOD, other], "about this machine")
    assert text.count("0 of 60") == 2
    assert "| other 2 " in text
    assert NO_NETWORK in text
    assert "- a setting" in text
    assert "gpq: nothing lost, nothing run twice, no exit code wrong" in text
    for block in text.split("\n\n"):
        assert len({len(line) for line in block.splitlines() if line.startswith("|")}) <= 1


def test_missing_packages_are_named_with_the_command_that_installs_them(tmp_path: Path) -> None:
    assert lacking(["tsp"], str(tmp_path)) == sorted({*PACKAGES["gpq"].values(), "task-spooler"})
    for command in PACKAGES["gpq"]:
        (tmp_path / command).touch(mode=0o700)
    assert lacking(["gpq"], str(tmp_path)) == []
    assert lacking(["gpq", "slurm"], str(tmp_path)) == ["munge", "slurm-client", "slurmctld", "slurmd"]
    assert how_to_install(["munge", "slurmd"]).endswith("apt-get install --no-install-recommends munge slurmd")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "nobody"], "unknown --only nobody: use gpq, slurm, tsp"),
        (["--runs", "0"], "--runs, --rounds, --burst and --tries must be at least 1"),
    ],
)
def test_bad_options_are_refused_in_one_line(options: list[str], said: str) -> None:
    argv = [sys.executable, str(ROOT / "benchmarks" / "compare_recovery.py"), *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
