"""Stops: the three modes, each only harder than the last, and always the whole tree and nothing else."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpq_agent import wire
from gpq_agent.node.host import procs
from gpq_agent.node.shim import stops

from tests.agent.node.harness import NodeAgent, survivors, wait_until

# Forks a child into a new session, which forks another into yet another. All ignore TERM and lose their mark.
ESCAPE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def note():
    with open(sys.argv[1], "a") as stream:
        stream.write("%d\\n" % os.getpid())
for generation in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        if generation:
            os.execve(sys.executable, [sys.executable, "-c",
                "import os,signal,sys,time; signal.signal(15, signal.SIG_IGN); "
                "open(sys.argv[1], 'a').write('%d\\\\n' % os.getpid()); time.sleep(600)", sys.argv[1]], {})
        note()
        time.sleep(600)
note()
time.sleep(600)
"""

# A tiny training process: obeys control.json like the training library.
OBEDIENT = """
import json, os, time
folder = os.environ["GPQ_RUN_DIR"]
while True:
    try:
        control = json.load(open(folder + "/control.json"))
    except FileNotFoundError:
        control = {}
    if control.get("stop"):
        print(json.dumps(control), flush=True)
        open(folder + "/stopped.json", "w").write("{}")
        raise SystemExit(0)
    time.sleep(0.02)
"""


def trap(number: int, code: int) -> list[str]:
    body = (
        f"import signal, sys, time; signal.signal({number}, lambda *_: sys.exit({code})); print('ready', flush=True); "
        "time.sleep(600)"
    )
    return [sys.executable, "-c", body]


def ready(node: NodeAgent, key: str) -> None:
    wait_until(lambda: b"ready" in node.log(key), f"{key} to be ready")


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_kill_leaves_no_process_of_a_tree_that_hides_and_ignores_term(
    node: NodeAgent, tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    pids = tmp_path / "pids"
    key = node.start(1, [sys.executable, "-c", ESCAPE, str(pids)])
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 3, "three processes in three sessions")
    before = [procs.read(int(pid)) for pid in pids.read_text().split()]
    assert all(before)
    node.ask("stop", attempt=key, mode="kill", grace=0.2)
    record = node.ended(key)
    # The record comes after the proof, so at this moment none of them may be alive.
    for process in before:
        assert process is not None
        now = procs.read(process.pid)
        assert now is None or not now.alive or now.start_time != process.start_time
    assert survivors(node.spool, key) == []
    assert (record["signal"], record["asked"], record["stopped"]) == (9, "kill", False)
    assert bystander.poll() is None


