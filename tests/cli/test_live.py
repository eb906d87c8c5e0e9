"""The commands against a real daemon that runs real processes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from gpq.client.connection import TRIES
from gpq.policies.registry import POLICIES
from tests.cli.conftest import FIFO, Gpq
from tests.waiting import asks, wait_until


def ok(gpq: Gpq, *argv: str, **environ: str) -> str:
    said = gpq(*argv, **environ)
    assert said.returncode == 0, said
    return said.stdout


def wait_for_state(gpq: Gpq, job: str, state: str) -> dict[str, object]:
    """The job's row once it has that state."""
    until = time.monotonic() + 60
    while True:
        row: dict[str, object] = json.loads(ok(gpq, "status", job, "--json"))["jobs"][0]
        if row["state"] == state:
            return row
        assert time.monotonic() < until, row


def test_a_command_runs_and_its_code_comes_back(live: Gpq, home: Path) -> None:
    assert ok(live, "submit", "--", "sh", "-c", "echo to $NAME; exit 7", "--wait", "--json") == "job 1 submitted\n"
    assert live("wait", "1").returncode == 7
    said = live("submit", "--env", "NAME=me", "--wait", "--", "sh", "-c", "echo to $NAME; kill -TERM $$")
    assert said.returncode == 128 + signal.SIGTERM
    assert "job 2 failed" in said.stdout
    assert ok(live, "logs", "2") == "to me\n"
    assert live("wait", "2", "1").returncode in (7, 143)


def test_wait_gives_up_with_124_and_ctrl_c_with_130(live: Gpq) -> None:
    ok(live, "submit", "--", "sleep", "1000")
    said = live("wait", "1", "--timeout", "1s")
    assert (said.returncode, said.stdout) == (124, "")
    assert "job 1 did not end within 1 s" in said.stderr
    command = [sys.executable, "-m", "gpq", "wait", "1"]
    waiting = subprocess.Popen(command, env=live.environment, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: asks(waiting.pid), "it waits")
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=60)[1] == "note: the jobs stay queued or run on: `gpq cancel` stops them\n"
    assert waiting.returncode == 130


def test_cancel_returns_when_no_process_is_left(live: Gpq, home: Path) -> None:
    ok(live, "submit", "--", "sh", "-c", f"echo $$ > {home}/pid; trap '' TERM; setsid sleep 1000 & sleep 1000")
    wait_for_state(live, "1", "running")
    until = time.monotonic() + 60
    while not (home / "pid").exists() or not (home / "pid").read_text().strip():
        assert time.monotonic() < until
    assert ok(live, "cancel", "1") == "job 1 cancelled: no process is left\n"
    assert not Path(f"/proc/{(home / 'pid').read_text().strip()}").exists()
    assert ok(live, "cancel", "1") == "job 1 had ended: nothing to cancel\n"


