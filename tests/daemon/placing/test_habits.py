"""A habit of a loop, from the line of a training process to what its user reads, through a real daemon and its agent."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpq.rpc.job_answers import Explanation, JobDetail, JobList
from gpq.rpc.requests import Show, Status, Why
from tests.daemon.daemons import Daemon, daemon
from tests.daemon.placing.test_draining import gpq
from tests.support.waiting import wait_until

# Writes a library's reports, including some that no library would send. When asked to stop, it proves a checkpoint. It
# never resizes on its own.
TRAINING = """\
import json, os, sys, time
folder = os.environ["GPQ_RUN_DIR"]
def say(*lines):
    with open(os.path.join(folder, "report.jsonl"), "a") as report:
        for line in lines:
            report.write((line if isinstance(line, str) else json.dumps({"v": 1, "time": time.time(), **line})) + "\\n")
say({"kind": "declared", "level": "adaptive", "batch_size": 64, "max_batch_size": 512, "max_atomic_batch": 128,
     "dataset_size": 6400, "epochs": 10})
if sys.argv[1] == "loud":
    say(*({"kind": "habit", "code": f"made-up-{i}", "freedoms": ["split"], "message": "x" * 500, "cure": i}
          for i in range(10_000)))
    say({"kind": "habit", "code": ["own-epochs"], "freedoms": ["resize"]}, {"kind": "habit", "freedoms": "resize"},
        {"kind": "habit", "code": "none", "freedoms": ["fly", 7, None]}, "{")
if sys.argv[1] in ("loud", "plain"):
    say({"kind": "habit", "code": "own-epochs", "freedoms": ["resize", "levitate"],
         "message": "the loop is\\n outside \\u001b[31mjob.epochs()", "cure": "for epoch in job.epochs(count):"})
say({"kind": "ready", "seconds": 1.0, "restore_seconds": 0.0},
    {"kind": "progress", "epoch": 1, "epochs": 10, "samples": 64, "step": 10, "base_steps": 10.0, "fraction": 0.01})
while True:
    with open(os.path.join(folder, "control.json")) as control:
        if json.load(control).get("stop"):
            break
    time.sleep(0.05)
with open(os.path.join(folder, "stopped.json"), "w") as stopped:
    stopped.write("{}")
"""
CONFIG = """\
policy = "goodput"
interval = 5.0
[nodes.here]
slots = 2
"""


def submit(served: Daemon, script: Path, how: str) -> int:
    return served.submit(str(script), how, level="script", max_gpus=2, python=sys.executable, modules=[])


def shown(served: Daemon, job: int) -> JobDetail:
    return served.call(Show(str(job)), JobDetail)


def test_a_habit_is_reported_obeyed_kept_and_lent_to_the_next_job(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    with daemon(tmp_path / "home", CONFIG) as served:
        served.wait_for_nodes()
        first = submit(served, script, "plain")
        wait_until(lambda: bool(shown(served, first).habits), "its habit is known")
        [habit] = shown(served, first).habits
        assert (habit.code, habit.freedoms, habit.lent) == ("own-epochs", ["resize"], False)
        assert habit.message == "the loop is outside [31mjob.epochs()"
        refused = gpq(served, "edit", str(first), "--gpus", "2")
        assert refused.returncode == 5
        assert "(own-epochs)" in refused.stderr
        assert "for epoch in job.epochs(count):" in refused.stderr
        why = json.loads(gpq(served, "why", str(first), "--json").stdout)
        assert [each["code"] for each in why["habits"]] == ["own-epochs"]
        assert any("neither resizes nor moves" in reason for reason in why["reasons"])
        assert "freedoms lost to habits of the loop" in gpq(served, "show", str(first)).stdout

        attempt = shown(served, first).job.attempt
        again = gpq(served, "requeue", str(first))
        assert (again.returncode, "does not resume exactly" in again.stderr) == (0, True)

        def goes_on() -> bool:
            row = shown(served, first).job
            return row.attempt == attempt + 1 and row.state == "running" and row.gpus == 1

        wait_until(goes_on, "it continues with the same number of GPUs although two are free")

        served.kill()
        served.start()
        assert [each.code for each in shown(served, first).habits] == ["own-epochs"]
        second = submit(served, script, "quiet")
        wait_until(
            lambda: [each.lent for each in shown(served, second).habits] == [True], "the next job starts with it"
        )


def test_ten_thousand_habits_and_worse_harm_nobody(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    with daemon(tmp_path / "home", CONFIG) as served:
        served.wait_for_nodes()
        loud = submit(served, script, "loud")

        def freedoms() -> set[str]:
            return {each for habit in shown(served, loud).habits for each in habit.freedoms}

        wait_until(lambda: freedoms() == {"split", "resize"}, "what it takes counts, beyond the bound as well")
        habits = shown(served, loud).habits
        assert len(habits) == 32
        assert all(len(each.message) <= 300 for each in habits)
        [row] = served.call(Status([str(loud)]), JobList).jobs
        assert (row.state, row.progress) == ("running", 0.01)
        assert len(served.call(Why(str(loud)), Explanation).habits) == 32
