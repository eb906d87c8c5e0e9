"""The daemon itself: one at a time, refusals at its start, crashes, successors, and who starts it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpq.client import autostart, daemon_control
from gpq.client.connection import call
from gpq.core.model.jobs import TERMINAL
from gpq.daemon.files import backups
from gpq.errors import DaemonUnreachable, GpqError, UsageError
from gpq.rpc.daemon_answers import DaemonInfo
from gpq.rpc.job_answers import JobDetail, JobList, Submitted
from gpq.rpc.requests import Info, Show, SpecMessage, Status, Submit, Wait
from gpq.store.sqlite import SqliteStore
from tests.contract.test_sqlite_store import fill, mounted, needs_root
from tests.daemon.daemons import CONFIG, Daemon, clear, daemon
from tests.support.figures import Figures
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Daemon]:
    with daemon(tmp_path / "home") as running:
        yield running


# -- starting and ending -----------------------------------------------------------------------------------------------


def test_a_second_daemon_is_refused_with_5_and_the_first_keeps_serving(served: Daemon) -> None:
    code, said = served.refusal()
    assert code == 5
    assert str(served.info().pid) in said
    argv = [sys.executable, "-m", "gpq.daemon.main"]
    typed = subprocess.run(argv, env=served.environment, capture_output=True, text=True, check=False, timeout=60)
    assert typed.returncode == 5
    assert typed.stderr.splitlines()[0] == f"gpq: {said}"
    assert served.info().pid == served.process.pid  # type: ignore[union-attr]


def test_sigterm_ends_the_daemon_cleanly_and_jobs_keep_running(served: Daemon, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    job = served.submit("sh", "-c", f"sleep 2; touch {mark}; exit 7")
    wait_until(lambda: served.call(Status([str(job)]), JobList).jobs[0].state == "running", "it runs")
    assert served.stop() == 0
    assert not os.path.exists(served.socket)
    wait_until(mark.exists, "the job continued without a daemon")
    served.start()
    [ended] = served.call(Wait([str(job)], wait=60), JobList).jobs
    assert (ended.state, ended.exit_status, ended.attempt) == ("failed", 7, 1)


@pytest.mark.parametrize("gone", ["lock", "folder"])
def test_a_daemon_that_lost_its_state_directory_ends_and_touches_nothing(tmp_path: Path, gone: str) -> None:
    with daemon(tmp_path / "home") as running:
        running.wait_for_nodes()
        job = running.submit("sh", "-c", f"while ! test -e {tmp_path / 'go'}; do sleep 0.05; done; exit 7")
        wait_until(lambda: states(running, job) == ["running"], "it runs")
        first = running.process
        assert first is not None
        moved = running.home
        if gone == "lock":
            (running.home / "daemon.lock").unlink()
        else:
            moved = running.home.rename(tmp_path / "moved")
        assert first.wait(60) == 0
        assert "was removed or replaced" in (moved / "daemon.log").read_text()
        if gone == "folder":
            assert not running.home.exists(), "nothing is written where another daemon may be"
            moved.rename(running.home)
        running.start()
        running.wait_for_nodes()
        (tmp_path / "go").touch()
        (row,) = running.call(Wait([str(job)], wait=60), JobList).jobs
        assert (row.exit_status, row.attempt) == (7, 1)


def test_a_crash_logs_its_place_and_the_next_daemon_continues(served: Daemon) -> None:
    job = served.submit("true")
    served.call(Wait([str(job)], wait=60), JobList)  # so its start is over
    assert served.process is not None
    served.process.send_signal(signal.SIGSEGV)
    assert served.process.wait(60) == -signal.SIGSEGV
    said = (served.home / "daemon.log").read_text()
    assert "Fatal Python error: Segmentation fault" in said
    assert "_until_ending" in said, "the stack"
    served.start()
    assert [job.id for job in served.call(Status(["1"]), JobList).jobs] == [1]


@pytest.mark.parametrize(
    ("config", "code", "said"),
    [
        ("interval = 5\npolicy = 'magic'", 2, "unknown policy `magic` (at line 2, column 1)"),
        ("[nodes.a]\nconnector = 'pigeon'", 2, "unknown connector"),
    ],
)
def test_a_bad_configuration_is_refused_with_its_place(tmp_path: Path, config: str, code: int, said: str) -> None:
    found, line = Daemon(tmp_path / "home", config).refusal()
    assert found == code
    assert said in line


def test_a_socket_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    code, line = Daemon(tmp_path / ("x" * 120)).refusal()
    assert code == 5
    assert "longer than 107 bytes" in line


def test_a_corrupt_database_is_refused_and_kept(tmp_path: Path) -> None:
    with daemon(tmp_path / "home") as running:
        for _ in range(3):
            running.submit("true", name="kept")
        running.stop()
        database = running.home / "gpq.db"
        content = bytearray(database.read_bytes())
        content[4096:4196] = bytes(100)
        database.write_bytes(content)
        code, line = running.refusal()
        assert code == 5
        assert str(database) in line
        for by_hand in (False, True):
            process, verdict = running.spawn()
            process.wait(60)
            assert ("shows which file to remove on each" in verdict["hint"]) == by_hand
            (running.home / "marks.json").unlink(missing_ok=True)
        assert "damaged" in line
        assert database.read_bytes() == content


@pytest.mark.row("9")
def test_the_hint_for_a_damaged_database_restores_the_backup(tmp_path: Path, figures: Figures) -> None:
    with daemon(tmp_path / "home") as running:
        before = running.submit("sh", "-c", "exit 4", name="before")
        running.call(Wait([str(before)], wait=60), JobList)
        running.stop()
        database = running.home / "gpq.db"
        with contextlib.closing(SqliteStore(str(database))) as store:
            store.backup()
        running.start()
        later = running.submit("sh", "-c", "exit 5", name="later")
        running.call(Wait([str(later)], wait=60), JobList)
        running.kill()  # with a log that belongs to the damaged database
        database.write_bytes(database.read_bytes()[:4096] + bytes(len(database.read_bytes()) - 4096))
        process, verdict = running.spawn()
        process.wait(60)
        assert "damaged" in verdict["error"]
        command = verdict["hint"].split("`")[1]
        subprocess.run(["sh", "-c", command], check=True)
        running.start()
        rows = running.call(Status(recent=100), JobList).jobs
        figures.exactly("jobs of the backup that are there again", [row.name for row in rows], ["before"])
        new = running.submit("sh", "-c", "exit 6")
        figures.exactly("ids used a second time", int(new <= later), 0)
        assert running.call(Wait([str(new)], wait=60), JobList).jobs[0].exit_status == 6
        assert sorted(path.name for path in (running.home / "damaged-1").glob("gpq.db*"))[0] == "gpq.db"


def test_after_a_restore_servers_obey_and_newer_attempts_are_left_alone(
    tmp_path: Path,
) -> None:
    def until(name: str) -> str:
        return f"while ! test -e {tmp_path / name}; do sleep 0.05; done"

    with daemon(tmp_path / "home", CONFIG.replace("= 2", "= 5")) as running:
        running.wait_for_nodes()
        ends = running.submit("sh", "-c", f"{until('one')}; exit 7", name="ends")
        more = [running.submit("sh", "-c", f"{until(name)}; exit 8") for name in ("one", "one", "two", "two")]
        waits = running.submit("sh", "-c", f"echo ran >> {tmp_path / 'waits'}; exit 9", name="waits")
        goes_on = running.submit("sh", "-c", f"{until('two')}; echo ran >> {tmp_path / 'goes-on'}")
        wait_until(lambda: states(running, ends, *more) == ["running"] * 5, "five jobs run")
        running.kill()
        database = running.home / "gpq.db"
        with contextlib.closing(SqliteStore(str(database))) as store:
            store.backup()
        running.start()
        (tmp_path / "one").touch()
        running.call(Wait([str(ends), str(waits)], wait=60), JobList)
        last = running.submit("sh", "-c", f"{until('two')}; echo ended > {tmp_path / 'last'}")
        wait_until(
            lambda: states(running, goes_on, last) == ["running"] * 2, "a job that the backup does not know runs"
        )
        attempts = running.home / "nodes" / "here" / "attempts"
        past = running.home / "nodes" / "here" / "ended" / "0"
        wait_until(lambda: all((past / f"{job}.1" / "forgotten").exists() for job in (ends, waits)), "forgotten")
        running.kill()
        database.write_bytes(database.read_bytes()[:4096] + bytes(len(database.read_bytes()) - 4096))
        process, verdict = running.spawn()
        process.wait(60)
        subprocess.run(["sh", "-c", verdict["hint"].split("`")[1]], check=True)
        running.start()
        running.wait_for_nodes()
        told = running.call(Wait([str(ends), str(waits)], wait=60), JobList).jobs
        assert [(job.exit_status, job.attempt) for job in sorted(told, key=lambda job: job.id)] == [(7, 1), (9, 17)]
        assert (tmp_path / "waits").read_text() == "ran\nran\n", (
            "the record of its end is lost, so it really runs twice"
        )
        new = running.submit("sh", "-c", "exit 6")
        assert new > last
        [told] = [line for line in running.call(Status(), JobList).warnings if f"attempt {last}.1 " in line]
        assert f"Its log: {attempts / f'{last}.1'}" in told
        [held] = running.call(Status([str(goes_on)]), JobList).jobs
        assert held.state == "pending", "it does not start a second time while it runs"
        unknown = f"runs its attempt {goes_on}.1, which this daemon's database does not know"
        assert unknown in held.reason
        [ended] = running.call(Wait([str(new)], wait=60), JobList).jobs
        assert (ended.exit_status, ended.attempt) == (6, 1)
        assert not (attempts / f"{last}.1" / "exit.json").exists(), "it was stopped"
        (tmp_path / "two").touch()
        wait_until((tmp_path / "last").exists, "it ran until its end")
        [again] = running.call(Wait([str(goes_on)], wait=60), JobList).jobs
        assert (again.exit_status, again.attempt) == (0, 17)
        running.call(Wait(["all"], wait=60), JobList)


def states(running: Daemon, *jobs: int) -> list[str]:
    rows = {row.id: row.state for row in running.call(Status(recent=100), JobList).jobs}
    return [rows[job] for job in jobs]


def test_a_database_without_a_backup_is_moved_away_by_the_command_of_the_hint(tmp_path: Path) -> None:
    made = Daemon(tmp_path / "a home")
    (made.home / "gpq.db").write_bytes(b"no database")
    (made.home / "nodes" / "left" / "attempts" / "7.1").mkdir(parents=True)
    (made.home / "nodes" / "left" / "ended" / "12" / "12042.1").mkdir(parents=True)
    try:
        process, verdict = made.spawn()
        process.wait(60)
        assert "there is no backup" in verdict["hint"]
        subprocess.run(["sh", "-c", verdict["hint"].split("`")[1]], check=True)
        made.start()
        assert (made.home / "damaged-1" / "gpq.db").read_bytes() == b"no database"
        assert made.submit("true") == 12043, "servers still have what ended before"
    finally:
        clear(made)


def backup_of_age(folder: Path, age: float | None) -> Path:
    """A backup of this age in seconds, or none at all if `age` is None."""
    path = folder / "gpq.db.backup"
    if age is not None:
        path.touch()
        os.utime(path, (time.time() - age, time.time() - age))
    return path


@pytest.mark.parametrize(
    ("age", "wait"), [(None, 60.0), (7200.0, 60.0), (3000.0, 600.0), (0.0, 3600.0), (-9000.0, 3600.0)]
)
def test_a_backup_is_made_every_hour_and_soon_if_there_is_none(age: float | None, wait: float, tmp_path: Path) -> None:
    path = backup_of_age(tmp_path, age)
    assert backups.seconds_until_backup(str(path), 60.0, 3600.0) == pytest.approx(wait, abs=5.0)


@pytest.mark.parametrize(("age", "wait"), [(None, 3.0), (7200.0, 3.0), (310.0, 3.0), (100.0, 200.0), (-9000.0, 300.0)])
def test_a_starting_daemon_soon_makes_a_backup_unless_one_is_fresh(
    age: float | None, wait: float, tmp_path: Path
) -> None:
    path = backup_of_age(tmp_path, age)
    assert backups.seconds_until_backup(str(path), 3.0, 300.0) == pytest.approx(wait, abs=2.0)


def test_a_backup_is_made_at_a_clean_end_and_soon_after_a_start(served: Daemon) -> None:
    backup = served.home / "gpq.db.backup"
    wait_until(backup.exists, "the first one, soon after the start")
    job = served.submit("true", name="late")
    served.call(Wait([str(job)], wait=60), JobList)
    served.stop()
    with contextlib.closing(sqlite3.connect(backup)) as copy:
        assert copy.execute("SELECT name, state FROM jobs").fetchall() == [("late", "completed")]


def test_status_says_why_a_served_database_is_not_copied(served: Daemon) -> None:
    job = served.submit("true", name="lost")
    served.call(Wait([str(job)], wait=60), JobList)
    served.stop()
    backup = served.home / "gpq.db.backup"
    sound = backup.read_bytes()
    os.utime(backup, (0.0, 0.0))
    with contextlib.closing(sqlite3.connect(served.home / "gpq.db")) as other, other:
        other.execute("UPDATE jobs SET body = substr(body, 1, length(body) - 6) WHERE name = 'lost'")
    served.start()
    [warning] = wait_until(lambda: served.call(Status(recent=0), JobList).warnings, "the refused copy")
    assert "cannot back up its state" in warning
    assert f"job {job} has a wrong checksum" in warning
    assert backup.read_bytes() == sound


@pytest.mark.row("6")
@needs_root
def test_on_a_full_disk_a_submission_is_refused_and_the_ends_of_running_jobs_are_kept(
    tmp_path: Path, figures: Figures
) -> None:
    with mounted(tmp_path / "small", "4m") as small, daemon(small / "home", CONFIG.replace("= 2", "= 6")) as running:
        running.wait_for_nodes()
        go = tmp_path / "go"
        jobs = [
            running.submit("sh", "-c", f"while ! test -e {go}; do sleep 0.1; done; exit {code}") for code in range(6)
        ]

        def states() -> set[str]:
            return {job.state for job in running.call(Status(), JobList).jobs}

        wait_until(lambda: states() == {"running"}, "they run")
        fill(small)
        refused = wait_until(lambda: _refusal(running), "a submission is refused")
        assert refused.code == 5
        assert "the disk is full" in refused.message
        total = running.info().jobs_total
        assert _refusal(running) is not None  # one of the same size, because less may still fit
        assert running.info().jobs_total == total
        go.touch()
        ended = running.call(Wait([str(job) for job in jobs], wait=60), JobList).jobs
        assert {job.id: job.exit_status for job in ended} == {job: code for code, job in enumerate(jobs)}
        running.kill()
        (small / "filler").unlink()
        running.start()
        found = running.call(Show(str(jobs[3])), JobDetail).job
        kept = [
            job for job in running.call(Status(recent=100), JobList).jobs if job.id in jobs and job.state in TERMINAL
        ]
        assert (found.state, found.exit_status) == ("failed", 3)
        figures.exactly("results of running jobs kept", f"{len(kept)} of {len(jobs)}", "6 of 6")
        assert running.submit("true") > jobs[-1]


def _refusal(running: Daemon) -> GpqError | None:
    try:
        running.submit("sh", "-c", "true", env={"PAD": "x" * 50_000})
    except GpqError as error:
        return error
    return None


def test_a_signal_at_any_point_of_the_wait_for_the_end_is_heard() -> None:
    code = """