def test_kill_without_grace_gives_none(node: NodeAgent) -> None:
    key = node.start(1, trap(15, 3))
    ready(node, key)
    node.ask("stop", attempt=key, mode="kill", grace=600)
    assert node.ended(key)["code"] == 3
    key = node.start(2, ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
    ready(node, key)
    node.ask("stop", attempt=key, mode="kill", grace=0)
    assert node.ended(key)["signal"] == 9


def test_a_checkpoint_stop_keeps_the_batch_and_the_proof_counts(node: NodeAgent) -> None:
    control = wire.Control(attempt=1, seq=5, atomic_batch=32, accum_steps=1)._asdict()
    key = node.start(1, [sys.executable, "-c", OBEDIENT], level="resizable", control=control)
    node.wait_for(key, "running")
    node.ask("stop", attempt=key, mode="checkpoint", grace=60)
    record = node.ended(key)
    assert (record["code"], record["stopped"], record["asked"]) == (0, True, "checkpoint")
    assert json.loads(node.log(key)) == {**control, "seq": 6, "stop": True}


def test_a_later_order_does_not_take_a_checkpoint_stop_back(node: NodeAgent) -> None:
    key = node.start(1, ["sleep", "600"], level="resizable")
    node.ask("stop", attempt=key, mode="checkpoint", grace=600)
    path = node.folder(key) / wire.CONTROL
    wait_until(path.exists, "the order to checkpoint")
    node.ask("control", attempt=key, control=wire.Control(attempt=1, seq=1, atomic_batch=8)._asdict())
    written = json.loads(path.read_text())
    assert written["stop"]
    assert written["seq"] == 2
    node.ask("stop", attempt=key, mode="kill", grace=0)
    node.ended(key)


def test_an_old_order_changes_nothing(node: NodeAgent) -> None:
    key = node.start(1, ["sleep", "600"])
    for seq, batch in ((2, 16), (1, 99), (2, 99)):
        node.ask("control", attempt=key, control=wire.Control(attempt=1, seq=seq, atomic_batch=batch)._asdict())
    assert json.loads((node.folder(key) / wire.CONTROL).read_text())["atomic_batch"] == 16
    wrong = node.try_ask("control", attempt=key, control=wire.Control(attempt=2, seq=9)._asdict())
    assert "attempt 2, not 1" in wrong["error"]


def test_a_job_that_does_not_checkpoint_in_time_is_killed_and_the_record_says_so(node: NodeAgent) -> None:
    key = node.start(1, ["sh", "-c", "trap 'exit 143' TERM; echo ready; while :; do sleep 0.1; done"])
    ready(node, key)
    node.ask("stop", attempt=key, mode="checkpoint", grace=0.3)
    record = node.ended(key)
    assert (record["code"], record["stopped"], record["asked"]) == (143, False, "checkpoint")
    assert "after it was asked to stop" in record["note"]


@pytest.mark.parametrize(
    ("name", "number", "code", "stopped"),
    [
        ("USR1", 10, 75, True),
        ("USR1", 10, 143, True),
        ("TERM", 15, 75, True),
        ("USR1", 10, 1, False),
        ("USR1", 10, 0, False),
    ],
)
def test_a_signal_stop_counts_as_checkpointed_by_exit_code(
    node: NodeAgent, name: str, number: int, code: int, stopped: bool
) -> None:
    key = node.start(1, trap(number, code), level="signal", signal=name)
    ready(node, key)
    node.ask("stop", attempt=key, mode="signal", grace=60)
    record = node.ended(key)
    assert (record["code"], record["stopped"], record["asked"]) == (code, stopped, "signal")


DIES_OF_IT = """
import os, signal, time
def stop(number, frame):
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
signal.signal(signal.SIG{name}, stop)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("argv", "name", "killer", "stopped"),
    [
        ([sys.executable, "-c", DIES_OF_IT.format(name="TERM")], "TERM", 15, True),
        ([sys.executable, "-c", DIES_OF_IT.format(name="USR1")], "USR1", 10, False),
        (["sh", "-c", "echo ready; exec sleep 600"], "TERM", 15, False),  # it has saved nothing
    ],
)
def test_death_by_the_requested_signal_counts_only_for_term_and_with_a_handler(
    node: NodeAgent, argv: list[str], name: str, killer: int, stopped: bool
) -> None:
    key = node.start(1, argv, level="signal", signal=name)
    ready(node, key)
    node.ask("stop", attempt=key, mode="signal", grace=60)
    record = node.ended(key)
    assert (record["signal"], record["stopped"]) == (killer, stopped)


def test_the_same_exit_code_without_a_stop_proves_nothing(node: NodeAgent) -> None:
    assert node.ended(node.start(1, ["sh", "-c", "exit 75"], level="signal"))["stopped"] is False


def test_death_by_our_own_term_after_the_grace_proves_nothing(node: NodeAgent) -> None:
    key = node.start(1, ["sh", "-c", "trap '' USR1; echo ready; exec sleep 600"], level="signal", signal="USR1")
    ready(node, key)
    node.ask("stop", attempt=key, mode="signal", grace=0.2)
    record = node.ended(key)
    assert (record["signal"], record["stopped"]) == (15, False)


def test_a_softer_stop_changes_nothing_and_a_harder_one_does_not_wait(node: NodeAgent) -> None:
    key = node.start(1, ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
    ready(node, key)
    node.ask("stop", attempt=key, mode="signal", grace=600)
    node.ask("stop", attempt=key, mode="checkpoint", grace=0)
    stop = json.loads((node.folder(key) / wire.STOP).read_text())
    assert (stop["mode"], stop["seq"]) == ("signal", 1)
    node.ask("stop", attempt=key, mode="kill", grace=600)
    node.ask("stop", attempt=key, mode="kill", grace=0)
    begun = time.monotonic()
    assert node.ended(key)["signal"] == 9
    assert time.monotonic() - begun < 300  # far below the grace period of the first request


def test_processes_that_the_first_one_leaves_behind_are_ended_before_the_record(
    node: NodeAgent, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    key = node.start(1, ["sh", "-c", f"setsid sleep 600 & echo $! > {pid}; exit 4"])
    record = node.ended(key)
    assert record["code"] == 4
    assert record["note"] == "gpq ended 1 process (1 sleep) that it had left running"
    assert survivors(node.spool, key) == []
    left = procs.read(int(pid.read_text()))
    assert left is None or not left.alive or left.name != "sleep"


def test_a_script_that_ends_before_its_work_learns_what_was_ended_and_what_to_do(node: NodeAgent) -> None:
    """Whether they stay in its session or begin one of their own."""
    line = "for n in 1 2 3; do sleep 600 & done; setsid tail -f /dev/null & exit 0"
    record = node.ended(node.start(1, ["sh", "-c", line]))
    assert record["code"] == 0
    assert record["note"] == (
        "gpq ended 4 processes (3 sleep, 1 tail) that it had left running. For work that should finish, end the script"
        " with `wait` or run it in the foreground"
    )


def test_what_a_stop_has_to_end_is_no_news(node: NodeAgent) -> None:
    """A job that is resized ten times would have ten notes on its data loaders."""
    *python, body = trap(signal.SIGTERM, 75)
    key = node.start(1, [*python, f"import subprocess; subprocess.Popen(['sleep', '600']); {body}"], level="signal")
    ready(node, key)
    node.ask("stop", attempt=key, mode="signal", grace=600)
    record = node.ended(key)
    assert (record["stopped"], record["note"]) == (True, "")
    assert survivors(node.spool, key) == []


def test_a_kill_by_somebody_else_is_told_although_gpq_had_to_end_the_rest(node: NodeAgent) -> None:
    record = node.ended(node.start(1, ["sh", "-c", "sleep 600 & kill -KILL $$"]))
    assert record["note"] == "gpq ended 1 process (1 sleep) that it had left running; killed by SIGKILL, not by gpq"


def test_what_ends_by_itself_soon_after_the_first_process_is_let_alone(node: NodeAgent, tmp_path: Path) -> None:
    """`exec > >(tee log)` still has to write the last lines."""
    helper = f"while kill -0 $0 2>&-; do sleep 0.01; done; sleep 0.1; echo done > {tmp_path}/log"
    record = node.ended(node.start(1, ["sh", "-c", f"setsid sh -c '{helper}' $$ & exit 0"]))
    assert (tmp_path / "log").read_text() == "done\n"
    assert record["note"] == ""


def test_stopping_an_ended_attempt_answers_with_its_end(node: NodeAgent) -> None:
    key = node.start(1, ["true"])
    node.ended(key)
    assert node.ask("stop", attempt=key, mode="kill", grace=0)["attempt"]["state"] == "exited"


def test_a_stop_without_an_attempt_or_a_mode_is_refused(node: NodeAgent) -> None:
    assert "no attempt 9.9" in node.try_ask("stop", attempt="9.9", mode="kill", grace=0)["error"]
    key = node.start(1, ["sleep", "600"])
    assert "unknown stop mode 'please'" in node.try_ask("stop", attempt=key, mode="please", grace=0)["error"]
    assert node.attempts()[key]["state"] in ("starting", "running")


def test_the_first_process_gets_the_signal_even_before_it_has_its_own_group(bystander: subprocess.Popen[bytes]) -> None:
    process = procs.read(bystander.pid)
    assert process is not None
    assert process.group != process.pid
    assert stops.addressees([process], process.pid, signal.SIGTERM).recipients == [process]
