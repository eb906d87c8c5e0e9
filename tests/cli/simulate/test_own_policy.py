"""A policy and a command of another package, added as CONTRIBUTING says, and packages that are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import blocks
from tests.support.measurements import tiny, workload
from tests.support.waiting import wait_until
from tests.words.texts import ROOT

TRACES = ("w.csv", "--traces", "traces", "--nodes", "2x4")


def recipe(language: str, piece: str) -> str:
    """The block of CONTRIBUTING in this language that has the piece."""
    [text] = [
        block.text for block in blocks(ROOT / "CONTRIBUTING.md") if block.language == language and piece in block.text
    ]
    return text


def install(folder: Path, module: str, entries: str) -> None:
    """A distribution own-policy in the folder, as pip would install it."""
    (folder / "own_policy.py").write_text(module)
    metadata = folder / "own_policy-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-policy\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entries)


def gpq(folder: Path, *argv: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of a gpq that sees the distribution in the folder."""
    command = [sys.executable, "-m", "gpq", *argv]
    run = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    return run.returncode, run.stdout, run.stderr


def environment(folder: Path) -> dict[str, str]:
    env = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "GPQ_HOME": str(folder / "home"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "COLUMNS": "200",
    }
    env.pop("GPQ_CONFIG", None)
    return env


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package of the recipe, with a workload next to it."""
    table = recipe("toml", "gpq.policies").partition('"gpq.policies"]\n')[2]
    install(tmp_path, recipe("python", "class Smallest"), "[gpq.policies]\n" + table.replace('"', ""))
    tiny(tmp_path / "traces")
    workload(tmp_path / "w.csv")
    return tmp_path


def test_a_policy_of_another_package_is_simulated_like_any_other(package: Path) -> None:
    code, out, err = gpq(package, "simulate", *TRACES, "--policy", "smallest,fifo", "--jobs-parallel", "2", "--json")
    assert (code, err) == (0, "")
    runs = json.loads(out)["runs"]
    assert [(run["policy"], run["jobs"]) for run in runs] == [("smallest", 4), ("fifo", 4)]


def test_a_policy_of_another_package_may_be_that_of_the_daemon(package: Path) -> None:
    (package / "config.toml").write_text('policy = "smallest"\n\n[nodes.local]\nslots = 1\n')
    assert gpq(package, "config", "check", str(package / "config.toml"))[0] == 0
    code, out, _ = gpq(package, "config", "policies")
    assert code == 0
    assert "smallest        jobs that ask for fewer GPUs go first" in out


def test_an_unknown_policy_is_named_with_those_of_other_packages(package: Path) -> None:
    code, _, err = gpq(package, "simulate", *TRACES, "--policy", "smalest")
    assert (code, err.splitlines()[0]) == (2, "gpq: unknown policy `smalest`")
    assert "backfill, fifo, gavel" in err
    assert "smallest" in err


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("import nothing_of_this_name\n", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("x = 1 +\n", "SyntaxError: invalid syntax (own_policy.py, line 1)"),
        ("", "AttributeError: module 'own_policy' has no attribute 'Own'"),
        ("class Own:\n    name = 'own'\n", "it is not a class of gpq.core.model.policy.Policy"),
    ],
)
def test_a_broken_policy_is_one_line_with_a_hint_and_harms_no_other(tmp_path: Path, module: str, reason: str) -> None:
    install(tmp_path, module, "[gpq.policies]\nown = own_policy:Own\n")
    tiny(tmp_path / "traces")
    workload(tmp_path / "w.csv")
    assert gpq(tmp_path, "simulate", *TRACES, "--policy", "own") == (
        2,
        "",
        f"gpq: cannot use `own` of the package own-policy: {reason}\n"
        "hint: correct own_policy:Own there, or uninstall own-policy\n",
    )
    assert gpq(tmp_path, "simulate", *TRACES, "--policy", "fifo")[0] == 0


ASTRAY = """
from gpq.core.model.placements import Layout
from gpq.core.model.policy import Policy


class Own(Policy):
    name = "another"

    def allocate(self, snapshot):
        return {name: Layout((("gpu9", 4),)) for name in snapshot.jobs}
"""
WRONG = "policy own answered wrongly: for job 1 it named 4 GPUs"


@pytest.fixture
def astray(tmp_path: Path) -> Path:
    """A package whose policy names a server that does not exist, with a workload next to it."""
    install(tmp_path, ASTRAY, "[gpq.policies]\nown = own_policy:Own\n")
    tiny(tmp_path / "traces")
    workload(tmp_path / "w.csv")
    return tmp_path


def test_a_wrong_answer_ends_its_simulation_and_no_other(astray: Path) -> None:
    code, out, err = gpq(astray, "simulate", *TRACES, "--policy", "own,fifo", "--json")
    assert (code, [run["policy"] for run in json.loads(out)["runs"]]) == (1, ["fifo"])
    assert err == (
        f"gpq: own on w (2x4, seed 0): {WRONG} on server 'gpu9', which does not exist\n"
        "hint: `gpq config policies` lists others\n"
    )


def test_status_top_and_the_log_tell_of_a_wrong_answer(astray: Path) -> None:
    (astray / "config" / "gpq").mkdir(parents=True)
    (astray / "config" / "gpq" / "config.toml").write_text('policy = "own"\n\n[nodes.local]\nslots = 4\n')
    # Not as `gpq daemon start` does it: without the variables of the shell it would not see the package.
    start = [sys.executable, "-m", "gpq.daemon.main"]
    log = astray / "log"
    with (
        log.open("w") as output,
        subprocess.Popen(start, env=environment(astray), cwd=astray, stderr=output) as daemon,
    ):
        try:
            wait_until(lambda: gpq(astray, "submit", "--gpus", "4", "--", "true")[0] == 0, "a job is submitted")
            note = wait_until(lambda: gpq(astray, "status")[2], "a note in gpq status")
            assert note == (
                f"note: {WRONG} on server 'gpu9', which does not exist. gpq changes nothing until it answers well:"
                " `gpq config policies` lists others\n"
            )
            assert gpq(astray, "top", "--once")[1].startswith(WRONG)
        finally:
            daemon.terminate()
    assert log.read_text().count(WRONG) == 1


COMMAND = '''
from gpq.cli.typer_app import frame

OWN = ("own_policy", "say hello")
app = frame()


@app.command()
def own() -> int:
    """Say hello."""
    print("hello")
    return 5
'''


def test_a_command_of_another_package_runs_and_is_in_the_help(tmp_path: Path) -> None:
    install(tmp_path, COMMAND, "[gpq.commands]\nown = own_policy:OWN\n")
    assert gpq(tmp_path, "own") == (5, "hello\n", "")
    assert "  own         say hello\n" in gpq(tmp_path, "--help")[1]


def test_a_broken_command_leaves_the_help_and_all_others_alone(tmp_path: Path) -> None:
    install(tmp_path, "", "[gpq.commands]\nown = own_policy:OWN\nstatus = own_policy:OWN\n")
    line = "cannot use `own` of the package own-policy: AttributeError: module 'own_policy' has no attribute 'OWN'"
    code, out, err = gpq(tmp_path, "--help")
    assert (code, err) == (0, "")
    assert f"  own         {line}\n" in out
    assert gpq(tmp_path, "own") == (
        2, "", f"gpq: {line}\nhint: correct own_policy:OWN there, or uninstall own-policy\n"
    )  # fmt: skip
    assert gpq(tmp_path, "config", "path")[0] == 0