import os, signal, sys, time
from gpq.daemon.process import Ending, ended_by_signals

waits, ending, heard = os.getpid(), Ending(), 0
with ended_by_signals(ending):
    sender = os.fork()
    while sender == 0:
        time.sleep(0.0001)
        os.kill(waits, signal.SIGTERM) if os.getppid() == waits else os._exit(0)
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        heard += ending.wait(0.0003)
    os.kill(sender, signal.SIGKILL)
    os.waitpid(sender, 0)
print(heard)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_a_signal_between_the_check_and_the_wait_is_heard() -> None:
    # The kernel gives the signal to the other thread, so that it does not end the system call of the first one.
    code = """
import os, signal, threading, time
from gpq.daemon.process import Ending, ended_by_signals

ending = Ending()
with ended_by_signals(ending):
    threading.Thread(target=time.sleep, args=(30.0,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)
    print(ending.wait(20.0))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.row("11")
def test_a_stopped_daemon_that_was_replaced_cannot_write_when_it_wakes(tmp_path: Path, figures: Figures) -> None:
    with daemon(tmp_path / "home") as old:
        old.submit("true", name="before")
        new = Daemon(tmp_path / "home")
        old.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
        for name in ("daemon.lock", "gpq.sock"):
            os.rename(old.home / name, old.home / f"{name}.old")
        new.start()
        try:
            epoch = new.info().epoch
            held = new.submit("true", name="after")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(60)
                connection.connect(str(old.home / "gpq.sock.old"))
                spec = {"argv": ["true"], "cwd": "/tmp", "level": "black-box", "name": "ghost"}
                connection.sendall(json.dumps({"v": 1, "op": "submit", "spec": spec}).encode() + b"\n")
                old.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
                assert not acknowledged(connection)
            assert old.process.wait(60) != 0  # type: ignore[union-attr]
            names = [job.name for job in new.call(Status(), JobList).jobs]
            assert "after" in names
            figures.exactly("writes of the daemon that was replaced", names.count("ghost"), 0)
            assert new.info().epoch == epoch
            assert held in [job.id for job in new.call(Status(), JobList).jobs]
        finally:
            new.kill()


def acknowledged(connection: socket.socket) -> bool:
    """Did it say ok? It may also hang up before it has read our line."""
    try:
        line = connection.makefile("rb").readline()
    except ConnectionResetError:
        return False
    return bool(line) and bool(json.loads(line)["ok"])


# -- the client starts it ----------------------------------------------------------------------------------------------

CALL = """
from gpq.client.connection import call
from gpq.rpc.daemon_answers import DaemonInfo
from gpq.rpc.requests import Info
print(call(Info(), DaemonInfo).pid)
"""


def test_racing_commands_start_one_daemon(tmp_path: Path) -> None:
    made = Daemon(tmp_path / "home")
    try:
        clients = [
            subprocess.Popen([sys.executable, "-c", CALL], env=made.environment, stdout=subprocess.PIPE)
            for _ in range(8)
        ]
        pids = {client.communicate(timeout=120)[0] for client in clients}
        assert len(pids) == 1
        assert all(client.returncode == 0 for client in clients)
        assert (made.home / "daemon.log").read_text().count("epoch") == 1
    finally:
        clear(made)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A home that this process's own client uses, without a daemon yet."""
    made = Daemon(tmp_path / "home")
    for name in ("GPQ_HOME", "GPQ_CONFIG", "PYTHONPATH"):
        monkeypatch.setenv(name, made.environment[name])
    yield made
    monkeypatch.undo()
    clear(made)


