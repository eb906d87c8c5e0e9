"""The commands against a real daemon that runs real processes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from gpq.client.connection import TRIES, Connection
from gpq.rpc.job_answers import JobList
from gpq.rpc.requests import Status
from tests.cli.conftest import BARE, FIFO, Call, Gpq, submitted
from tests.support.waiting import asks, pid_in, wait_until


def ok(gpq: Call, *argv: str, **environ: str) -> str:
    said = gpq(*argv, **environ)
    assert said.returncode == 0, said
    return said.stdout


def wait_for_state(gpq: Gpq, job: str, state: str) -> dict[str, object]:
    """The job's row when it has reached that state."""
    ok(gpq, "status", job)  # this starts the daemon

    def reached() -> bool:
        with Connection(str(gpq.home / "gpq.sock")) as daemon:
            return daemon.call(Status([job]), JobList).jobs[0].state == state

    wait_until(reached, f"job {job} is {state}")
    row: dict[str, object] = json.loads(ok(gpq, "status", job, "--json"))["jobs"][0]
    assert row["state"] == state
    return row


def begin(gpq: Gpq, *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gpq", *argv],
        env=gpq.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_command_runs_and_its_exit_code_is_returned(queue: Gpq) -> None:
    first = submitted(queue, "--", "sh", "-c", "echo to $NAME; exit 7", "--wait", "--json")
    assert queue("wait", first).returncode == 7
    done = queue("submit", "--env", "NAME=me", "--wait", "--", "sh", "-c", "echo to $NAME; kill -TERM $$")
    second = str(int(first) + 1)
    assert done.returncode == 128 + signal.SIGTERM
    assert f"job {second} failed" in done.stdout
    assert ok(queue, "logs", second) == "to me\n"
    assert queue("wait", second, first).returncode in (7, 143)


def test_wait_exits_with_124_on_timeout_and_130_on_ctrl_c(queue: Gpq) -> None:
    job = submitted(queue, "--", "sleep", "1000")
    done = queue("wait", job, "--timeout", "1s")
    assert (done.returncode, done.stdout) == (124, "")
    assert f"job {job} did not end within 1 s" in done.stderr
    waiting = begin(queue, "wait", job)
    wait_until(lambda: asks(waiting.pid), "the command waits")
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=60)[1] == "note: the jobs stay queued or keep running: `gpq cancel` stops them\n"
    assert waiting.returncode == 130


def test_wait_ends_with_a_code_of_its_own_when_it_is_in_vain(queue: Gpq) -> None:
    first = submitted(queue, "--hold", "--", "sh", "-c", "exit 3")
    second = submitted(queue, "--after", first, "--", "true")
    third = submitted(queue, "--after", f"{second}:any", "--", "true")
    ok(queue, "release", first)
    assert queue("wait", first).returncode == 3
    for done in (queue("wait", first, third), queue("submit", "--wait", "--after", third, "--", "true")):
        assert done.returncode == 6
        assert f"cannot start, because job {first} failed" in done.stderr
    ok(queue, "cancel", second)
    assert queue("wait", third).returncode == 0


def test_a_query_chooses_what_runs_again(queue: Gpq, tmp_path: Path) -> None:
    run = f'[ -e {tmp_path}/ok ] || exit "$GPQ_ARRAY_INDEX"'
    array = int(ok(queue, "submit", "--array", "0-3", "--name", "swept", "--", "sh", "-c", run).split()[1])
    assert queue("wait", str(array)).returncode == 1
    for words, jobs in (
        ([f"array={array} exit=2"], [3]),
        ([f"array={array}"], [2, 3, 4]),
        ([str(array), "--state", "failed"], [2, 3, 4]),
        ([f"{array}_1,{array}_3"], [2, 4]),
        (["swept"], [2, 3, 4]),
    ):
        answer = json.loads(ok(queue, "requeue", *words, "--json"))
        assert answer["jobs"] == [array + number for number in jobs]
        queue("wait", str(array))
    (tmp_path / "ok").touch()
    assert "starts again" in ok(queue, "requeue", str(array))
    assert queue("wait", str(array)).returncode == 0
    assert queue("requeue", str(array), "--state", "failed").returncode == 4
    assert queue("requeue").returncode == 2
    refusal = queue("requeue", submitted(queue, "--hold", "--", "true"), "--fresh")
    assert (refusal.returncode, "has not ended" in refusal.stderr) == (5, True)


