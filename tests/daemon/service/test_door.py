"""Doors of a server that several users may speak to: whom it lets in, and that nobody holds up the others."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pwd
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
from tests.support.users import ANA, BOB, acting_as, shared_place, without_acls
from tests.support.waiting import PATIENCE, wait_until

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


# -- sockets of users ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reserving(path: Path, uids: set[int], admits: Callable[[int], bool] = MEMBERS.__contains__) -> Iterator[Server]:
    """A server that has not started."""
    door = Door(admits, decode=decode_team_request, everybody=True, lingers=False)
    server = Server(str(path), welcome, door=door)
    try:
        server.reserve(uids)
        yield server
    finally:
        server.close()


@pytest.fixture
def path() -> Iterator[Path]:
    with shared_place() as place:
        yield place / "team" / "sock"


def own(path: Path, user: pwd.struct_passwd) -> Path:
    return path.with_name(f"{path.name}.{user.pw_uid}")


def filled(path: Path, stack: contextlib.ExitStack) -> int:
    """Connect until the kernel has no place for another connection. Returns how many it has."""
    for count in itertools.count():
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        client.setblocking(False)
        if client.connect_ex(str(path)):
            return count
    raise AssertionError


def test_who_fills_all_queues_that_they_may_open_is_served_in_turns_with_others(path: Path) -> None:
    turns: list[int] = []

    def admits(uid: int) -> bool:
        turns.append(uid)
        return False

    with reserving(path, MEMBERS, admits) as server, contextlib.ExitStack() as stack:
        with acting_as(BOB):
            count = filled(path, stack) + filled(own(path, BOB), stack)
        with acting_as(ANA):
            waiting = [stack.enter_context(connection(own(path, ANA))) for _ in range(3)]
        server.start()
        assert [client.recv(1) for client in waiting] == [b"{"] * 3
        wait_until(lambda: len(turns) == count + 3, "all had their turn")
    assert count > 1000
    assert [at for at, uid in enumerate(turns) if uid == ANA.pw_uid][-1] < 9, "in the third turn of three sockets"


def test_the_kernel_opens_the_socket_of_a_member_to_nobody_else(path: Path) -> None:
    with reserving(path, MEMBERS) as server:
        for uids in (MEMBERS, {ANA.pw_uid}, MEMBERS):
            server.reserve(uids)
            for user, sender in itertools.product((ANA, BOB), repeat=2):
                expected = 0 if user == sender else errno.EACCES
                if user.pw_uid not in uids:
                    expected = errno.ENOENT
                with acting_as(sender), socket.socket(socket.AF_UNIX) as client:
                    assert client.connect_ex(str(own(path, user))) == expected


def test_what_waits_at_a_socket_that_goes_hears_so_and_the_others_go_on(path: Path) -> None:
    with reserving(path, MEMBERS) as server:
        with acting_as(BOB):
            waiting = connection(own(path, BOB))
        server.reserve({ANA.pw_uid})
        server.start()
        with waiting, pytest.raises(ConnectionResetError):
            waiting.recv(1)
        for user, place in ((ANA, own(path, ANA)), (BOB, path)):
            with acting_as(user), connection(place) as client:
                assert answer(client) == user.pw_name
        server.reserve(MEMBERS)  # while it serves
        with acting_as(BOB), connection(own(path, BOB)) as client:
            assert answer(client) == BOB.pw_name


def test_sockets_of_a_killed_process_are_made_again_or_go(path: Path) -> None:
    path.parent.mkdir(mode=0o711)
    for place in (path, own(path, ANA), own(path, BOB)):
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(place))
    with reserving(path, {ANA.pw_uid}):
        assert set(path.parent.iterdir()) == {path, own(path, ANA)}
        with acting_as(ANA):
            connection(own(path, ANA)).close()
    assert list(path.parent.iterdir()) == []


def test_without_acls_there_is_the_common_socket_and_the_log_says_why(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with without_acls(path.parent), reserving(path, {BOB.pw_uid}) as server:
        assert list(path.parent.iterdir()) == [path]
        assert f"cannot listen on {own(path, BOB)}: " in caplog.text
        assert os.strerror(errno.EOPNOTSUPP) in caplog.text
        server.start()
        with acting_as(BOB), connection(path) as client:
            assert answer(client) == BOB.pw_name


# -- the folder ---------------------------------------------------------------------------------------------------------


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
