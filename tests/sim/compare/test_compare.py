"""Runs side by side: what they are, that the number of processes changes nothing, and what the rules of an artifact
charge."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpq.errors import UsageError
from gpq.lab.measurements.sources import SIA, Charges, Published
from gpq.lab.simulator import compare
from gpq.lab.simulator.outcomes import Outcome
from gpq.lab.simulator.rules import Rules, parse_cluster
from tests.support.measurements import WORKLOAD, tiny, workload

RULES = Rules(nodes=())


def source(folder: Path, *rows: str, charges: Charges | None = None, name: str = "w") -> Published:
    return Published(
        name, str(workload(folder / f"{name}.csv", *rows)), str(tiny(folder / "traces")), charges or Charges()
    )


def clusters(*texts: str) -> list[compare.Cluster]:
    return [compare.Cluster(text, parse_cluster(text)) for text in texts]


def figures(outcome: Outcome) -> Outcome:
    """The outcome without the figures that come from this machine's clock."""
    return replace(outcome, round_seconds=(), wall_seconds=0.0)


def run_all(
    runs: list[compare.Run], processes: int = 1, progress: Callable[[Sequence[float]], None] | None = None
) -> list[Outcome]:
    outcomes = compare.attempt_all(runs, processes, progress)
    assert all(isinstance(outcome, Outcome) for outcome in outcomes)
    return [outcome for outcome in outcomes if isinstance(outcome, Outcome)]


def test_every_combination_is_run_once_in_a_stated_order(tmp_path: Path) -> None:
    sources = [source(tmp_path, name="v"), source(tmp_path, name="w")]
    runs = compare.plan(["goodput", "fifo"], sources, clusters("1x4", "2x4"), RULES, [0, 1])
    said = [(run.cluster, run.policy, run.source.name, run.rules.seed) for run in runs]
    assert len(set(said)) == len(said) == 16
    assert said[:5] == [("1x4", "goodput", "v", 0), ("1x4", "goodput", "v", 1), ("1x4", "goodput", "w", 0),
                        ("1x4", "goodput", "w", 1), ("1x4", "fifo", "v", 0)]  # fmt: skip
    assert len(runs[0].rules.nodes) == 1
    assert len(runs[-1].rules.nodes) == 2


def test_the_number_of_processes_changes_only_the_time_it_takes(tmp_path: Path) -> None:
    runs = compare.plan(["goodput", "fifo"], [source(tmp_path)], clusters("2x4"), RULES)
    shares: list[list[float]] = []
    together = run_all(runs, 2, lambda found: shares.append(list(found)))
    alone = run_all(runs)
    assert list(map(figures, together)) == list(map(figures, alone))
    assert [outcome.policy for outcome in together] == ["goodput", "fifo"]
    assert all(0.0 <= share <= 1.0 for found in shares for share in found)


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    runs = compare.plan(["fifo"], [source(tmp_path)], clusters("1x4", "2x4"), RULES)
    shares: list[list[float]] = []
    compare.attempt_all(runs, 1, lambda found: shares.append(list(found)))
    assert shares[-1] == [1.0, 1.0]
    assert shares == sorted(shares)
    assert len(shares) > len(runs)


def test_an_error_in_a_process_is_reported_unchanged(tmp_path: Path) -> None:
    runs = compare.plan(["fifo"], [source(tmp_path), source(tmp_path, name="v")], clusters("2x4"), RULES)
    (tmp_path / "v.csv").write_text(WORKLOAD + "\nx,0,tiny,1,32\ny,nan,tiny,1,32\n")
    with pytest.raises(UsageError, match=r"v\.csv row 3") as caught:
        compare.attempt_all(runs, 2)
    assert caught.value.hint


@pytest.mark.parametrize("processes", [1, 2])
def test_an_unmeasured_size_is_reported_with_policy_and_workload(tmp_path: Path, processes: int) -> None:
    jobs = [source(tmp_path, "a,0,tiny,7,32", name=name) for name in ("v", "w")]
    runs = compare.plan(["fifo"], jobs, clusters("1x8"), RULES)
    failures = compare.attempt_all(runs, processes)
    assert [(failure.policy, failure.workload) for failure in failures] == [("fifo", "v"), ("fifo", "w")]
    for failure in failures:
        assert isinstance(failure, compare.FailedRun)
        assert failure.error.startswith("tiny was not measured on 7 GPUs of 1 node")


