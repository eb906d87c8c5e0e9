"""A job whose environment is nowhere waits and says why. It starts when a server has it. Its setup runs first."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpq.errors import GpqError
from gpq.rpc.job_answers import CancelResult, DryRun, Explanation, JobList, JobView, LogChunk, Submitted
from gpq.rpc.requests import Cancel, Logs, SpecMessage, Status, Submit, Wait, Why
from tests.daemon.daemons import Daemon, daemon
from tests.support.waiting import wait_until

CONFIG = """\
policy = "fifo"
interval = 5.0
setup_limit = 30.0
[nodes.one]
slots = 1
script_python = "{one}"
[nodes.two]
slots = 1
script_python = "{two}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("environments")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Daemon]:
    (folder / "python").symlink_to(sys.executable)
    config = CONFIG.format(one="/no/python", two=folder / "python")
    with daemon(folder / "home", config) as running:
        running.wait_for_nodes()
        yield running


@pytest.fixture(autouse=True)
def nothing_left(served: Daemon) -> Iterator[None]:
    yield
    assert served.call(Cancel(["all"]), CancelResult).remaining == []


def submit(served: Daemon, argv: list[str], cwd: Path | str, level: str = "script", **more: object) -> int:
    spec = SpecMessage(argv, str(cwd), level, **more)  # type: ignore[arg-type]
    return served.call(Submit(spec), Submitted).id


def row(served: Daemon, job: int) -> JobView:
    [found] = served.call(Status([str(job)]), JobList).jobs
    return found


def ended(served: Daemon, job: int) -> JobView:
    [found] = served.call(Wait([str(job)], wait=60.0), JobList).jobs
    return found


def log(served: Daemon, job: int) -> str:
    return base64.b64decode(served.call(Logs(str(job), wait=10), LogChunk).data).decode()


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "show.py"
    path.write_text("import os, sys\nprint(os.environ['GPQ_DEVICES'], sys.executable, os.environ.get('MADE', ''))\n")
    return str(path)


def test_a_script_runs_on_the_server_with_an_interpreter_of_its_own(served: Daemon, folder: Path, script: str) -> None:
    for _ in range(2):  # otherwise the first of them would be used
        job = submit(served, [script], "/tmp", python="/also/not/there")
        assert ended(served, job).state == "completed"
        assert log(served, job).split()[1] == str(folder / "python")
    asked = submit(served, [script], "/tmp", python=sys.executable, python_asked=True)
    assert ended(served, asked).state == "completed"


def test_a_job_without_its_folder_waits_with_the_reason_until_it_exists(served: Daemon, tmp_path: Path) -> None:
    missing = tmp_path / "later"
    job = submit(served, ["pwd"], missing, "black-box")
    wait_until(lambda: row(served, job).reason == f"no server fits: no folder {missing}", "the reason is shown")
    said = served.call(Why(str(job)), Explanation)
    assert [reason.split(" (")[0] for reason in said.reasons] == [
        f"server one: no folder {missing}", f"server two: no folder {missing}",
    ]  # fmt: skip
    assert "gpq checks again every 30 s" in said.remedies
    assert row(served, job).state == "pending"
    assert row(served, job).attempt == 0
    missing.mkdir()
    submit(served, ["true"], missing, "black-box")  # so that the test need not wait for the next check
    assert ended(served, job).state == "completed"
    assert log(served, job) == f"{missing}\n"


def test_a_missing_module_is_named_and_an_installed_one_is_found(served: Daemon, script: str) -> None:
    job = submit(served, [script], "/tmp", modules=["nosuch_module"])
    wait_until(lambda: row(served, job).reason == "no server has its environment", "the reason is shown")
    said = served.call(Why(str(job)), Explanation)
    assert "server one: no interpreter /no/python" in said.reasons[0]
    assert "has no module nosuch_module" in said.reasons[1]
    assert any("pip install nosuch_module" in line for line in said.remedies)
    other = submit(served, [script], "/tmp", modules=["json"])
    assert ended(served, other).state == "completed"


def test_a_setup_runs_on_each_server_before_the_first_start_and_jobs_get_what_it_exports(
    served: Daemon, script: str, tmp_path: Path
) -> None:
    setup = f"echo ran >> {tmp_path}/ran; export MADE=$((6 * 7))"
    for _ in range(2):
        job = submit(served, [script], "/tmp", setup=setup)
        assert ended(served, job).state == "completed"
        assert log(served, job).split()[2] == "42"
    wait_until(lambda: (tmp_path / "ran").read_text() == "ran\nran\n", "it ran once on each of the two servers")


def test_a_setup_does_not_see_the_variables_that_only_the_job_gets(served: Daemon, script: str, tmp_path: Path) -> None:
    setup = f"env >> {tmp_path}/seen; export MADE=1"
    job = submit(
        served, [script], "/tmp", setup=setup, env={"WANDB_API_KEY": "only-here", "MADE": "0", "PATH": "/bin:/usr/bin"}
    )
    assert ended(served, job).state == "completed"
    assert log(served, job).split()[2] == "1"
    assert "PATH=/bin:/usr/bin\n" in (tmp_path / "seen").read_text()
    assert "only-here" not in (tmp_path / "seen").read_text()
    with pytest.raises(GpqError, match="the setup uses WANDB_API_KEY, which only the job gets") as refusal:
        submit(served, ["true"], "/tmp", setup='curl "${WANDB_API_KEY}"', env={"WANDB_API_KEY": "only-here"})
    assert "WANDB_API_KEY=..." in refusal.value.hint


def test_a_setup_that_fails_keeps_the_job_waiting_with_its_last_line(served: Daemon) -> None:
    job = submit(served, ["true"], "/tmp", "black-box", setup="echo cannot be made; exit 4")
    reason = "no server fits: the setup failed (exit 4): cannot be made"
    wait_until(lambda: row(served, job).reason == reason, "the reason is shown")
    assert row(served, job).attempt == 0
    assert any("/environments/" in line for line in served.call(Why(str(job)), Explanation).remedies)


def test_a_dry_run_assumes_that_an_unchecked_environment_exists(served: Daemon, tmp_path: Path) -> None:
    spec = SpecMessage(["true"], str(tmp_path / "never"), "black-box")
    assert served.call(Submit(spec, dry_run=True), DryRun).state == "starting"
    job = served.call(Submit(spec), Submitted).id
    wait_until(lambda: "no folder" in row(served, job).reason, "the reason is shown")
    assert served.call(Submit(spec, dry_run=True), DryRun).reasons[0].startswith("server one: no folder")
