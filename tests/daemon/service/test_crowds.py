"""Order of service when more clients connect than the daemon can serve at once. They take turns, but a client that only
looks at the queue goes first."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import msgspec
import pytest

from gpq.client.connection import Connection
from gpq.daemon import server
from gpq.daemon.server import MAX_PER_USER, Server
from gpq.ports import Peer
from gpq.rpc import codec
from gpq.rpc.daemon_answers import Words
from gpq.rpc.job_answers import JobList
from gpq.rpc.requests import Complete, Hold, Request, Select, Status
from tests.support.waiting import PATIENCE, wait_until


class Desk:
    """Answers looks at once, and changes after `opened`."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.waiting = 0
        self._lock = threading.Lock()

    def handle(self, request: Request, peer: Peer) -> msgspec.Struct:
        if isinstance(request, Complete):
            return Words([])
        if not isinstance(request, Status | Select):
            with self._lock:
                self.waiting += 1
            assert self.opened.wait(PATIENCE)
        return JobList([], total=self.waiting)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def path(desk: Desk) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="gpq-") as folder:
        server = Server(str(Path(folder) / "sock"), desk.handle)
        server.start()
        try:
            yield str(Path(folder) / "sock")
        finally:
            desk.opened.set()
            server.close()


def test_a_look_at_the_queue_does_not_wait_for_its_turn_but_all_others_do(desk: Desk, path: str) -> None:
    more = 20
    with ExitStack() as opened:
        crowd = [opened.enter_context(closing(Connection(path))) for _ in range(MAX_PER_USER + more)]
        for one in crowd:
            one._socket.sendall(codec.encode_request(Hold(["1"])))
        wait_until(lambda: desk.waiting == MAX_PER_USER, "the daemon serves as many as allowed")

        def look(
            request: Request,
        ) -> bool:  # a look whose line has not arrived when it is admitted waits like the others
            with Connection(path) as one:
                one._socket.settimeout(2.0)
                one._socket.sendall(codec.encode_request(request))
                try:
                    return bool(one._socket.recv(1 << 16))
                except TimeoutError:
                    return False

        for request in [Status(), Select(["1"])] * 3:
            wait_until(partial(look, request), "a look is answered")
        threading.Event().wait(0.5)  # time for others to take the places of the looks
        assert desk.waiting == MAX_PER_USER
        desk.opened.set()
        for one in crowd:
            with one:  # its end frees a place for the next one
                assert codec.decode_answer(one._read_line(), JobList).total >= MAX_PER_USER
    assert desk.waiting == MAX_PER_USER + more


def test_a_complete_request_is_served_even_if_late_but_an_endless_one_is_not(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LINE_SECONDS", 0.0)  # so each request is late after its first piece
    whole = codec.encode_request(Complete("jobs", "x" * 100_000))
    with tempfile.TemporaryDirectory(prefix="gpq-") as folder:
        path = str(Path(folder) / "sock")
        served = Server(path, desk.handle)
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(PATIENCE)
                client.connect(path)
                client.sendall(whole)
                served.start()
                assert codec.decode_answer(client.recv(1 << 16), Words) == Words([])
                client.sendall(whole[:100])
                assert client.recv(1 << 16) == b""
        finally:
            served.close()
