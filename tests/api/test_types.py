"""Types as strict mypy shows them to a user: no error in a correct program, and every error in a wrong one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT

RIGHT = """
from datetime import timedelta
from pathlib import Path

from typing_extensions import assert_type

import gpq

job = gpq.submit(Path("train.py"), "--lr", 0.1, gpus=(1, 8), time=timedelta(hours=2), env={"A": "1"}, tag="x")
assert_type(job, gpq.Job)
assert_type(gpq.submit(command=["./run.sh", 3], gpus=2, hold=True), gpq.Job)
assert_type(gpq.submit(command=["true"], dry_run=True), gpq.DryRun)
assert_type(job.wait(timeout="2h"), int)
assert_type(job.status(), gpq.JobView)
assert_type(job.status().goodput, float | None)
assert_type(job.show().spec.argv, list[str])
assert_type(job.why().reasons, list[str])
assert_type(job.cancel(timeout=5).cancelled, list[int])
for line in job.logs(follow=True):
    assert_type(line, str)
for piece in job.log_pieces():
    assert_type(piece.data, bytes)
assert_type(gpq.jobs("3-7", user="ana"), list[gpq.Job])
assert_type(gpq.status(state=["running"]).jobs[0].placement[0].node, str)
assert_type(gpq.nodes().nodes, list[gpq.NodeView])
try:
    gpq.wait(job, 7, "@", timeout=60)
except gpq.errors.TimedOut as error:
    assert_type(error.hint, str)
"""
WRONG = [
    ("gpq.submit('train.py', gpu=2)", "call-overload"),
    ("gpq.submit('train.py', gpus=[1, 2])", "call-overload"),
    ("gpq.sumbit('train.py')", "attr-defined"),
    ("gpq.Job(1).wait(timeout=[])", "arg-type"),
    ("gpq.Job('1')", "arg-type"),
    ("gpq.Job(1).id = 2", "misc"),
]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="it is enough to run mypy on one Python")
def test_mypy_checks_a_users_program(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text("import gpq\n" + "".join(f"{line}\n" for line, _ in WRONG))
    said = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent",
         "right.py", "wrong.py"],
        env={**os.environ, "MYPYPATH": f"{ROOT}:{ROOT / 'agent'}"}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.findall(r"^(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$", said.stdout, re.MULTILINE)
    wanted = {("wrong", str(number), kind) for number, (_, kind) in enumerate(WRONG, start=2)}
    assert set(found) == wanted, said.stdout + said.stderr


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "gpq" / "py.typed").exists()