def test_a_daemon_that_ends_during_a_start_is_replaced(own: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile other commands may look and start."""
    waits = threading.Event()
    await_other = autostart._await_other
    monkeypatch.setattr(autostart, "_await_other", lambda: (waits.set(), await_other()))
    own.home.mkdir(exist_ok=True)
    hold = "from gpq.store.lock import DaemonLock; lock = DaemonLock(); print(flush=True); input()"
    words = [sys.executable, "-c", hold]
    with (
        subprocess.Popen(words, env=own.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ending,
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):
        assert ending.stdout is not None
        assert ending.stdout.readline() == b"\n"
        started = threads.submit(autostart.ensure_daemon)
        assert waits.wait(PATIENCE)
        with open(own.home / "start.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ending.kill()
        assert started.result(PATIENCE)


def test_start_status_logs_and_stop(own: Daemon) -> None:
    with pytest.raises(DaemonUnreachable, match="the daemon is not running"):
        daemon_control.status()
    assert daemon_control.start()
    assert not daemon_control.start()
    assert daemon_control.status().home == str(own.home)
    assert any("epoch 1" in line for line in daemon_control.logs())
    assert daemon_control.stop()
    assert not daemon_control.stop()
    with pytest.raises(DaemonUnreachable):
        daemon_control.status()


def test_the_error_of_a_daemon_that_cannot_start_reaches_the_command(own: Daemon) -> None:
    own.config.write_text("interval = -1")
    with pytest.raises(UsageError, match="interval must be above 0"):
        call(Info(), DaemonInfo)
    assert daemon_control.running() is None  # at once, so nobody has to wait until its process is gone
    assert not daemon_control.stop()


def test_a_zombie_daemon_does_not_count(own: Daemon) -> None:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        born = int(Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2].split()[19])
        own.home.mkdir(exist_ok=True)
        (own.home / "daemon.lock").write_text(json.dumps({"pid": ended.pid, "start_time": born}))
        assert not daemon_control.stop()


def test_stop_with_jobs_cancels_them_first(own: Daemon) -> None:
    call(Submit(SpecMessage(["sleep", "600"], "/tmp", "black-box")), Submitted)
    assert daemon_control.stop(jobs=True)
    daemon_control.start()
    assert [job.state for job in call(Status(), JobList).jobs] == ["cancelled"]


def test_a_hanging_daemon_is_ended_by_its_pid_and_no_other_process_is(own: Daemon) -> None:
    daemon_control.start()
    owner = daemon_control.running()
    assert owner is not None
    assert daemon_control.status().pid == owner[0]
    forged = {"pid": os.getpid(), "start_time": owner[1]}
    (own.home / "daemon.lock").write_text(json.dumps(forged))
    assert daemon_control.running() is None
    assert not daemon_control.stop()
    (own.home / "daemon.lock").write_text(json.dumps({"pid": owner[0], "start_time": owner[1]}))
    assert daemon_control.stop()