def test_cancel_returns_when_every_process_is_gone(queue: Gpq, tmp_path: Path) -> None:
    ends = f"trap '' TERM; echo $$ > {tmp_path}/pid; setsid sleep 1000 & sleep 1000"
    job = submitted(queue, "--", "sh", "-c", ends)
    pid = pid_in(tmp_path / "pid")
    assert ok(queue, "cancel", job) == f"job {job} cancelled: every process is gone\n"
    assert not Path(f"/proc/{pid}").exists()
    assert ok(queue, "cancel", job) == f"job {job} had already ended: nothing to cancel\n"


def test_waiting_commands_continue_with_the_next_daemon_after_a_kill(queue: Gpq, tmp_path: Path) -> None:
    script = f"echo one; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; echo two; exit 5"
    submitting = begin(queue, "submit", "--wait", "--", "sh", "-c", script)
    assert submitting.stdout is not None
    first = submitting.stdout.readline().split()[1]
    waiting, following = begin(queue, "wait", first), begin(queue, "logs", "@", "-f")
    assert following.stdout is not None
    assert following.stdout.readline() == "one\n"
    daemon = json.loads(ok(queue, "daemon", "status", "--json"))["pid"]
    asked = f"touch {tmp_path}/asked; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; sleep 1; exit 1"
    stubborn = f"trap 'trap \"\" TERM; {asked}' TERM; touch {tmp_path}/up; while :; do sleep 0.1; done"
    second = submitted(queue, "--", "sh", "-c", stubborn)
    wait_until((tmp_path / "up").exists, "the second job is up")
    cancelling = begin(queue, "cancel", "@")
    wait_until((tmp_path / "asked").exists, "the second job was asked to stop")
    for process in (submitting, waiting):
        wait_until(lambda process=process: asks(process.pid), "the command waits")  # type: ignore[misc]
    os.kill(daemon, signal.SIGKILL)
    (tmp_path / "go").touch()
    for process, code, printed in (
        (submitting, 5, f"job {first} failed: exit 5\n"),
        (waiting, 5, f"job {first} failed: exit 5\n"),
        (following, 0, "two\n"),
        (cancelling, 0, f"job {second} cancelled: every process is gone\n"),
    ):
        stdout, stderr = process.communicate(timeout=60)
        assert (process.returncode, stdout) == (code, printed), stderr
        assert stderr == "note: the daemon hung up before it answered, asking again\n"


def test_waiting_commands_end_with_the_error_of_a_daemon_that_cannot_start(gpq: Gpq, home: Path) -> None:
    ok(gpq, "daemon", "start")
    try:
        ok(gpq, "submit", "--", "sleep", "1000")
        daemon = json.loads(ok(gpq, "daemon", "status", "--json"))["pid"]
        waiting = begin(gpq, "wait", "1")
        wait_until(lambda: asks(waiting.pid), "the command waits")
        (home / "config.toml").write_text("grace = soon\n")
        os.kill(daemon, signal.SIGKILL)
        assert "config.toml: Invalid value" in waiting.communicate(timeout=60)[1]
        assert waiting.returncode == 2
    finally:
        (home / "config.toml").write_text(FIFO)
        gpq("cancel", "all")
        gpq("daemon", "stop")


def test_ctrl_c_ends_the_wait_but_not_the_job_and_says_so(queue: Gpq) -> None:
    waiting = begin(queue, "submit", "--wait", "--", "sleep", "1000")
    assert waiting.stdout is not None
    job = waiting.stdout.readline().split()[1]
    wait_until(lambda: asks(waiting.pid), "the command waits")
    wait_for_state(queue, job, "running")
    waiting.send_signal(signal.SIGINT)
    note = f"note: job {job} stays queued or keeps running: `gpq cancel {job}` stops it\n"
    assert (waiting.communicate(timeout=60)[1], waiting.returncode) == (note, 130)
    [row] = json.loads(ok(queue, "status", job, "--json"))["jobs"]
    assert row["state"] == "running"


