"""The daemon's socket: whom it lets in, hostile bytes, and crowds."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpq.rpc.daemon_answers import DaemonInfo
from gpq.rpc.job_answers import CancelResult
from gpq.rpc.protocol import MAX_LINE
from gpq.rpc.requests import Cancel, Info
from tests.daemon.daemons import Daemon, daemon


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for everything that it has to survive."""
    with daemon(tmp_path_factory.mktemp("socket") / "home") as running:
        yield running


def test_only_their_owner_can_use_state_and_socket(served: Daemon) -> None:
    assert os.stat(served.home).st_mode & 0o777 == 0o700
    for name in ("gpq.sock", "gpq.db", "daemon.lock", "daemon.log"):
        assert os.stat(served.home / name).st_mode & 0o077 == 0, name


def answer_to(served: Daemon, line: bytes) -> dict[str, object]:
    with served.raw() as connection:
        connection.sendall(line)
        answer: dict[str, object] = json.loads(connection.makefile("rb").readline())
        return answer


def test_another_version_gets_a_hint(served: Daemon) -> None:
    answer = answer_to(served, b'{"v":99,"op":"info"}\n')
    assert (answer["ok"], answer["code"]) == (False, 3)
    assert "gpq daemon stop" in str(answer["hint"])


def test_a_claimed_user_is_not_trusted(served: Daemon) -> None:
    before = served.info().jobs_total
    spec = {"argv": ["true"], "cwd": "/tmp", "level": "black-box", "user": "somebody", "uid": 4242}
    answer = answer_to(served, json.dumps({"v": 1, "op": "submit", "spec": spec}).encode() + b"\n")
    assert answer["code"] == 2
    assert served.info().jobs_total == before


@pytest.mark.skipif(os.getuid() != 0, reason="acting as another user needs root")
def test_another_user_gets_no_access(served: Daemon) -> None:
    for folder in (served.home, *list(served.home.parents)[:-2]):
        os.chmod(folder, 0o755)
    os.chmod(served.socket, 0o666)
    speak = (
        "import os, socket, sys; os.setgid(54321); os.setuid(54321); s = socket.socket(socket.AF_UNIX);"
        's.connect(sys.argv[1]); s.sendall(b\'{"v":1,"op":"info"}\\n\'); print(s.makefile().readline())'
    )
    said = subprocess.run([sys.executable, "-c", speak, served.socket], capture_output=True, text=True, check=False)
    os.chmod(served.home, 0o700)
    os.chmod(served.socket, 0o600)
    assert '"ok":false' in said.stdout
    assert "another user" in said.stdout


HOSTILE = [
    b"\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"[]\n",
    b"null\n",
    b'{"v":1}\n',
    b'{"v":1,"op":"nothing"}\n',
    b'{"v":1,"op":["info"]}\n',
    b'{"v":1,"op":"info","extra":1}\n',
    b'{"v":1,"op":"status","recent":"many"}\n',
    b'{"v":1,"op":"wait","jobs":["1"],"wait":1e999}\n',
    b'{"v":1,"op":"wait","jobs":["1"],"wait":-5}\n',
    b'{"v":1,"op":"show","job":"\xff\xfe"}\n',
    b'{"v":1,"op":"show","job":"\\ud800"}\n',
    b'{"v":1,"op":"show","job":"' + b"9" * 5000 + b'"}\n',
    b'{"v":1,"op":"status","jobs":["1-999999999999"]}\n',
    b'{"v":' + b"[" * 100_000 + b"\n",
    b"\0" * 1000 + b"\n",
]


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_line_gets_an_error_and_the_next_one_an_answer(served: Daemon, line: bytes) -> None:
    with served.raw() as connection:
        connection.sendall(line)
        reader = connection.makefile("rb")
        answer = json.loads(reader.readline())
        assert not answer["ok"]
        assert answer["code"] in (2, 3, 4)
        for _ in range(line.count(b"\n") - 1):
            assert not json.loads(reader.readline())["ok"]
        connection.sendall(b'{"v":1,"op":"info"}\n')
        assert json.loads(reader.readline())["ok"]


