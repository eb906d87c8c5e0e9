"""What a job needs on a server: gpq checks it, runs its setup once, uses it for its starts, and reports in one line
what is missing."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.node.harness import NodeAgent, wait_until


def look(node: NodeAgent, cwd: Path | str, name: str = "ab", **fields: Any) -> dict[str, Any]:
    return node.ask("prepare", prepare={"environment": name, "cwd": str(cwd), **fields})


def fake_python(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_complete_environment_fits(node: NodeAgent, tmp_path: Path) -> None:
    assert look(node, tmp_path)["fit"]
    assert look(node, tmp_path, python=sys.executable)["fit"]
    assert look(node, tmp_path, python=sys.executable, modules=["json", "re"])["fit"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cwd": "/no/such"}, "no folder /no/such"),
        ({"python": "/no/python"}, "no interpreter /no/python"),
        ({"python": "/etc/passwd"}, "the interpreter /etc/passwd is not executable"),
        ({"python": sys.executable, "modules": ["json", "nosuch_a", "nosuch_b"]}, "has no module nosuch_a, nosuch_b"),
        ({"python": "/bin/false", "modules": ["json"]}, "/bin/false exited with 1: no output"),
        ({"setup": "echo one; echo two >&2; exit 3"}, "the setup failed (exit 3): two"),
        ({"setup": "false"}, "the setup failed (exit 1): no output"),
        ({"setup": "kill -9 $$"}, "the setup failed (signal 9): no output"),
        ({"setup": "printf 'a\\033[2Jb'; exit 1"}, "the setup failed (exit 1): a?[2Jb"),
    ],
)
def test_a_missing_part_is_reported_with_its_fix(
    node: NodeAgent, tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    found = look(node, **{"cwd": tmp_path, **fields})
    assert not found["fit"]
    assert reason in found["reason"]
    assert found["fix"]


def test_a_setup_runs_once_and_the_job_gets_its_exports(node: NodeAgent, tmp_path: Path) -> None:
    counter, told = tmp_path / "ran", tmp_path / "told"
    setup = (
        f"echo ran >> {counter}; export ADDED='two words'; unset GONE; PYTHONPATH=/mine; PATH={tmp_path}/venv/bin:$PATH"
    )
    fake_python(tmp_path / "venv/bin/python", f'echo "$ADDED|$GONE|$PYTHONPATH|$0|$1" > {told}')
    fields = {"setup": setup, "python": sys.executable, "any_python": True, "env": {"GONE": "x", "PYTHONPATH": "/lib"}}
    for _ in range(3):
        assert look(node, tmp_path, **fields)["fit"]
    assert counter.read_text() == "ran\n"
    order = {"level": "adaptive", "environment": "ab", "setup": True, "env": fields["env"]}
    key = node.start(1, [sys.executable, "train.py"], any_python=True, **order)
    assert node.ended(key)["code"] == 0, node.log(key)
    assert told.read_text() == f"two words||/mine:/lib|{tmp_path}/venv/bin/python|train.py\n"
    key = node.start(2, [sys.executable, "-c", "print(1)"], **order)  # an interpreter that the user named
    assert node.ended(key)["code"] == 0
    assert node.log(key) == b"1\n"


def test_a_setup_has_no_gpu_no_input_and_is_not_a_job(node: NodeAgent, tmp_path: Path) -> None:
    setup = '[ -z "$CUDA_VISIBLE_DEVICES" ] && ! read line && [ -z "$GPQ_MARK" ] && pwd'
    assert look(node, tmp_path, setup=setup) == {**look(node, tmp_path, setup=setup), "fit": True, "id": 1}
    assert (node.spool / "environments/ab/log").read_text() == f"{tmp_path}\n"
    assert node.attempts() == {}


def test_a_setup_runs_again_when_its_result_is_gone(node: NodeAgent, tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    make = f"mkdir -p {python.parent} && cp {fake_python(tmp_path / 'made', 'exit 0')} {python} && echo x >> {tmp_path}/ran"
    for ran in ("x\n", "x\n", "x\nx\n"):
        assert look(node, tmp_path, setup=make, python=str(python))["fit"]
        assert (tmp_path / "ran").read_text() == ran
        if ran == "x\n" and python.exists() and (tmp_path / "second").exists():
            python.unlink()
        (tmp_path / "second").touch()


def test_a_failed_setup_does_not_run_at_every_check(node: NodeAgent, tmp_path: Path) -> None:
    for _ in range(2):
        assert not look(node, tmp_path, setup=f"echo x >> {tmp_path}/ran; false")["fit"]
    assert (tmp_path / "ran").read_text() == "x\n"
    assert not look(node, tmp_path, "cd", setup=f"echo x >> {tmp_path}/ran; false")["fit"]
    assert (tmp_path / "ran").read_text() == "x\nx\n"


def test_a_setup_that_takes_too_long_is_ended_with_what_it_started(node: NodeAgent, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    found = look(node, tmp_path, setup=f"sleep 600 & echo $! > {pids}; echo waits; wait", limit=0.5)
    assert found["reason"] == "the setup took longer than 0.5 s: waits"
    wait_until(lambda: is_over(int(pids.read_text())), "what it started is ended")


def is_over(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except FileNotFoundError:
        return True


def test_a_setup_outlives_the_agent_and_the_next_one_waits_for_it(node: NodeAgent, tmp_path: Path) -> None:
    gate, ran = tmp_path / "gate", tmp_path / "ran"
    os.mkfifo(gate)
    fields = {"environment": "ab", "cwd": str(tmp_path), "setup": f"echo x >> {ran}; read line < {gate}"}
    node.send("prepare", prepare=fields)
    wait_until(ran.exists, "the setup runs")
    node.process.kill()
    node.process.wait()
    second = NodeAgent(node.spool, "--slots", "2", "--cores", "0")
    try:
        number = second.send("prepare", prepare=fields)
        second.ask("ping")
        gate.write_text("go\n")
        assert second.reply(number)["fit"]
        assert ran.read_text() == "x\n"
    finally:
        second.close()


def test_a_start_is_refused_as_unfit_when_something_is_missing(node: NodeAgent, tmp_path: Path) -> None:
    order = node.order(1, ["true"], environment="ab", cwd="/no/such")
    assert node.try_ask("start", order=order)["kind"] == "unfit"
    assert node.try_ask("start", order={**order, "environment": ""})["kind"] == "wrong"
    order = node.order(1, ["/no/python", "x.py"], environment="ab", level="adaptive")
    assert node.try_ask("start", order=order)["kind"] == "unfit"
    assert node.try_ask("start", order={**order, "level": "black-box"})["kind"] == "not-found"  # the job's own command
    order = node.order(1, ["true"], environment="ab", setup=True)
    refusal = node.try_ask("start", order=order)
    assert (refusal["kind"], "has not run" in refusal["error"]) == ("unfit", True)
    assert node.attempts() == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"environment": "../../etc"}, {"environment": ""}, {"environment": "AB"}, {"cwd": "here"}, {"modules": "json"},
        {"env": {"": "x"}}, {"setup": "a\0b"}, {"limit": -1}, {"python": 3},
    ],
)  # fmt: skip
def test_an_invalid_order_is_refused_and_creates_nothing(
    node: NodeAgent, tmp_path: Path, fields: dict[str, Any]
) -> None:
    refusal = node.try_ask("prepare", prepare={"environment": "ab", "cwd": str(tmp_path), "setup": "true", **fields})
    assert (refusal["ok"], refusal["kind"]) == (False, "wrong")
    assert not (node.spool / "environments").exists()