def test_a_daemon_that_keeps_closing_the_connection_is_asked_only_a_few_times(gpq: Gpq, home: Path) -> None:
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


def test_a_job_on_a_removed_server_is_given_up_but_not_reported_as_gone(gpq: Gpq, home: Path) -> None:
    (home / "config.toml").write_text(f"{FIFO}[nodes.other]\nslots = 2\n")
    ok(gpq, "daemon", "start")
    try:
        ok(gpq, "submit", "--", "sh", "-c", f"echo $$ > {home}/pid; exec sleep 1000")
        [part] = wait_for_state(gpq, "1", "running")["placement"]  # type: ignore[misc]
        wait_until(
            lambda: (home / "pid").exists() and (home / "pid").read_text().strip(), "the job has written its pid"
        )
        ok(gpq, "nodes", "remove", part["node"], "--force")
        said = " ".join(ok(gpq, "why", "1").split())
        assert f"server {part['node']} is no longer in the configuration" in said
        assert "from config.toml" not in said
        said = gpq("cancel", "1")
        assert (said.returncode, said.stdout) == (1, "")
        told = (
            f"job 1 given up: gpq does not know whether its processes still run on {part['node']},"
            " because that server was removed from gpq"
        )
        assert said.stderr == f"note: {told}\n"
        assert Path(f"/proc/{(home / 'pid').read_text().strip()}").exists()
        assert ok(gpq, "cancel", "1") == "job 1 had already ended: nothing to cancel\n"
    finally:
        os.kill(int((home / "pid").read_text()), signal.SIGKILL)
        gpq("daemon", "stop")