def begin(gpq: Gpq, *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gpq", *argv],
        env=gpq.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_what_waits_goes_on_with_the_next_daemon_when_one_is_killed(live: Gpq, home: Path) -> None:
    script = f"echo one; while [ ! -e {home}/go ]; do sleep 0.1; done; echo two; exit 5"
    submitted = begin(live, "submit", "--wait", "--", "sh", "-c", script)
    assert submitted.stdout is not None
    assert submitted.stdout.readline() == "job 1 submitted\n"
    waiting, following = begin(live, "wait", "1"), begin(live, "logs", "@", "-f")
    assert following.stdout is not None
    assert following.stdout.readline() == "one\n"
    daemon = json.loads(ok(live, "daemon", "status", "--json"))["pid"]
    stubborn = f"trap 'trap \"\" TERM; touch {home}/asked; sleep 6' TERM; touch {home}/up; while :; do sleep 0.1; done"
    ok(live, "submit", "--", "sh", "-c", stubborn)
    wait_until((home / "up").exists, "the second job is up")
    cancelling = begin(live, "cancel", "@")
    wait_until((home / "asked").exists, "it was asked to end")
    for process in (submitted, waiting):
        wait_until(lambda process=process: asks(process.pid), "it waits")  # type: ignore[misc]
    os.kill(daemon, signal.SIGKILL)
    (home / "go").touch()
    for process, code, said in (
        (submitted, 5, "job 1 failed: exit 5\n"),
        (waiting, 5, "job 1 failed: exit 5\n"),
        (following, 0, "two\n"),
        (cancelling, 0, "job 2 cancelled: no process is left\n"),
    ):
        stdout, stderr = process.communicate(timeout=60)
        assert (process.returncode, stdout) == (code, said), stderr
        assert stderr == "note: the daemon hung up before it answered; asking again\n"


def test_what_waits_ends_with_the_error_of_a_daemon_that_cannot_start(gpq: Gpq, home: Path) -> None:
    ok(gpq, "daemon", "start")
    try:
        ok(gpq, "submit", "--", "sleep", "1000")
        daemon = json.loads(ok(gpq, "daemon", "status", "--json"))["pid"]
        waiting = begin(gpq, "wait", "1")
        wait_until(lambda: asks(waiting.pid), "it waits")
        (home / "config.toml").write_text("grace = soon\n")
        os.kill(daemon, signal.SIGKILL)
        assert "config.toml: Invalid value" in waiting.communicate(timeout=60)[1]
        assert waiting.returncode == 2
    finally:
        (home / "config.toml").write_text(FIFO)
        gpq("cancel", "all")
        gpq("daemon", "stop")


def test_ctrl_c_ends_the_waiting_and_not_the_job_and_says_so(live: Gpq) -> None:
    waiting = begin(live, "submit", "--wait", "--", "sleep", "1000")
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "job 1 submitted\n"
    wait_until(lambda: asks(waiting.pid), "it waits")
    wait_for_state(live, "1", "running")
    waiting.send_signal(signal.SIGINT)
    said = waiting.communicate(timeout=60)[1]
    assert (waiting.returncode, said) == (130, "note: job 1 stays queued or runs on: `gpq cancel 1` stops it\n")
    [row] = json.loads(ok(live, "status", "1", "--json"))["jobs"]
    assert row["state"] == "running"


def test_daemons_that_all_hang_up_are_asked_a_few_times_and_no_more(gpq: Gpq, home: Path) -> None:
    asked = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(home / "gpq.sock"))
        listener.listen()
        waiting = begin(gpq, "wait", "1")
        listener.settimeout(30)
        while waiting.poll() is None and len(asked) < TRIES + 1:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                asked.append(connection.recv(65536))
                connection.close()
                listener.settimeout(5)
        assert "hung up" in waiting.communicate(timeout=60)[1]
        assert waiting.returncode == 3
    assert len([line for line in asked if line]) == TRIES


def test_a_job_whose_server_was_taken_out_is_given_up_and_not_said_to_be_gone(gpq: Gpq, home: Path) -> None:
    (home / "config.toml").write_text(f"{FIFO}[nodes.other]\nslots = 2\n")
    ok(gpq, "daemon", "start")
    try:
        ok(gpq, "submit", "--", "sh", "-c", f"echo $$ > {home}/pid; exec sleep 1000")
        [part] = wait_for_state(gpq, "1", "running")["placement"]  # type: ignore[misc]
        wait_until(lambda: (home / "pid").exists() and (home / "pid").read_text().strip(), "it wrote its pid")
        ok(gpq, "nodes", "remove", part["node"], "--force")
        said = " ".join(ok(gpq, "why", "1").split())
        assert f"server {part['node']} is not in the configuration any more" in said
        assert "take it out" not in said
        said = gpq("cancel", "1")
        assert (said.returncode, said.stdout) == (1, "")
        told = f"job 1 given up: nothing is known of its processes on {part['node']}, taken out of gpq"
        assert said.stderr == f"note: {told}\n"
        assert Path(f"/proc/{(home / 'pid').read_text().strip()}").exists()
        assert ok(gpq, "cancel", "1") == "job 1 had ended: nothing to cancel\n"
    finally:
        os.kill(int((home / "pid").read_text()), signal.SIGKILL)
        gpq("daemon", "stop")


def test_held_jobs_wait_until_released(live: Gpq) -> None:
    ok(live, "submit", "--hold", "--name", "later", "--", "true")
    assert wait_for_state(live, "later", "held")["id"] == 1
    assert ok(live, "release", "later") == "job 1 released\n"
    assert live("wait", "later").returncode == 0
    said = live("hold", "later")
    assert said.returncode == 5
    assert said.stderr


