"""Doors of a server that several users may speak to: whom it lets in, and that nobody holds up the others."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpq.daemon.server import WORK_COUNTS, Door, Server
from gpq.errors import Refused
from gpq.ports import Peer
from gpq.rpc import codec
from gpq.rpc.team_codec import decode_team_request
from gpq.rpc.team_messages import Hello, Receipt, TeamRequest, Welcome
from tests.support.users import ANA, BOB, acting_as, shared_place
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acting as two users needs root")
MEMBERS = {ANA.pw_uid, BOB.pw_uid}
LIMITED = {"per_user": 4, "looks": 0, "parked": 0, "everybody": True, "lingers": False}
Open = Callable[..., Path]


def welcome(request: TeamRequest, peer: Peer) -> msgspec.Struct:
    """Tells who asks."""
    assert isinstance(request, Hello)
    return Welcome(1, peer.user, False)


@pytest.fixture
def door() -> Iterator[Open]:
    """Opens a server in a folder where everybody may write, as root, for two members. Returns its socket."""
    servers: list[Server] = []
    with shared_place() as place:

        def start(admits: Callable[[int], bool] = MEMBERS.__contains__, **limits: object) -> Path:
            path = place / "team" / "sock"
            fields = {**LIMITED, "refusal": Refused("you are not in this team", "ask ana"), **limits}
            servers.append(
                Server(str(path), welcome, door=Door(admits=admits, decode=decode_team_request, **fields))  # type: ignore[arg-type]
            )
            servers[-1].start()
            return path

        yield start
        for server in servers:
            server.close()


def connection(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))  # waits for a place in the queue of the kernel
    client.settimeout(PATIENCE)
    return client


def answer(client: socket.socket) -> str:
    """What the server calls the user of this connection."""
    client.sendall(codec.encode_request(Hello(team="lab")))
    return codec.decode_answer(client.recv(1 << 16), Welcome).member


def test_members_are_known_by_their_uid_and_others_are_hung_up(door: Open) -> None:
    path = door()
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o711
    for member in (ANA, BOB):
        with acting_as(member), connection(path) as client:
            assert answer(client) == member.pw_name
            with pytest.raises(PermissionError):
                path.with_name("other").touch()
    with connection(path) as root:
        with pytest.raises(Refused, match="you are not in this team"):
            codec.decode_answer(root.recv(1 << 16), Receipt)
        assert root.recv(1) == b""


def test_a_connection_too_many_is_refused_while_other_members_are_served(door: Open) -> None:
    path = door()
    with contextlib.ExitStack() as stack:
        with acting_as(BOB):
            drips = [stack.enter_context(connection(path)) for _ in range(LIMITED["per_user"])]
            for client in drips:
                client.sendall(b'{"v":')  # the rest comes slowly
            with connection(path) as late, pytest.raises(Refused, match="too many"):
                codec.decode_answer(late.recv(1 << 16), Receipt)
        with acting_as(ANA), connection(path) as client:
            assert answer(client) == ANA.pw_name
        drips[0].sendall(b'1,"op":"hello","team":"lab"}\n')
        assert codec.decode_answer(drips[0].recv(1 << 16), Welcome).member == BOB.pw_name


def test_a_crowd_that_is_refused_and_stays_does_not_hold_up_a_member(door: Open) -> None:
    crowd = 2000
    path = door(admits=lambda uid: uid == ANA.pw_uid)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, crowd + 500), hard), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with acting_as(BOB):
            strangers = [stack.enter_context(connection(path)) for _ in range(crowd)]
        with acting_as(ANA), connection(path) as client:
            assert answer(client) == ANA.pw_name
        for client in strangers:
            with pytest.raises(Refused):
                codec.decode_answer(client.recv(1 << 16), Receipt)


def test_messages_beyond_the_rate_of_a_user_wait_and_those_of_others_do_not(door: Open) -> None:
    now, pauses, resumed = [100.0], list[float](), threading.Event()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        assert resumed.wait(PATIENCE)

    path = door(per_second=2.0, clock=lambda: now[0], work=lambda: 0.0, pause=pause)
    with contextlib.ExitStack() as stack:
        with acting_as(BOB):
            first, second = (stack.enter_context(connection(path)) for _ in range(2))
        with acting_as(ANA):
            other = stack.enter_context(connection(path))
        assert [answer(first) for _ in range(2)] == [BOB.pw_name] * 2
        first.sendall(codec.encode_request(Hello(team="lab")))
        assert answer(other) == ANA.pw_name
        resumed.set()
        assert codec.decode_answer(first.recv(1 << 16), Welcome).member == BOB.pw_name
        assert answer(second) == BOB.pw_name  # the bucket is the user's, not the connection's
        assert pauses == [0.5, 1.0]
        now[0] += 100.0  # it holds the messages of a second, however long it was not used
        assert [answer(first) for _ in range(3)] == [BOB.pw_name] * 3
        assert pauses == [0.5, 1.0, 0.5]


def test_a_user_waits_after_a_message_that_cost_much_and_others_do_not(door: Open) -> None:
    pauses: list[float] = []
    work = itertools.count(0.0, 0.5)  # half a second for each message
    path = door(per_second=2.0, clock=lambda: 100.0, work=lambda: next(work), pause=pauses.append)
    with contextlib.ExitStack() as stack:
        with acting_as(BOB):
            first = stack.enter_context(connection(path))
        with acting_as(ANA):
            other = stack.enter_context(connection(path))
        assert [answer(first) for _ in range(2)] == [BOB.pw_name] * 2
        assert answer(other) == ANA.pw_name
        assert pauses == [2 * 0.5 + 0.5 * WORK_COUNTS - 1.0]


def plant_folder(path: Path) -> None:
    path.mkdir()
    os.chown(path, BOB.pw_uid, BOB.pw_gid)


def plant_link(path: Path) -> None:
    path.symlink_to("/etc")
    os.chown(path, BOB.pw_uid, BOB.pw_gid, follow_symlinks=False)


@pytest.mark.parametrize("plant", [plant_folder, plant_link, Path.touch])
def test_a_place_that_somebody_else_took_is_refused_and_stays_as_it_is(plant: Callable[[Path], None]) -> None:
    with shared_place() as place:
        plant(place / "team")
        before = os.lstat(place / "team")
        with pytest.raises(Refused):
            Server(str(place / "team" / "sock"), welcome, door=Door(everybody=True))
        after = os.lstat(place / "team")
        assert (after.st_mode, after.st_uid, after.st_ctime_ns) == (before.st_mode, before.st_uid, before.st_ctime_ns)
