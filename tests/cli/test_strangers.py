"""Other users of this machine: what they put where gpq looks, or may change, is refused in one line and never used."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gpq import verdicts
from gpq.cli import output
from gpq.cli.doctor import checks
from gpq.cli.jobs import task_spooler
from gpq.client import autostart, connection, daemon_control, quick
from gpq.errors import NotFound, Refused
from gpq.servers import config_file
from gpq.store.lock import start_time
from tests.cli.conftest import Gpq
from tests.support.users import ANA, BOB, acting_as, shared_place

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acting as two users needs root")

SUBMIT = ("submit", "--snapshot", "--hold", "--env", "HF_TOKEN=secret", "--", "true")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for everybody, such as /tmp or /scratch."""
    with shared_place() as path:
        yield path


@pytest.fixture
def ana(place: Path) -> Gpq:
    """With a home of her own, and the usual folders in it."""
    home = place / "ana"
    home.mkdir(0o755)
    (home / "train.py").write_text("pass\n")
    return Gpq(home, {"GPQ_HOME": "", "GPQ_CONFIG": ""})


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Bob made the folder and the socket first."""
    with acting_as(BOB), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path.parent.mkdir(0o755)
        listener.bind(str(path))
        path.chmod(0o777)
        listener.listen()
        os.seteuid(0)
        yield listener


def refused(said: subprocess.CompletedProcess[str], *words: str) -> None:
    assert said.returncode == 5, said
    error, hint = said.stderr.splitlines()
    assert error.startswith("gpq: ")
    assert hint.startswith("hint: ")
    for word in words:
        assert word in said.stderr


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o777])
def test_no_umask_of_the_first_command_opens_the_state_to_others(ana: Gpq, place: Path, umask: int) -> None:
    (place / "run").mkdir(0o700)
    gpq = Gpq(ana.home, {**ana.environ, "XDG_RUNTIME_DIR": str(place / "run")})
    before = os.umask(umask)
    try:
        said = gpq(*SUBMIT)
    finally:
        os.umask(before)
        gpq("daemon", "stop")
    assert said.returncode == 0, said.stderr
    folders = [path for path in (ana.home / ".local").rglob("*") if path.is_dir() and not path.is_symlink()]
    folders += [ana.home / ".local", place / "run" / "gpq"]
    assert {ana.home / ".local" / "state" / "gpq" / name for name in ("lib", "snapshots", "nodes")} <= set(folders)
    assert open_to_others(folders) == {}


def open_to_others(folders: Iterable[Path]) -> dict[str, str]:
    return {str(path): oct(path.stat().st_mode) for path in folders if stat.S_IMODE(path.stat().st_mode) != 0o700}


def test_a_verdict_and_the_configuration_are_in_folders_for_their_owner(
    ana: Gpq, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "GPQ_HOME", "GPQ_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(ana.home))
    before = os.umask(0)
    try:
        verdicts.keep(verdicts.place("train.py", []), {})
        config_file.write("interval = 5.0\n", "")
    finally:
        os.umask(before)
    folders = [path for path in ana.home.rglob("*") if path.is_dir()]
    assert {ana.home / ".config" / "gpq", ana.home / ".local" / "state" / "gpq" / "checks"} <= set(folders)
    assert open_to_others(folders) == {}


@pytest.mark.parametrize("argv", [("status",), SUBMIT, ("nodes",), ("daemon", "start")])
@pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "GPQ_HOME"])
def test_a_daemon_of_another_user_gets_no_request(
    ana: Gpq, place: Path, variable: str, argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = place / "gpq"
    value = {"XDG_RUNTIME_DIR": place, "GPQ_HOME": folder}[variable]
    gpq = Gpq(ana.home, {**ana.environ, variable: str(value)})
    with listening(folder / "gpq.sock") as bobs:
        if variable == "XDG_RUNTIME_DIR":
            refused(gpq(*argv), f"belongs to user {BOB.pw_uid}, not to you")
        for name, text in gpq.environment.items():
            monkeypatch.setenv(name, text)
        with acting_as(ANA):
            for ask in (lambda: quick.ask("info", {}), connection.connect, autostart.serves):
                with pytest.raises(Refused, match="not to you"):
                    ask()
        bobs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                with bobs.accept()[0] as heard:
                    assert heard.recv(1) == b""
    if variable == "XDG_RUNTIME_DIR":  # and with only the folder there
        (folder / "gpq.sock").unlink()
        refused(gpq("daemon", "start"), f"{folder} belongs to nobody")


def test_a_lock_file_of_another_user_names_no_process_to_end(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gpq daemon stop` ends the process that it names, if the daemon does not answer."""
    monkeypatch.setenv("GPQ_HOME", str(place))
    own = subprocess.Popen(["sleep", "600"])
    try:
        lock = place / "daemon.lock"
        lock.write_text(f'{{"pid": {own.pid}, "start_time": {start_time(own.pid)}}}')
        assert daemon_control.running() == (own.pid, start_time(own.pid))
        os.chown(lock, BOB.pw_uid, BOB.pw_gid)
        assert daemon_control.running() is None
        assert daemon_control.stop() is False
        assert own.poll() is None
    finally:
        own.kill()
        own.wait()


def test_a_daemon_of_another_user_is_named_and_not_taken_for_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = place / "gpq"
    home.mkdir(0o700)
    monkeypatch.setenv("GPQ_HOME", str(home))
    theirs = subprocess.Popen(["sleep", "600"])
    try:
        lock, log = home / "daemon.lock", home / "daemon.log"
        lock.write_text(f'{{"pid": {theirs.pid}, "start_time": {start_time(theirs.pid)}}}')
        log.write_text("a line\n")
        with acting_as(ANA):
            for ask in (daemon_control.running, daemon_control.stop, daemon_control.logs):
                with pytest.raises(Refused, match=r"cannot read .*: Permission denied"):
                    ask()
            assert checks.daemon().verdict == "fail"
        home.chmod(0o755)
        lock.chmod(0o644)
        child = os.fork()
        if child == 0:
            os.setresuid(ANA.pw_uid, ANA.pw_uid, ANA.pw_uid)  # may not send a signal, unlike an effective user
            try:
                daemon_control.stop()
            except Refused as error:
                os._exit(7 if f"(pid {theirs.pid}) belongs to another user" in error.message else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert theirs.poll() is None
    finally:
        theirs.kill()
        theirs.wait()


def test_a_report_does_not_write_through_what_is_already_there(place: Path) -> None:
    target = place / "ana.txt"
    target.write_text("mine")
    with acting_as(BOB):
        (place / "r.html.part").symlink_to(target)
    with output.replace_file("--html", str(place / "r.html")) as part:
        Path(part).write_text("page")
    assert (target.read_text(), (place / "r.html").read_text()) == ("mine", "page")
    assert sorted(path.name for path in place.iterdir()) == ["ana.txt", "r.html", "r.html.part"]


def test_a_queue_of_task_spooler_that_another_user_serves_is_not_imported(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place / "bob" / "socket-ts"
    monkeypatch.setenv("TS_SOCKET", str(path))
    monkeypatch.setattr(task_spooler, "_program", lambda: "tsp")
    with listening(path), pytest.raises(NotFound, match="belongs to another user"):
        task_spooler.queue()