def test_the_log_of_a_job_that_never_started_is_one_line_that_says_why(live: Gpq) -> None:
    ok(live, "submit", "--hold", "--", "true")
    said = live("logs", "1")
    assert (said.returncode, said.stdout) == (1, "")
    held = "gpq: job 1 has not started: it is held by its user; there is no log\n"
    assert said.stderr == held + "hint: `gpq why 1` says more\n"
    following = begin(live, "logs", "1", "-f")
    assert following.stderr is not None
    told = "note: job 1 has not started: it is held by its user; `gpq why 1` says more\n"
    assert following.stderr.readline() == told
    ok(live, "cancel", "1")
    never = "gpq: job 1 never started: it is cancelled; there is no log\nhint: `gpq why 1` says more\n"
    assert (following.communicate(timeout=60)[1], following.returncode) == (never, 1)
    assert (live("logs", "1").stderr, live("logs", "1", "-f").returncode) == (never, 1)


def test_more_gpus_than_exist_are_refused_and_nothing_is_queued(live: Gpq) -> None:
    said = live("submit", "--gpus", "64", "--", "true")
    assert (said.returncode, said.stdout) == (5, "")
    assert said.stderr.startswith("gpq: ")
    assert json.loads(ok(live, "status", "--json"))["jobs"] == []


def test_a_dry_run_queues_nothing(live: Gpq) -> None:
    assert ok(live, "submit", "--dry-run", "--", "true").startswith("would be ")
    assert set(json.loads(ok(live, "submit", "--dry-run", "--json", "--", "true"))) >= {"state", "placement", "reasons"}
    assert json.loads(ok(live, "status", "--json"))["jobs"] == []


def test_every_reading_command_prints_json_only(live: Gpq) -> None:
    ok(live, "submit", "--name", "one", "--", "echo", "hello")
    live("wait", "1")
    assert "policy    fifo," in ok(live, "daemon", "status")
    commands = [["status"], ["show", "1"], ["why", "1"], ["nodes"], ["top"], ["daemon", "status"], ["config", "show"]]
    commands += [["config", "path"], ["config", "check"], ["config", "policies"], ["wait", "1"], ["logs", "1"]]
    for argv in commands:
        said = live(*argv, "--json")
        assert said.stderr == "", argv
        for line in said.stdout.splitlines():
            assert isinstance(json.loads(line), dict), argv


def test_the_shell_environment_goes_along_but_its_secrets_do_not(live: Gpq) -> None:
    asked = {
        "HF_HOME": "/models",
        "HF_TOKEN": "canary-1",
        "AWS_SECRET_ACCESS_KEY": "canary-2",
        "EDITOR": "vi",
        "OMP_X": "3",
    }
    ok(live, "submit", "--", "env", **asked)
    live("wait", "1")
    seen = ok(live, "logs", "1")
    assert "HF_HOME=/models" in seen
    assert "OMP_X=3" in seen
    assert "EDITOR" not in seen
    assert "canary" not in seen
    assert "canary" not in ok(live, "show", "1", "--json")
    ok(live, "submit", "--env", "HF_TOKEN", "--", "env", HF_TOKEN="wanted")
    live("wait", "2")
    assert "HF_TOKEN=wanted" in ok(live, "logs", "2")


