"""A hostile arbiter, or one that is broken: no answer of it ends a daemon, wedges it, or gives a job what it did not ask
for."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq import paths
from gpq.connectors.arbiter import ArbiterClient
from gpq.core.answers import fault
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.placement import place
from gpq.core.rounds.rounds import offer_of
from gpq.core.team.claims import statement
from gpq.core.team.grants import Grant, Grants, Holding, Term, flaw
from gpq.errors import DaemonUnreachable, GpqError, Refused
from gpq.policies.team import TeamPolicy
from gpq.rpc.team_messages import Hello, Take, Welcome
from tests.support.builders import black_box, job, node, on, running, snapshot, spec
from tests.support.waiting import state, wait_until

SNAPSHOT = snapshot(
    node("gpu1", 4), node("gpu2", 4), running(1, on("gpu1", 0, 1)), job(2, spec_=black_box(2)), job(3, spec_=spec(up_to=4)),
    now=5000.0,
)  # fmt: skip
NEWS = statement(SNAPSHOT, offer_of(SNAPSHOT)[0])
MIXED = replace(SNAPSHOT, nodes={**SNAPSHOT.nodes, NodeId("gpu2"): node("gpu2", 4, type="H100")})
PART = st.sampled_from([NodeId("gpu1"), NodeId("gpu2"), NodeId("gpu3"), NodeId("../gpu1")]).flatmap(
    lambda name: st.tuples(
        st.just(name),
        st.lists(st.integers(-1, 4).map(lambda index: DeviceId(f"{name}-{index}")), max_size=5).map(tuple),
    )
)
PARTS = st.lists(PART, max_size=3).map(tuple)
GRANTS = st.lists(st.builds(Grant, st.integers(-1, 5).map(JobId), PARTS), max_size=5).map(tuple)


def term(grants: tuple[Grant, ...]) -> Term:
    claims = {claim.job: claim for claim in NEWS.claims}
    return Term(SNAPSHOT.now, {grant.job: grant.parts for grant in grants}, claims)


@given(GRANTS, st.integers(-(1 << 70), 1 << 70))
def test_an_answer_is_believed_only_if_it_gives_own_jobs_what_they_asked_for(
    grants: tuple[Grant, ...], floor: int
) -> None:
    if flaw(Grants(1, 1, 1, grants, floor), NEWS):
        return
    allotments = TeamPolicy(lambda: term(grants)).allocate(SNAPSHOT)
    assert not fault(allotments, SNAPSHOT)
    placements = place(SNAPSHOT, allotments)
    by_job = {grant.job: grant.parts for grant in grants}
    assert all(where.parts == tuple(sorted(by_job[name])) for name, where in placements.items())
    assert len({place for where in placements.values() for place in where.devices}) == sum(
        where.replicas for where in placements.values()
    )


GOOD_ROW = Holding("ana", 1, 2, 3)


@pytest.mark.parametrize(
    "row",
    [
        *(GOOD_ROW._replace(**{name: number}) for name in ("gpus", "floor", "waiting") for number in (-1, 1 << 31)),
        *(GOOD_ROW._replace(member=name) for name in ("", "a b", "bob/42", "x" * 65)),
    ],
)
def test_a_daemon_believes_no_line_about_the_team_that_is_out_of_bounds(row: Holding) -> None:
    assert not flaw(Grants(1, 1, 1, gpus=8, holdings=(GOOD_ROW,) * 3), NEWS)
    assert flaw(Grants(1, 1, 1, gpus=8, holdings=(GOOD_ROW, row)), NEWS)
    assert flaw(Grants(1, 1, 1, gpus=8, holdings=(GOOD_ROW,) * 1001), NEWS)
    assert flaw(Grants(1, 1, 1, gpus=-8, holdings=(GOOD_ROW,)), NEWS)


@pytest.mark.parametrize("scene", [SNAPSHOT, MIXED], ids=["one type", "two types"])
@given(GRANTS)
def test_the_policy_answers_well_whatever_a_term_grants(scene: Snapshot, grants: tuple[Grant, ...]) -> None:
    allotments = TeamPolicy(lambda: term(grants)).allocate(scene)
    assert not fault(allotments, scene)
    place(scene, allotments)


def test_who_is_not_answered_keeps_what_they_hold_and_who_is_recalled_does_not() -> None:
    policy = TeamPolicy(lambda: term(()))
    assert place(SNAPSHOT, policy.allocate(SNAPSHOT)) == {}
    moved: Snapshot = snapshot(node("gpu1", 4), running(1, on("gpu1", 2, 3)), now=5000.0)
    assert place(moved, policy.allocate(moved)) == {JobId(1): on("gpu1", 2, 3)}


# -- over a real socket ----------------------------------------------------------------------------


def _result(**fields: object) -> bytes:
    return json.dumps({"v": 1, "program": "x", "ok": True, "result": fields}).encode() + b"\n"


GOOD = Grants(1, 1, 1)
LINES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"grant everything\n",
    "no object": b"[1, 2]\n",
    "a number": b"7\n",
    "deep": b"[" * 100_000 + b"\n",
    "deep result": b'{"v":1,"ok":true,"result":' + b"[" * 5000 + b"]" * 5000 + b"}\n",
    "too long": b'"' + b"x" * (2 << 20) + b'"\n',
    "NaN": b'{"v":1,"ok":true,"result":{"epoch":NaN}}\n',
    "huge": b'{"v":1,"ok":true,"result":{"epoch":1e400,"round":1,"seq":1}}\n',
    "a big epoch": _result(epoch=1 << 70, round=1, seq=1),
    "a text for a number": _result(epoch="1", round=1, seq=1),
    "true for a number": _result(epoch=True, round=1, seq=1),
    "null": _result(epoch=None, round=1, seq=1),
    "no fields": _result(),
    "a command": _result(epoch=1, round=1, seq=1, grants=[{"job": 1, "parts": [], "argv": ["sh"]}, 3]),
    "escapes": json.dumps({"v": 1, "ok": False, "code": 5, "error": "\x1b[2Jhacked", "hint": ""}).encode() + b"\n",
    "another version": b'{"v":99,"ok":true,"result":{}}\n',
    "half a line": b'{"v":1,"ok":true',
    "a surrogate": b'{"v":1,"ok":false,"error":"\\ud800","hint":"","code":5}\n',
    "bytes": bytes(range(256)) + b"\n",
}


@contextmanager
def arbiter(name: str, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Somebody of this user who listens where the arbiter of team `name` does."""
    folder = Path(paths.team_folders(name, os.getuid())[-1])
    folder.mkdir(mode=0o711)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / "sock"))
    listener.listen(8)

    def loop() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):  # it has heard enough
                serve(connection)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        (folder / "sock").unlink()
        folder.rmdir()


