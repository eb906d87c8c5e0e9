"""Starts: what runs, in which environment, how often, and what is refused."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpq_agent import wire
from gpq_agent.node.attempts import Attempts
from gpq_agent.node.spool.spool import Spool

from tests.agent.node.harness import NodeAgent, wait_until

SHOW = """
import json, os, signal, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
umask = os.umask(0)
json.dump({
    "env": dict(os.environ), "cwd": os.getcwd(), "cores": sorted(os.sched_getaffinity(0)), "umask": umask,
    "session": os.getsid(0) == os.getpid(), "stdin": os.readlink("/proc/self/fd/0"),
    "blocked": int(status["SigBlk"], 16), "ignored": int(status["SigIgn"], 16),
    "files": sorted(os.path.realpath("/proc/self/fd/" + name) for name in os.listdir("/proc/self/fd")),
}, open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize(
    ("command", "code", "killer"),
    [("exit 0", 0, None), ("exit 7", 7, None), ("kill -9 $$", None, 9), ("kill -SEGV $$", None, 11)],
)
def test_the_exit_of_a_job_is_reported_as_it_was(
    node: NodeAgent, command: str, code: int | None, killer: int | None
) -> None:
    key = node.start(1, ["sh", "-c", command])
    record = node.ended(key)
    assert (record["code"], record["signal"], record["stopped"], record["asked"]) == (code, killer, False, None)
    assert record["started_at"] <= record["ended_at"] <= time.time()
    told = node.ask("watch", offsets={}, wait=0.0, seen=None)
    [info] = told["attempts"]
    assert info["began"] <= info["ended"] == record["stamp"] <= told["stamp"]
    assert told["stamp"] - info["ended"] == pytest.approx(time.time() - record["ended_at"], abs=5.0)


def test_an_end_before_the_boot_is_reported_as_older_than_the_boot(node: NodeAgent) -> None:
    key = node.start(1, ["true"])
    node.ended(key)
    path = str(node.folder(key) / wire.EXIT)
    record = wire.read_json(path)
    assert record is not None
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    wire.write_json(path, dict(record, boot_id="another", ended_at=time.time() - uptime - 100.0))
    info = Attempts(Spool(str(node.spool))).look(key)
    assert info is not None
    assert info.ended == pytest.approx(-100.0, abs=5.0)
    wire.write_json(path, {name: value for name, value in record.items() if name not in ("stamp", "boot_id")})
    info = Attempts(Spool(str(node.spool))).look(key)  # an older shim wrote it
    assert info is not None
    assert info.ended is None


def show(node: NodeAgent, tmp_path: Path, attempt: int = 1, **fields: Any) -> dict[str, Any]:
    told = tmp_path / f"told-{attempt}"
    key = node.start(5, [sys.executable, "-c", SHOW, str(told)], attempt, **fields)
    assert node.ended(key)["code"] == 0, node.log(key)
    seen: dict[str, Any] = json.loads(told.read_text())
    return seen


def test_a_job_gets_its_environment_its_cores_and_nothing_of_the_shim(node: NodeAgent, tmp_path: Path) -> None:
    seen = show(node, tmp_path, devices=["slot-1", "slot-2"], env={"ANSWER": "42"})
    env = seen["env"]
    assert env["ANSWER"] == "42"
    assert env[wire.ENV_JOB] == "5"
    assert env[wire.ENV_ATTEMPT] == "1"
    assert env[wire.ENV_MARK] == f"{node.greeting['spool']}:5.1"
    assert env[wire.ENV_RUN_DIR] == str(node.folder("5.1"))
    assert Path(env[wire.ENV_CHECKPOINT_DIR]).is_dir()
    assert env[wire.ENV_DEVICES] == "slot-1,slot-2"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert wire.ENV_RESUME not in env
    slots = {device["id"]: device["cores"] for device in node.ask("hello")["devices"]}
    assert env[wire.ENV_CORES] == ";".join(",".join(map(str, slots[name])) for name in ("slot-1", "slot-2"))
    assert seen["cores"] == sorted({*slots["slot-1"], *slots["slot-2"]})
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == str(len(slots["slot-1"]))
    assert seen["cwd"] == str(tmp_path)
    assert seen["session"]
    assert seen["stdin"] == os.devnull
    assert seen["blocked"] == 0
    ignored = [number for number in (1, 2, 3, 13) if seen["ignored"] >> (number - 1) & 1]
    assert ignored in ([], [13])  # an interpreter itself ignores SIGPIPE
    umask = os.umask(0o022)
    os.umask(umask)
    assert seen["umask"] == umask  # the shim's own 077 does not apply to the job's files
    log = os.path.realpath(node.folder("5.1") / "log")
    assert [name for name in seen["files"] if not name.startswith("/proc/")] == sorted([os.devnull, log, log])


def test_code_that_torch_compiles_is_in_a_folder_that_only_its_user_can_write(
    agent: Callable[..., NodeAgent], spool: Path, tmp_path: Path
) -> None:
    """torch's own place is below /tmp, and whoever makes that first owns the code."""
    name, folder = "TORCHINDUCTOR_CACHE_DIR", spool / "torchinductor"
    old_umask = os.umask(0)
    try:
        node = agent("--slots", "1")
    finally:
        os.umask(old_umask)
    assert show(node, tmp_path)["env"][name] == str(folder)
    status = spool.stat()
    assert (status.st_uid, status.st_mode & 0o777) == (os.geteuid(), 0o700)
    assert show(node, tmp_path, 2, env={name: "/mine"})["env"][name] == "/mine"
    (folder / "ab").mkdir(parents=True)
    for age, file in enumerate(("new.py", "old.py")):
        (folder / "ab" / file).touch()
        os.utime(folder / "ab" / file, (time.time() - 31 * 86400 * age,) * 2)
    agent("--slots", "1")
    wait_until(lambda: os.listdir(folder / "ab") == ["new.py"], "what nothing has used for a month is removed")


def test_attributes_that_an_order_leaves_out_stay_as_the_agent_found_them(
    agent: Callable[..., NodeAgent], tmp_path: Path
) -> None:
    """From an older daemon, and what another machine keeps for itself. The agent itself takes more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
        node = agent("--slots", "1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    own = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
    assert own[0] == own[1] >= hard > 400
    ask = "ulimit -Sn; ulimit -Ss; umask"
    for number, (attributes, seen) in enumerate(
        [
            (None, "400"),
            ({"umask": 0o7, "nice": 0, "limits": {"stack": [1 << 20, 1 << 20], "of-2040": [1, 1]}, "more": 1}, "400"),
            ({"umask": 0o7, "nice": 0, "limits": {"nofile": [50, 60]}}, "50"),
        ],
        1,
    ):
        key = node.start(number, ["sh", "-c", ask], attributes=attributes)
        node.ended(key)
        files, stack, umask = node.log(key).decode().split()
        assert files == seen
        assert number == 1 or umask == "0007"
        assert number != 2 or stack == "1024"


def test_a_second_attempt_is_told_to_resume_from_the_same_checkpoints(node: NodeAgent, tmp_path: Path) -> None:
    first = show(node, tmp_path, 1)["env"]
    second = show(node, tmp_path, 2)["env"]
    assert second[wire.ENV_RESUME] == "1"
    assert second[wire.ENV_CHECKPOINT_DIR] == first[wire.ENV_CHECKPOINT_DIR]
    assert second[wire.ENV_RUN_DIR] != first[wire.ENV_RUN_DIR]


def test_a_fresh_start_finds_an_empty_folder_and_loses_nothing(node: NodeAgent, tmp_path: Path) -> None:
    folder = Path(show(node, tmp_path, 1)["env"][wire.ENV_CHECKPOINT_DIR])
    (folder / "saved").touch()
    assert wire.ENV_RESUME not in show(node, tmp_path, 2, fresh=True)["env"]
    assert os.listdir(folder) == []
    assert os.listdir(f"{folder}.before-2") == ["saved"]
    (folder / "new").touch()
    show(node, tmp_path, 3)
    assert os.listdir(folder) == ["new"]


def test_the_order_may_name_another_place_for_checkpoints(node: NodeAgent, tmp_path: Path) -> None:
    place = str(tmp_path / "shared" / "5")
    assert show(node, tmp_path, env={wire.ENV_CHECKPOINT_DIR: place})["env"][wire.ENV_CHECKPOINT_DIR] == place
    assert os.path.isdir(place)


def test_twenty_racing_starts_run_the_job_once(agent: Callable[..., NodeAgent], tmp_path: Path) -> None:
    agents = [agent("--slots", "1") for _ in range(4)]
    ran = tmp_path / "ran"
    order = agents[0].order(3, ["sh", "-c", f"echo once >> {ran}; sleep 0.3"])
    sent = [(one, one.send("start", order=order)) for _ in range(5) for one in agents]
    replies = [one.reply(number) for one, number in sent]
    assert all(reply["ok"] for reply in replies), replies
    assert sorted(reply["state"] for reply in replies) == ["already"] * 19 + ["started"]
    agents[0].ended("3.1")
    assert ran.read_text() == "once\n"


def test_a_start_that_comes_again_after_the_end_runs_nothing(node: NodeAgent, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    argv = ["sh", "-c", f"echo once >> {ran}"]
    key = node.start(3, argv)
    node.ended(key)
    again = node.ask("start", order=node.order(3, argv))
    assert again["state"] == "already"
    assert again["attempt"]["state"] == "exited"
    node.ask("forget", attempt=key)
    refused = node.try_ask("start", order=node.order(3, argv))
    assert (refused["kind"], "3.1 was on this server before" in refused["error"]) == ("used", True)
    assert ran.read_text() == "once\n"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"expires_at": 1.0}, "expired"),
        ({"cwd": "/nowhere/at/all"}, "no folder /nowhere/at/all"),
        ({"cwd": "relative"}, "cwd"),
        ({"argv": ["no-such-command-here"]}, "no command no-such-command-here"),
        ({"argv": ["./missing.sh"]}, "no command"),
        ({"argv": ["/etc/passwd"]}, "is not executable"),
        ({"argv": []}, "argv"),
        ({"argv": ["a\0b"]}, "argv"),
        ({"devices": ["slot-9"]}, "no device slot-9"),
        ({"devices": []}, "devices"),
        ({"devices": ["slot-0", "slot-0"]}, "devices"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"attempt": 0}, "attempt"),
        ({"job": "../../x"}, "job"),
        ({"signal": "NOPE"}, "signal"),
        ({"level": "magic"}, "level"),
        ({"done_file": 7}, "done_file"),
        ({"done_file": "a\0b"}, "done_file"),
        ({"attributes": {"umask": 0o27, "nice": 0}}, "attributes"),
        ({"attributes": {"umask": 0o27, "nice": 20, "limits": {}}}, "attributes"),
        ({"attributes": {"umask": 0o27, "nice": 0, "limits": {"nofile": [-1, 5]}}}, "attributes"),
    ],
)
def test_an_order_that_cannot_be_kept_is_refused_and_leaves_nothing(
    node: NodeAgent, fields: dict[str, Any], words: str
) -> None:
    reply = node.try_ask("start", order={**node.order(8, ["true"]), **fields})
    assert not reply["ok"]
    assert words in reply["error"]
    assert "\n" not in reply["error"]
    assert list((node.spool / "attempts").iterdir()) == []
    assert node.ask("ping")["ok"]


def test_an_order_without_a_command_is_refused(node: NodeAgent) -> None:
    order = node.order(8, ["true"])
    del order["argv"]
    assert "incomplete" in node.try_ask("start", order=order)["error"]
    assert "needs an order" in node.try_ask("start")["error"]


def test_a_job_on_one_server_starts_whoever_has_taken_its_port(node: NodeAgent) -> None:
    """Its replicas meet in a file of the attempt."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        key = node.start(1, ["sh", "-c", 'echo "$GPQ_MEETING"'], port=port, node_count=1)
        assert node.ended(key)["code"] == 0
    assert node.log(key).decode() == f"{node.spool}/attempts/{key}/meeting\n"


def test_a_slot_is_not_assigned_twice(node: NodeAgent) -> None:
    key = node.start(1, ["sleep", "60"])
    reply = node.try_ask("start", order=node.order(2, ["true"]))
    assert "attempt 1.1 still uses slot-0" in reply["error"]
    node.ask("stop", attempt=key, mode="kill", grace=0)
    node.ended(key)
    node.ended(node.start(2, ["true"]))


def test_a_file_that_is_not_a_program_ends_with_126_and_says_so_in_the_log(node: NodeAgent, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo hello\n")
    script.chmod(0o755)
    key = node.start(1, [str(script)])
    assert node.ended(key)["code"] == 126
    assert b"cannot run" in node.log(key)


def test_a_program_with_a_missing_interpreter_ends_with_127(node: NodeAgent, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/nowhere/python\n")
    script.chmod(0o755)
    key = node.start(1, [str(script)])
    assert node.ended(key)["code"] == 127
    assert b"cannot run" in node.log(key)


def test_the_first_control_is_there_before_the_job_is(node: NodeAgent) -> None:
    control = wire.Control(attempt=1, seq=3, atomic_batch=16, accum_steps=2)._asdict()
    key = node.start(1, ["sh", "-c", f"cat ${wire.ENV_RUN_DIR}/control.json"], control=control)
    node.ended(key)
    assert json.loads(node.log(key)) == control


def test_cores_are_shared_out_evenly(agent: Callable[..., NodeAgent]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    node = agent("--slots", str(len(cores)), "--cores", ",".join(map(str, cores)))
    devices = node.ask("hello")["devices"]
    assert [device["cores"] for device in devices] == [[core] for core in cores]
    assert [device["id"] for device in devices] == [f"slot-{index}" for index in range(len(cores))]
    assert all(device["state"] == "ok" and device["kind"] == "cpu" for device in devices)


def test_a_job_of_many_processes_is_counted(node: NodeAgent) -> None:
    key = node.start(1, ["sh", "-c", "sleep 60 & sleep 60 & wait"])
    node.wait_for(key, "running")
    wait_until(lambda: node.attempts()[key]["processes"] == 3, "three processes")