def test_the_last_lines_of_a_log_over_all_attempts_and_what_comes_after(live: Gpq, home: Path) -> None:
    line = f"test -e {home}/again && echo 4 && exec sh -c 'while ! test -e {home}/gate; do sleep 0.1; done; echo 5'"
    ok(live, "submit", "--retries", "1", "--", "sh", "-c", f"{line}; seq 1 3; touch {home}/again; exit 1")
    wait_until(lambda: ok(live, "logs", "1").endswith("\n4\n"), "its second attempt prints")
    second = "--- attempt 2 on local ---\n4\n"
    first = "--- attempt 1 on local ---\n"
    assert ok(live, "logs", "1", "-n", "1") == second
    assert ok(live, "logs", "1", "--lines", "3") == f"{first}2\n3\n{second}"
    assert ok(live, "logs", "1", "-n", "99") == ok(live, "logs", "1") == f"{first}1\n2\n3\n{second}"
    assert ok(live, "logs", "1", "-n", "2", "--attempt", "1", "--node", "0") == f"{first}2\n3\n"
    assert live("logs", "1", "-n", "-1").returncode == 2
    following = subprocess.Popen(
        [sys.executable, "-m", "gpq", "logs", "1", "-fn0"], env=live.environment, stdout=subprocess.PIPE, text=True
    )
    assert following.stdout is not None
    assert following.stdout.readline() == "--- attempt 2 on local ---\n"
    (home / "gate").touch()
    assert following.communicate(timeout=60)[0] == "5\n"
    ok(live, "submit", "--hold", "--", "true")
    assert "there is no log" in live("logs", "2", "-n", "3").stderr


def test_logs_follow_until_the_end(live: Gpq, home: Path) -> None:
    ok(live, "submit", "--", "sh", "-c", f"echo one; while [ ! -e {home}/go ]; do sleep 0.1; done; echo two")
    follower = subprocess.Popen(
        [sys.executable, "-m", "gpq", "logs", "1", "-f"], env=live.environment, stdout=subprocess.PIPE, text=True
    )
    assert follower.stdout is not None
    assert follower.stdout.readline() == "one\n"
    (home / "go").touch()
    assert follower.communicate(timeout=60)[0] == "two\n"
    assert follower.returncode == 0


def test_any_command_starts_the_daemon_and_jobs_outlive_it(gpq: Gpq) -> None:
    assert gpq("daemon", "status").returncode == 3
    try:
        assert ok(gpq, "status") == "no jobs\n"
        ok(gpq, "submit", "--", "sleep", "1000")
        wait_for_state(gpq, "1", "running")
        assert ok(gpq, "daemon", "stop") == "daemon stopped; jobs run on\n"
        assert ok(gpq, "daemon", "stop") == "no daemon runs\n"
        assert wait_for_state(gpq, "1", "running")["attempt"] == 1
    finally:
        gpq("cancel", "all")
        gpq("daemon", "stop")


def test_a_file_that_was_broken_since_the_start_is_noticed_and_in_nobodys_way(gpq: Gpq, home: Path) -> None:
    (home / "config.toml").write_text("grace = 33.0\n[nodes.local]\nslots = 2\n")
    ok(gpq, "daemon", "start")
    try:
        assert gpq("daemon", "status").stderr == ""
        (home / "config.toml").write_text("grace = soon\n")
        ok(gpq, "submit", "--wait", "--", "true")
        assert "completed" in ok(gpq, "status")
        assert json.loads(ok(gpq, "show", "1", "--json"))["spec"]["grace"] == 33.0
        assert "config.toml changed since the daemon started: `gpq daemon stop`" in gpq("daemon", "status").stderr
        [said] = [check for check in json.loads(gpq("doctor", "--json").stdout)["checks"] if check["name"] == "daemon"]
        assert (said["verdict"], "config.toml changed" in said["said"]) == ("warn", True)
    finally:
        gpq("daemon", "stop")
    stopped = gpq("status")
    assert (stopped.returncode, stopped.stdout) == (2, "")
    assert "config.toml: Invalid value (at line 1, column 9)" in stopped.stderr.splitlines()[0]