def test_the_log_of_a_job_that_never_started_is_one_line_with_the_reason(queue: Gpq) -> None:
    job = submitted(queue, "--hold", "--", "true")
    held = f"gpq: there is no log: job {job} has not started (held by its user)\n"
    for words in ((), ("-n", "3")):
        done = queue("logs", job, *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == held + f"hint: see `gpq why {job}`\n"
    following = begin(queue, "logs", job, "-f")
    assert following.stderr is not None
    note = f"note: job {job} has not started (held by its user): see `gpq why {job}`\n"
    assert following.stderr.readline() == note
    ok(queue, "cancel", job)
    never = f"gpq: there is no log: job {job} never started (cancelled)\nhint: see `gpq why {job}`\n"
    assert (following.communicate(timeout=60)[1], following.returncode) == (never, 1)
    assert (queue("logs", job).stderr, queue("logs", job, "-f").returncode) == (never, 1)


def test_a_dry_run_queues_nothing(queue: Gpq) -> None:
    before = json.loads(ok(queue, "status", "--all", "--json"))["total"]
    assert ok(queue, "submit", "--dry-run", "--", "true").startswith("would be ")
    answer = json.loads(ok(queue, "submit", "--dry-run", "--json", "--", "true"))
    assert set(answer) >= {"state", "placement", "reasons"}
    assert json.loads(ok(queue, "status", "--all", "--json"))["total"] == before


def test_every_reading_command_prints_only_json(queue: Gpq) -> None:
    job = submitted(queue, "--name", "one", "--", "echo", "hello")
    queue("wait", job)
    assert "policy    fifo," in ok(queue, "daemon", "status")
    commands = [["status"], ["show", job], ["why", job], ["nodes"], ["top"], ["daemon", "status"], ["config", "show"]]
    commands += [["config", "path"], ["config", "check"], ["config", "policies"], ["wait", job], ["logs", job]]
    for argv in commands:
        done = queue(*argv, "--json")
        assert done.stderr == "", argv
        for line in done.stdout.splitlines():
            assert isinstance(json.loads(line), dict), argv


def test_logs_shows_the_last_lines_of_all_attempts_and_then_new_ones(queue: Gpq, tmp_path: Path) -> None:
    gate = f"while ! test -e {tmp_path}/gate; do sleep 0.1; done"
    line = f"test -e {tmp_path}/again && echo 4 && touch {tmp_path}/second && exec sh -c '{gate}; echo 5'"
    job = submitted(queue, "--retries", "1", "--", "sh", "-c", f"{line}; seq 1 3; touch {tmp_path}/again; exit 1")
    wait_until((tmp_path / "second").exists, "the second attempt has printed")
    second = "--- attempt 2 on local ---\n4\n"
    first = "--- attempt 1 on local ---\n"
    assert ok(queue, "logs", job, "-n", "1") == second
    assert ok(queue, "logs", job, "--lines", "3") == f"{first}2\n3\n{second}"
    assert ok(queue, "logs", job, "-n", "99") == ok(queue, "logs", job) == f"{first}1\n2\n3\n{second}"
    assert ok(queue, "logs", job, "-n", "2", "--attempt", "1", "--node", "0") == f"{first}2\n3\n"
    assert queue("logs", job, "-n", "-1").returncode == 2
    following = begin(queue, "logs", job, "-fn0")
    assert following.stdout is not None
    assert following.stdout.readline() == "--- attempt 2 on local ---\n"
    (tmp_path / "gate").touch()
    assert following.communicate(timeout=60)[0] == "5\n"


def test_a_progress_bar_is_one_line_for_the_last_lines(queue: Gpq) -> None:
    bar = "import sys; [sys.stdout.write(f'\\r{n:5} of 40000') for n in range(40001)]; print()"
    job = submitted(queue, "--", "sh", "-c", f'echo one; python3 -c "{bar}"; echo two; printf "5%%\\r6%%"')
    assert queue("wait", job).returncode == 0
    assert ok(queue, "logs", job, "-n", "3") == "40000 of 40000\ntwo\n6%"
    followed = ok(queue, "logs", job, "-n", "4", "--follow")
    assert len(followed) < 10_000
    assert followed.endswith("\n40000 of 40000\ntwo\n6%")
    assert len(ok(queue, "logs", job, "-n", "4", "--raw")) == len(ok(queue, "logs", job)) > 500_000


def test_any_command_starts_the_daemon_and_jobs_outlive_it(gpq: Gpq) -> None:
    assert gpq("daemon", "status").returncode == 3
    try:
        assert ok(gpq, "status") == "no jobs\n"
        ok(gpq, "submit", "--", "sleep", "1000")
        wait_for_state(gpq, "1", "running")
        assert ok(gpq, "daemon", "stop") == "daemon stopped, jobs keep running\n"
        assert ok(gpq, "daemon", "stop") == "no daemon is running\n"
        assert wait_for_state(gpq, "1", "running")["attempt"] == 1
    finally:
        gpq("cancel", "all")
        gpq("daemon", "stop")


def test_a_file_broken_after_the_start_is_reported_but_stops_nothing(gpq: Gpq, home: Path) -> None:
    (home / "config.toml").write_text("grace = 33.0\n[nodes.local]\nslots = 2\n")
    ok(gpq, "daemon", "start")
    try:
        assert gpq("daemon", "status").stderr == ""
        (home / "config.toml").write_text("grace = soon\n")
        ok(gpq, "submit", "--wait", "--", "true")
        assert "completed" in ok(gpq, "status")
        assert json.loads(ok(gpq, "show", "1", "--json"))["spec"]["grace"] == 33.0
        assert (
            "config.toml has changed since the daemon started: run `gpq daemon stop`" in gpq("daemon", "status").stderr
        )
        [said] = [
            check
            for check in json.loads(gpq("doctor", "--json", "--python", BARE).stdout)["checks"]
            if check["name"] == "daemon"
        ]
        assert (said["verdict"], "config.toml has changed" in said["message"]) == ("warn", True)
    finally:
        gpq("daemon", "stop")
    stopped = gpq("status")
    assert (stopped.returncode, stopped.stdout) == (2, "")
    assert "config.toml: Invalid value (at line 1, column 9)" in stopped.stderr.splitlines()[0]


def test_every_command_says_why_a_servers_agent_cannot_start(gpq: Gpq, home: Path) -> None:
    (home / "config.toml").write_text("[nodes.local]\nslots = 1\ncores = [99999]\n")
    ok(gpq, "daemon", "start")
    said = "the agent ended: core 99999 is not available here"
    try:
        waiting = begin(gpq, "submit", "--wait", "--", "true")
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == "note: job 1 is pending: no server answers (see `gpq why 1`)\n"
        assert waiting.stderr.readline() == f"note: server local does not answer: {said}\n"
        [server] = json.loads(ok(gpq, "nodes", "--json"))["nodes"]
        assert server["reason"] == said
        assert said in " ".join(ok(gpq, "why", "1").split())
        ok(gpq, "cancel", "1")
        assert waiting.communicate(timeout=60)[1] == ""
    finally:
        gpq("daemon", "stop")


def test_an_array_runs_a_few_jobs_at_once_and_its_dependents_wait(queue: Gpq) -> None:
    run = 'echo "{index} $GPQ_ARRAY_ID $GPQ_ARRAY_INDEX $GPQ_ARRAY_SIZE"; exit $(({index} / 2))'
    answer = ok(queue, "submit", "--array", "0-2%1", "--hold", "--", "sh", "-c", run)
    array = int(answer.split()[1])
    a, b, c, both, last = range(array + 1, array + 6)
    jobs = f"{a} to {c} ({array}_0 to {array}_2)"
    assert answer == (
        f"array {array} submitted: 3 jobs, {jobs}, at most 1 at once, held: `gpq release` lets it start\n"
    )
    assert submitted(queue, "--after", f"{array}:any", "--name", "both", "--", "true") == str(both)
    assert submitted(queue, "--after", f"{array}_2", "--name", "last", "--", "true") == str(last)
    rows = json.loads(ok(queue, "status", str(array), "both", "--json"))["jobs"]
    assert [(row["id"], row["array"], row["index"], row["after"]) for row in rows] == [
        (a, array, 0, []), (b, array, 1, []), (c, array, 2, []),
        (both, None, None, [f"{a}:any", f"{b}:any", f"{c}:any"]),
    ]  # fmt: skip
    assert f"after job {a}:any" in ok(queue, "status")
    assert f"job {c} (sh, held) must succeed first" in ok(queue, "why", "last")
    ok(queue, "release", str(array))
    assert queue("wait", str(array)).returncode == 1
    assert queue("wait", "both").returncode == 0
    assert ok(queue, "logs", f"{array}_1") == f"1 {array} 1 3\n"
    elements = [json.loads(ok(queue, "show", f"{array}_{n}", "--json"))["job"] for n in range(3)]
    assert [row["index"] for row in elements] == [0, 1, 2]
    assert all(one["ended_at"] <= other["started_at"] for one, other in pairwise(elements))
    wait_for_state(queue, "last", "held")
    assert f"job {c} failed" in ok(queue, "why", "last")
    ok(queue, "release", "last")
    assert queue("wait", "last").returncode == 0
    refusal = queue("submit", "--after", f"{array}_2", "--", "true")
    assert refusal.returncode == 5
    assert f"job {c} failed" in refusal.stderr
    many = queue("logs", str(array))
    assert many.returncode == 2
    assert "array of 3 jobs" in many.stderr


def test_a_sweep_fills_arguments_and_environment(queue: Gpq) -> None:
    done = queue(
        "submit", "--sweep", "lr=0.1,0.2", "--sweep", "wd=1", "--json", "--", "sh", "-c", "echo {lr} $GPQ_SWEEP_wd"
    )
    answer = json.loads(done.stdout)
    array = answer["id"]
    assert answer["jobs"] == [array + 1, array + 2]
    assert "no argument contains {wd}" in done.stderr
    assert queue("wait", str(array)).returncode == 0
    assert [ok(queue, "logs", job) for job in (f"{array}_0", f"{array}_1")] == ["0.1 1\n", "0.2 1\n"]
    assert "sh[lr=0.2 wd=1]" in ok(queue, "status", str(array))


def test_a_sweep_leaves_shell_variables_alone_and_keeps_values_with_commas_whole(queue: Gpq) -> None:
    run = "lr=5; for index in 7; do echo ${lr} ${index} $GPQ_SWEEP_lr '{hidden}'; done"
    done = queue("submit", "--sweep", "lr=1e-3, 1e-2", "--sweep", "hidden=[64,64],[8,8]", "--", "bash", "-c", run)
    assert "note: gpq leaves ${lr} to the shell" in done.stderr
    assert "note: gpq leaves ${index} to the shell" in done.stderr
    array = done.stdout.split()[1]
    assert queue("wait", array).returncode == 0
    logs = [ok(queue, "logs", f"{array}_{index}") for index in range(4)]
    assert logs == [f"5 7 {lr} {hidden}\n" for lr in ("1e-3", "1e-2") for hidden in ("[64,64]", "[8,8]")]
    refusal = queue("submit", "--sweep", "lr=0.1..0.5", "--", "true")
    assert refusal.returncode == 2
    assert "0.1..0.5 is not a range of whole numbers" in refusal.stderr


def test_waiting_and_running_jobs_can_be_edited(queue: Gpq) -> None:
    late = submitted(queue, "--begin", "tomorrow 8am", "--name", "late", "--", "true")
    busy = submitted(queue, "--name", "busy", "--", "sleep", "1000")
    wait_for_state(queue, "busy", "running")
    assert "begins in" in ok(queue, "status", "late")
    edited = ok(queue, "edit", "busy", "--priority", "7", "--name", "idle")
    assert edited == f"job {busy}: name busy -> idle, priority 0 -> 7\n"
    refusal = queue("edit", "idle", "--gpus", "2")
    assert (refusal.returncode, refusal.stdout) == (5, "")
    assert "cannot be resized" in refusal.stderr
    edited = ok(queue, "edit", "late", "--begin", "now", "--tag", "x")
    assert edited.startswith(f"job {late}: tags none -> x, begin ")
    assert queue("wait", "late").returncode == 0
    assert f"`gpq requeue {late}` runs it with that" in ok(queue, "edit", "late", "--priority", "1")
    # A limit that has already passed stops the job.
    assert "time limit none -> 1 s" in ok(queue, "edit", "idle", "--time", "1s")
    wait_for_state(queue, "idle", "timeout")
    assert "edited by" in ok(queue, "show", "idle")


def test_status_filters_live_and_ended_jobs(queue: Gpq) -> None:
    good = int(submitted(queue, "--tag", "cifar10", "--name", "good", "--wait", "--", "true"))
    queue("submit", "--tag", "cifar100", "--name", "bad", "--wait", "--", "sh", "-c", "exit 4")
    bad, held = good + 1, good + 2
    assert submitted(queue, "--hold", "--priority", "3", "--", "true") == str(held)

    def selected(*words: str) -> list[int]:
        rows = json.loads(ok(queue, "status", "--json", f"{good}-{held}", *words))["jobs"]
        return [row["id"] for row in rows]

    assert selected("tag~cifar sort=-id") == [bad, good]
    assert selected("tag~cifar", "exit=4") == [bad]
    assert selected("priority>0") == [held]
    assert selected("state=held,failed") == [bad, held]
    assert selected("exit=0") == [good]
    assert "bad" in ok(queue, "status", "state=failed")
    assert ok(queue, "status", "user=nobody") == "no jobs\n"
    refusal = queue("status", "usr=ana")
    assert (refusal.returncode, refusal.stdout) == (2, "")
    assert "did you mean user" in refusal.stderr


def test_a_background_job_makes_room_and_restarts(queue: Gpq) -> None:
    back = submitted(queue, "--background", "--gpus", "2", "--name", "back", "--", "sh", "-c", "echo began; sleep 1000")
    wait_for_state(queue, "back", "running")
    assert queue("submit", "--wait", "--", "true").returncode == 0
    row = wait_for_state(queue, "back", "running")
    assert (row["background"], row["attempt"], row["restarts"]) == (True, 2, 1)
    assert ok(queue, "logs", "back").count("began") == 2
    assert "leaves as soon as somebody else" in ok(queue, "why", "back")
    assert ok(queue, "edit", "back", "--no-background") == f"job {back}: background yes -> no\n"
    ok(queue, "submit", "--name", "next", "--", "true")
    assert f"in use by job {back}" in ok(queue, "why", "next")