def test_a_line_without_end_is_cut_off(served: Daemon) -> None:
    with served.raw() as connection:
        piece = b"x" * 65536
        try:
            for _ in range(MAX_LINE // len(piece) + 64):
                connection.sendall(piece)
        except OSError:
            pass  # it hung up while we were still writing
    assert served.info().pid


def test_random_bytes_never_stop_it(served: Daemon) -> None:
    dice = random.Random(5)
    sound = b'{"v":1,"op":"submit","spec":{"argv":["true"],"cwd":"/tmp","level":"black-box"},"dry_run":true}\n'
    for _ in range(500):
        line = bytearray(sound)
        for _ in range(dice.randrange(1, 8)):
            line[dice.randrange(len(line) - 1)] = dice.randrange(256)
        with served.raw() as connection:
            connection.sendall(bytes(line))
            if dice.random() < 0.5:
                connection.recv(1)
    assert served.info().pid == served.process.pid  # type: ignore[union-attr]


def test_connections_beyond_the_limit_wait_and_are_served_in_turn(served: Daemon) -> None:
    idle = [served.raw() for _ in range(64)]
    try:
        with served.raw() as late:
            late.sendall(b'{"v":1,"op":"info"}\n')
            late.settimeout(0.5)
            with pytest.raises(TimeoutError):
                late.recv(1)
            idle.pop().close()
            late.settimeout(60)
            assert json.loads(late.makefile("rb").readline())["ok"]
    finally:
        for connection in idle:
            connection.close()


def test_two_hundred_clients_at_once_are_all_answered(served: Daemon) -> None:
    def ask(_: int) -> int:
        return served.call(Info(), DaemonInfo).pid

    with ThreadPoolExecutor(100) as pool:
        assert set(pool.map(ask, range(200))) == {served.info().pid}


def test_long_waits_give_way_to_waiting_connections(served: Daemon) -> None:
    job = served.submit("sleep", "600")
    line = json.dumps({"v": 1, "op": "wait", "jobs": [str(job)], "wait": 500}).encode() + b"\n"
    waiting = [served.raw() for _ in range(64)]
    try:
        for connection in waiting:
            connection.sendall(line)
        with served.raw() as late, ThreadPoolExecutor(64) as pool:
            late.sendall(b'{"v":1,"op":"info"}\n')
            for answer in pool.map(lambda connection: json.loads(connection.makefile("rb").readline()), waiting):
                assert answer["result"]["jobs"][0]["state"] in ("pending", "starting", "running")
            waiting.pop().close()
            assert json.loads(late.makefile("rb").readline())["ok"]
    finally:
        for connection in waiting:
            connection.close()
    served.call(Cancel([str(job)]), CancelResult)


def test_without_descriptors_it_waits_for_some_and_keeps_serving(tmp_path: Path) -> None:
    with daemon(tmp_path / "home") as running:
        pid = running.info().pid
        running.wait_for_nodes()
        used = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 8, used + 8))
        crowd = [running.raw() for _ in range(40)]
        with running.raw() as late:
            late.sendall(b'{"v":1,"op":"info"}\n')
            for connection in crowd:
                connection.close()
            assert json.loads(late.makefile("rb").readline())["ok"]
        assert running.info().pid == pid


def test_a_client_that_leaves_during_a_wait_harms_nobody(served: Daemon) -> None:
    job = served.submit("sleep", "600")
    for _ in range(80):
        with served.raw() as connection:
            connection.sendall(json.dumps({"v": 1, "op": "wait", "jobs": [str(job)], "wait": 2}).encode() + b"\n")
    assert served.info().jobs_live >= 1
    served.call(Cancel([str(job)]), CancelResult)