def test_a_server_whose_agent_cannot_start_is_said_why_wherever_one_asks(gpq: Gpq, home: Path) -> None:
    (home / "config.toml").write_text("[nodes.local]\nslots = 1\ncores = [99999]\n")
    ok(gpq, "daemon", "start")
    said = "the node agent ended: no core 99999 may be used here"
    try:
        command = [sys.executable, "-m", "gpq", "submit", "--wait", "--", "true"]
        waiting = subprocess.Popen(
            command, env=gpq.environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == "note: job 1 is pending: no server answers; `gpq why 1` says more\n"
        assert waiting.stderr.readline() == f"note: server local does not answer: {said}\n"
        [server] = json.loads(ok(gpq, "nodes", "--json"))["nodes"]
        assert server["reason"] == said
        assert said in " ".join(ok(gpq, "why", "1").split())
        ok(gpq, "cancel", "1")
        assert waiting.communicate(timeout=60)[1] == ""
    finally:
        gpq("daemon", "stop")


def test_doctor_names_what_fails_with_its_fix(gpq: Gpq, home: Path) -> None:
    said = gpq("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(said.stdout)["checks"]}
    assert {"python", "config", "state", "daemon", "gpus", "torch", "shm", "clock", "socket"} <= set(checks)
    assert (said.returncode == 1) == any(check["verdict"] == "fail" for check in checks.values())
    assert checks["config"]["verdict"] == "ok"
    (home / "config.toml").write_text("interval = -1\n")
    long = str(home / ("x" * 120))
    said = gpq("doctor", GPQ_HOME=long)
    assert said.returncode == 1
    assert "fail  config" in said.stdout
    assert "fail  socket" in said.stdout
    assert "fix: " in said.stdout
    assert not Path(long).exists()


def test_the_policies_are_listed_and_the_chosen_one_is_marked(gpq: Gpq, home: Path) -> None:
    lines = ok(gpq, "config", "policies", COLUMNS="200").splitlines()
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["fifo"]
    assert lines[0].split(maxsplit=1) == ["goodput", POLICIES["goodput"].sentence]
    assert len(lines) == len(POLICIES)
    (home / "config.toml").write_text('policy = "best"\n')
    told = json.loads(ok(gpq, "config", "policies", "--json"))["policies"]
    assert [row["name"] for row in told] == list(POLICIES)
    assert not any(row["chosen"] for row in told)


@pytest.mark.parametrize("command", ["show", "check", "path", "policies"])
def test_all_that_config_says_in_json_has_a_schema(gpq: Gpq, command: str) -> None:
    assert json.loads(ok(gpq, "config", command, "--json"))["schema"] == 1


def test_what_config_show_prints_is_a_configuration(gpq: Gpq, home: Path) -> None:
    shown = ok(gpq, "config", "show")
    assert ok(gpq, "config") == shown
    assert gpq("config", "shwo").returncode == 2
    (home / "again.toml").write_text(shown)
    assert "is right" in ok(gpq, "config", "check", str(home / "again.toml"))
    assert ok(gpq, "config", "show", GPQ_CONFIG=str(home / "again.toml")) == shown
    assert ok(gpq, "config", "path") == f"{home}/config.toml\n"


def test_an_array_runs_a_few_at_once_and_what_comes_after_it_waits(live: Gpq, home: Path) -> None:
    run = 'echo "{index} $GPQ_ARRAY_ID $GPQ_ARRAY_INDEX $GPQ_ARRAY_SIZE"; exit $(({index} / 2))'
    said = ok(live, "submit", "--array", "0-2%1", "--hold", "--", "sh", "-c", run)
    assert said == (
        "array 1 submitted: 3 jobs, 2 to 4 (1_0 to 1_2), at most 1 at once, held: `gpq release` lets it run\n"
    )
    assert ok(live, "submit", "--after", "1:any", "--name", "both", "--", "true") == "job 5 submitted\n"
    assert ok(live, "submit", "--after", "1_2", "--name", "last", "--", "true") == "job 6 submitted\n"
    rows = json.loads(ok(live, "status", "1", "both", "--json"))["jobs"]
    assert [(row["id"], row["array"], row["index"], row["after"]) for row in rows] == [
        (2, 1, 0, []), (3, 1, 1, []), (4, 1, 2, []), (5, None, None, ["2:any", "3:any", "4:any"]),
    ]  # fmt: skip
    assert "after job 2:any" in ok(live, "status")
    assert "job 4 (sh, held) is to succeed first" in ok(live, "why", "last")
    ok(live, "release", "1")
    assert live("wait", "1").returncode == 1
    assert live("wait", "both").returncode == 0
    assert ok(live, "logs", "1_1") == "1 1 1 3\n"
    shown = json.loads(ok(live, "show", "1_1", "--json"))["job"]
    assert shown["index"] == 1
    spans = [json.loads(ok(live, "show", f"1_{n}", "--json"))["job"] for n in range(3)]
    assert [one["ended_at"] <= other["started_at"] for one, other in pairwise(spans)] == [
        True,
        True,
    ]
    wait_for_state(live, "last", "held")
    assert "job 4 failed" in ok(live, "why", "last")
    ok(live, "release", "last")
    assert live("wait", "last").returncode == 0
    refused = live("submit", "--after", "1_2", "--", "true")
    assert refused.returncode == 5
    assert "job 4 failed" in refused.stderr
    many = live("logs", "1")
    assert many.returncode == 2
    assert "array of 3 jobs" in many.stderr


def test_a_sweep_fills_arguments_and_environment(live: Gpq) -> None:
    said = live(
        "submit", "--sweep", "lr=0.1,0.2", "--sweep", "wd=1", "--json", "--", "sh", "-c", "echo {lr} $GPQ_SWEEP_wd"
    )
    assert json.loads(said.stdout)["jobs"] == [2, 3]
    assert "{wd} is in no argument" in said.stderr
    assert live("wait", "1").returncode == 0
    assert [ok(live, "logs", job) for job in ("1_0", "1_1")] == ["0.1 1\n", "0.2 1\n"]
    assert "sh[lr=0.2 wd=1]" in ok(live, "status", "1")


def test_edits_of_jobs_that_wait_and_run(live: Gpq) -> None:
    ok(live, "submit", "--begin", "tomorrow 8am", "--name", "late", "--", "true")
    ok(live, "submit", "--name", "busy", "--", "sleep", "1000")
    wait_for_state(live, "busy", "running")
    assert "begins in" in ok(live, "status", "late")
    assert (
        ok(live, "edit", "busy", "--priority", "7", "--name", "idle") == "job 2: name busy -> idle; priority 0 -> 7\n"
    )
    refused = live("edit", "idle", "--gpus", "2")
    assert (refused.returncode, refused.stdout) == (5, "")
    assert "cannot be resized" in refused.stderr
    assert ok(live, "edit", "late", "--begin", "now", "--tag", "x").startswith("job 1: tags none -> x; begin ")
    assert live("wait", "late").returncode == 0
    assert live("edit", "late", "--priority", "1").returncode == 5
    # A limit that is over already ends it.
    assert "time limit none -> 1 s" in ok(live, "edit", "idle", "--time", "1s")
    wait_for_state(live, "idle", "timeout")
    shown = ok(live, "show", "idle")
    assert "edited by" in shown


def test_status_answers_queries_over_live_jobs_and_those_that_ended(live: Gpq) -> None:
    ok(live, "submit", "--tag", "cifar10", "--name", "good", "--wait", "--", "true")
    live("submit", "--tag", "cifar100", "--name", "bad", "--wait", "--", "sh", "-c", "exit 4")
    ok(live, "submit", "--hold", "--priority", "3", "--", "true")

    def found(*words: str) -> list[int]:
        return [row["id"] for row in json.loads(ok(live, "status", "--json", *words))["jobs"]]

    assert found("tag~cifar sort=-id") == [2, 1]
    assert found("tag~cifar", "exit=4") == [2]
    assert found("priority>0") == [3]
    assert found("state=held,failed") == [2, 3]
    assert found("1-2", "exit=0") == [1]
    assert "bad" in ok(live, "status", "state=failed")
    assert ok(live, "status", "user=nobody") == "no jobs\n"
    refused = live("status", "usr=ana")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "did you mean user" in refused.stderr


def test_a_job_of_the_background_makes_room_and_comes_back(live: Gpq) -> None:
    ok(live, "submit", "--background", "--gpus", "2", "--name", "back", "--", "sh", "-c", "echo began; sleep 1000")
    wait_for_state(live, "back", "running")
    assert live("submit", "--wait", "--", "true").returncode == 0
    row = wait_for_state(live, "back", "running")
    assert (row["background"], row["attempt"], row["restarts"]) == (True, 2, 1)
    assert ok(live, "logs", "back").count("began") == 2
    assert "leaves as soon as somebody else" in ok(live, "why", "back")
    assert ok(live, "edit", "back", "--no-background") == "job 1: background yes -> no\n"
    ok(live, "submit", "--name", "next", "--", "true")
    assert "held by job 1" in ok(live, "why", "next")