def test_sias_charges_depend_on_the_application(tmp_path: Path) -> None:
    for name in ("bert", "cifar10", "ncf"):
        tiny(tmp_path / "traces", name)
    rows = ("a,0,tiny,1,32", "b,0,other,1,32")
    tiny(tmp_path / "traces", "other")
    charges = Charges((("tiny", 50.0),), 7.0, (("other", 1.5),), 1.2)
    tasks = source(tmp_path, *rows, charges=charges).tasks()
    assert [(task.restart, task.slowdown) for task in tasks] == [(50.0, 1.2), (7.0, 1.5)]
    assert dict(SIA.restarts)["imagenet"] == 250.0


def test_a_category_fixes_the_batch_size_or_also_the_gpus(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text(f"{WORKLOAD},category\na,0,tiny,2,64,rigid\nb,0,tiny,2,64,scale-gpus\nc,0,tiny,2,64,adaptive\n")
    tasks = Published("w", str(path), str(tiny(tmp_path / "traces"))).tasks()
    assert [task.rigid for task in tasks] == [True, False, False]
    assert [task.truth.fixed_batch for task in tasks] == [64, 64, 0]
    assert tasks[0].truth is tasks[1].truth
    assert tasks[0].truth.times((2,), 32.0) == tasks[2].truth.times((2,), 32.0)
    assert tasks[0].truth.progress(3) == 3000


def test_only_gangs_need_all_the_gpus_they_ask_for(tmp_path: Path) -> None:
    jobs = [source(tmp_path, "a,0,tiny,1,32", "b,0,tiny,4,32")]
    compare.preflight(jobs, clusters("1x2"), ["goodput"])
    with pytest.raises(UsageError, match=r"w\.csv row 3: job b does not fit 1x2: it asks for 4 GPUs, but there are 2"):
        compare.preflight(jobs, clusters("1x4", "1x2"), ["goodput", "fifo"])
    with pytest.raises(UsageError, match=r"row 2: .*no measurements on GPU type h100"):
        compare.preflight(jobs, clusters("1x4:h100"), ["goodput"])


def test_blocks_hold_the_runs_of_one_cluster_and_their_means(tmp_path: Path) -> None:
    sources = [source(tmp_path, name="v"), source(tmp_path, "a,0,tiny,1,32", name="w")]
    runs = compare.plan(["fifo"], sources, clusters("1x4", "2x4"), RULES)
    blocks = compare.blocks(runs, run_all(runs))
    assert [block.cluster for block in blocks] == ["1x4", "2x4"]
    for block in blocks:
        [mean] = block.means
        assert [row.workload for row in block.rows] == ["v", "w"]
        assert mean.avg_jct == pytest.approx(sum(row.avg_jct for row in block.rows) / 2)


def test_output_that_a_solver_writes_past_python_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    with compare._without_chatter():
        os.write(1, b"a line of a library\n")
    os.write(1, b"ours\n")
    assert capfd.readouterr().out == "ours\n"


def test_output_that_c_buffers_until_the_end_is_dropped_too(tmp_path: Path) -> None:
    """Checks C's own output buffer. It needs a process of its own, because pytest's stays open."""
    program = (
        "import ctypes; from gpq.lab.simulator import compare\n"
        "with compare._without_chatter(): ctypes.CDLL(None).puts(b'chatter')"
    )
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open(tmp_path / "out", "wb") as out:
        subprocess.run([sys.executable, "-c", f"{program}\nprint('told')"], stdout=out, env=buffered, check=True)
    assert (tmp_path / "out").read_text() == "told\n"


def test_policies_with_an_oracle_run_on_a_cluster_of_one_named_type(tmp_path: Path) -> None:
    """Their shapes name no type if the cluster has only one. The measurements name it."""
    jobs = Published("w", str(workload(tmp_path / "w.csv")), str(tiny(tmp_path / "traces", kinds=("t4",))))
    runs = compare.plan(["optimus", "slaq", "srtf"], [jobs], clusters("2x4:t4"), RULES)
    assert [outcome.policy for outcome in run_all(runs)] == ["optimus", "slaq", "srtf"]
