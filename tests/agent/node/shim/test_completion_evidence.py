"""Evidence that a job was finished when somebody asked it to stop, and what the job's files cannot do to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpq_agent import wire
from gpq_agent.node.shim import completion_evidence
from gpq_agent.node.shim.completion_evidence import SAID, signs

from tests.agent.node.harness import NodeAgent, wait_until
from tests.support.figures import Figures
from tests.support.fuse import served

# Executes its first argument and is ready. When the signal tells it to, it executes its second argument and ends with
# 0.
PROGRAM = """
import json, os, signal, sys, time
checkpoints = os.environ["GPQ_CHECKPOINT_DIR"]
run = os.environ["GPQ_RUN_DIR"]
def write(*path, text="", **content):
    path = os.path.join(*path)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as stream:
        stream.write(text or json.dumps(content))
def end(*_):
    exec(sys.argv[2])
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
exec(sys.argv[1])
print("ready", flush=True)
while True:
    time.sleep(60)
"""
AT_END = 'write(checkpoints, "checkpoint-300", "trainer_state.json", global_step=300, max_steps=300)'
HALF_WAY = 'write(checkpoints, "checkpoint-28", "trainer_state.json", global_step=28, max_steps=300)'
DONE = 'write(os.environ["GPQ_DONE_FILE"])'


def asked(node: NodeAgent, first: str, then: str, *, job: int = 1, attempt: int = 1, **fields: Any) -> dict[str, Any]:
    """The record of a job that executes `first`, is asked to stop, executes `then` and ends with 0."""
    fields = {"level": "signal", **fields}
    key = node.start(job, [sys.executable, "-c", PROGRAM, first, then], attempt, **fields)
    wait_until(lambda: b"ready" in node.log(key), f"{key} to be ready")
    node.ask("stop", attempt=key, mode="signal", grace=60)
    record = node.ended(key)
    assert (record["code"], record["asked"], record["stopped"]) == (0, "signal", False), node.log(key)
    return record


@pytest.mark.parametrize(
    ("kind", "then"),
    [
        ("marker", 'write(run, "finished.json", step=3)'),
        ("done-file", DONE),
        ("checkpoint", 'write(checkpoints, "gpq", "step-000000000012", "manifest.json", why="end", step=12)'),
        ("own", 'write(checkpoints, "own", "saved.json", step=9, number=1, complete=["save-1"], end=True)'),
        ("trainer", AT_END),
        ("trainer", f"{HALF_WAY}; {AT_END}"),
    ],
)
def test_a_job_that_says_it_has_finished_is_believed(node: NodeAgent, kind: str, then: str) -> None:
    record = asked(node, "", then, done_file="out/done" if kind == "done-file" else "")
    assert (record["finished"], record["evidence"]) == (True, SAID[kind])


@pytest.mark.parametrize(
    "then",
    [
        "",
        HALF_WAY,
        f"{AT_END}; {HALF_WAY.replace('-28', '-301')}",  # the newest counts
        'write(checkpoints, "gpq", "step-000000000012", "manifest.json", why="stop", step=12)',
        'write(checkpoints, "own", "saved.json", step=9, number=1, complete=["save-1"])',
        'os.makedirs(checkpoints + "/checkpoint-300"); os.mkfifo(checkpoints + "/checkpoint-300/trainer_state.json")',
        'os.makedirs(checkpoints + "/gpq"); os.symlink("/dev/zero", checkpoints + "/gpq/step-1")',
        'write(checkpoints, "checkpoint-1", "trainer_state.json", text="[" * 1000000)',
        'write(checkpoints, "checkpoint-1", "trainer_state.json", text="{" + "9" * 30000000)',
    ],
)
def test_a_job_that_only_saves_has_not_finished(node: NodeAgent, then: str) -> None:
    record = asked(node, "", then, done_file="out/done")
    assert (record["finished"], record["evidence"]) == (False, "")


def test_a_job_that_says_both_has_stopped_half_way(node: NodeAgent) -> None:
    then = 'write(run, "finished.json"); write(run, "stopped.json")'
    key = node.start(1, [sys.executable, "-c", PROGRAM, "", then], level="signal")
    wait_until(lambda: b"ready" in node.log(key), "it is ready")
    node.ask("stop", attempt=key, mode="signal", grace=60)
    record = node.ended(key)
    assert (record["code"], record["stopped"], record["finished"]) == (0, True, False)


@pytest.mark.parametrize(("again", "finished"), [("", False), ("os.utime(path)", True), (DONE, True)])
def test_a_done_file_counts_if_this_attempt_wrote_it(
    node: NodeAgent, tmp_path: Path, again: str, finished: bool
) -> None:
    (tmp_path / "done").write_text("of an earlier job")
    record = asked(node, "", f"path = os.environ['GPQ_DONE_FILE']; {again}", done_file="done")
    assert record["finished"] is finished


def test_a_checkpoint_of_an_earlier_attempt_proves_nothing(node: NodeAgent) -> None:
    """The user may have raised the number of steps since."""
    assert asked(node, "", AT_END)["finished"]
    assert not asked(node, "", "", attempt=2)["finished"]
    assert asked(node, "", AT_END, attempt=3)["finished"]


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.mkdir(),
        lambda path: os.mkfifo(path),
        lambda path: path.symlink_to(path),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to("missing"),
    ],
)
def test_a_done_file_that_is_not_a_file_proves_nothing(
    node: NodeAgent, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "done")
    assert not asked(node, "", "os.utime(os.environ['GPQ_DONE_FILE'], follow_symlinks=False)", done_file="done")[
        "finished"
    ]


def test_a_done_file_in_the_home_directory_of_the_server(node: NodeAgent, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    record = asked(node, "", DONE, done_file="~/done", env={"HOME": str(tmp_path / "home")})
    assert (tmp_path / "home" / "done").exists()
    assert record["finished"]


def test_without_a_stop_order_only_exit_code_0_means_finished(node: NodeAgent) -> None:
    for code, finished in ((0, True), (1, False)):
        record = node.ended(node.start(code + 1, ["sh", "-c", f"exit {code}"]))
        assert (record["asked"], record["finished"], record["evidence"]) == (None, finished, "")


def test_a_job_that_ended_before_the_request_has_finished(node: NodeAgent) -> None:
    left = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    line = f'{sys.executable} -c "{left}" & while ! grep -q ready "$GPQ_RUN_DIR/log"; do sleep 0.05; done; exit 0'
    key = node.start(1, ["sh", "-c", line])
    # Its child outlives it, and TERM. The order comes while gpq ends that child.
    wait_until(lambda: b"ready" in node.log(key) and not _runs(node, key), "the first process is gone")
    node.ask("stop", attempt=key, mode="kill", grace=0)
    record = node.ended(key)
    assert record["finished"]
    # If the machine was so busy that the child was already gone, nobody asked.
    assert (record["asked"], record["evidence"]) in (("kill", "it had ended before that"), (None, ""))


def _runs(node: NodeAgent, key: str) -> bool:
    first = wire.read_json(str(node.folder(key) / wire.STARTED))
    assert first is not None
    return subprocess.run(["kill", "-0", str(first["pid"])], stderr=subprocess.DEVNULL, check=False).returncode == 0


def test_a_gigabyte_of_state_and_other_wrong_records_prove_nothing_and_take_no_time(
    tmp_path: Path, figures: Figures
) -> None:
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    state = folder / "trainer_state.json"
    begin = time.monotonic()
    with open(state, "wb") as stream:
        stream.write(b'{"global_step": 5, "max_steps": 5')
        stream.truncate(1 << 30)
    assert signs("", str(tmp_path)) == {}
    for content in ([], {}, {"global_step": "5", "max_steps": 5}, {"global_step": True, "max_steps": True}, "x",
                    {"global_step": 5, "max_steps": 0}, {"global_step": 5, "max_steps": -1}, {"global_step": 5}):  # fmt: skip
        state.write_text(json.dumps(content))
        assert signs("", str(tmp_path)) == {}, content
    state.write_bytes(b'{"global_step": 5, "max_steps": 5, "log_history": "\xff"}')
    assert signs("", str(tmp_path)) == {}
    state.write_text('{"global_step": 5, "max_steps": 5, "log_history": "%s"}' % ("x" * (20 << 20)))
    assert set(signs("", str(tmp_path))) == {"trainer"}, "a long history is read"
    for number in range(completion_evidence.MOST_ENTRIES):
        (tmp_path / f"checkpoint-{number + 10}").symlink_to("missing")
    assert signs("", str(tmp_path)) == {}
    figures.at_most("looks at wrong records and at a gigabyte of state", time.monotonic() - begin, 60.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_a_done_file_on_a_dead_file_server_costs_a_few_seconds_and_nothing_else(
    node: NodeAgent, tmp_path: Path, figures: Figures
) -> None:
    (tmp_path / "far").mkdir()
    with served(tmp_path / "far") as far:
        name = str(far.work / "done")
        key = node.start(1, [sys.executable, "-c", PROGRAM, "", ""], level="signal", done_file=name)
        wait_until(lambda: b"ready" in node.log(key), "it is ready")
        far.hang()
        begin = time.monotonic()
        node.ask("stop", attempt=key, mode="signal", grace=60)
        record = node.ended(key)
        assert (record["code"], record["finished"]) == (0, False)
        figures.at_most("the end of a job whose done file is on a dead server", time.monotonic() - begin, 30.0)
        # A file system that hangs at the start does not delay the job, and what the job writes there later proves
        # nothing.
        record = asked(node, "", 'write(checkpoints, "own", "saved.json", end=True)', job=2, done_file=name)
        assert record["finished"] is False
        # Except for evidence that needs no comparison with the start.
        record = asked(node, "", 'write(run, "finished.json")', job=3, done_file=name)
        assert record["finished"] is True