@pytest.mark.parametrize("words", LINES)
def test_a_wrong_answer_is_an_error_in_one_printable_line(words: str) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(LINES[words])

    with arbiter(f"t{os.getpid()}", serve):
        client = ArbiterClient(f"t{os.getpid()}", os.getuid())
        with pytest.raises(GpqError) as caught:
            client.call(Take(), Grants, 10.0)
        client.close()
    assert caught.value.message.isprintable()


def test_an_answer_that_drips_ends_in_time() -> None:
    hung_up = threading.Event()

    def serve(connection: socket.socket) -> None:
        try:
            while True:
                connection.sendall(b" ")
        except OSError:
            hung_up.set()

    with arbiter(f"t{os.getpid()}", serve):
        client = ArbiterClient(f"t{os.getpid()}", os.getuid())
        with pytest.raises(GpqError):
            client.call(Take(), Grants, 0.5)
        client.close()
        assert hung_up.wait(60)


def test_a_good_answer_is_understood_and_a_stranger_is_told_nothing() -> None:
    lines: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        lines.append(connection.recv(65536))
        connection.sendall(msgspec.json.encode({"v": 1, "program": "x", "ok": True, "result": GOOD}) + b"\n")

    name = f"t{os.getpid()}"
    with arbiter(name, serve):
        client = ArbiterClient(name, os.getuid())
        assert client.call(Take(), Grants, 10.0) == GOOD
        client.close()
        other = Path(paths.team_folders(name, os.getuid() + 1)[-1])
        other.symlink_to(paths.team_folders(name, os.getuid())[-1])
        try:
            with pytest.raises(Refused, match="listens where"):
                ArbiterClient(name, os.getuid() + 1)
        finally:
            other.unlink()
    assert len([line for line in lines if line]) == 1


def test_who_finds_the_queue_of_connections_full_waits_for_a_place() -> None:
    folder = Path(paths.team_folders(f"t{os.getpid()}", os.getuid())[-1])
    folder.mkdir(mode=0o711)
    with contextlib.ExitStack() as stack:
        stack.callback(folder.rmdir)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(str(folder / "sock"))
        stack.callback((folder / "sock").unlink)
        listener.listen(1)
        others: list[socket.socket] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                other = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                other.setblocking(False)
                other.connect(str(folder / "sock"))
                others.append(other)
        threads: list[int] = []
        with ThreadPoolExecutor(1, initializer=lambda: threads.append(threading.get_native_id())) as pool:
            client = pool.submit(ArbiterClient, f"t{os.getpid()}", os.getuid())
            wait_until(lambda: threads and state(Path(f"/proc/self/task/{threads[0]}/stat")) == "S", "it waits")
            assert not client.done()
            for _ in range(len(others) + 1):
                stack.enter_context(listener.accept()[0])
            client.result(60).close()


def test_nobody_listens() -> None:
    with pytest.raises(DaemonUnreachable, match="does not answer"):
        ArbiterClient("nobody-has-this", os.getuid()).call(Hello(team="x"), Welcome, 1.0)
