"""The Unix socket: who may speak, how much, how long. It only turns lines into requests and results
into lines.

A `Door` says who may connect, by the uid that the kernel reports (SO_PEERCRED). If it says nothing,
these are the daemon's own user and root. A user's connections beyond `Door.per_user` wait for their
turn. Users with a socket of their own (`reserve`) do not wait behind the connections of others.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import pwd
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpq.errors import GpqError, Refused, UsageError
from gpq.folders import make_passable, make_private
from gpq.pace import deadline, left
from gpq.ports import Peer
from gpq.rpc import codec
from gpq.rpc.protocol import MAX_LINE

MAX_PER_USER = 64  # connections served at once. Each is a thread, so more cost more than they gain
# beyond those, for commands that only look and wait for no commit. They need no turn
MAX_LOOKS = 16
MAX_PARKED = 512  # connections that wait for their turn. More are refused
LOOKS = (b"status", b"select", b"complete")
IDLE_SECONDS = 300.0  # between two requests
LINE_SECONDS = 10.0  # from a request's first byte to its last
SEND_SECONDS = 30.0  # a reader that takes no answer for this long is disconnected
WORK_COUNTS = 5.0  # of a user with a rate, whose requests so get a fifth of a core at most
LAST_WORDS_SECONDS = 2.0  # at the end of the daemon
MAX_SOCKET_PATH = 107  # bytes, sockaddr_un
# entries of Linux' posix_acl_xattr.h: tag, rights, no id
OWNER, GROUP, MASK, OTHERS = ((*entry, 0xFFFFFFFF) for entry in ((1, 6), (4, 0), (16, 6), (32, 0)))
log = logging.getLogger(__name__)


Handler = Callable[[Any, Peer], object]  # the request is what `Door.decode` returns
Turn = tuple[socket.socket, int, int]  # a connection, its user, its process


REFUSAL = Refused("this daemon serves another user", "run gpq with your own GPQ_HOME")


def is_own(uid: int) -> bool:
    return uid in (os.getuid(), 0)


@dataclass(frozen=True)
class Door:
    """Who may speak to a server, how much, and in which messages. The defaults are those of one
    user's daemon."""

    admits: Callable[[int], bool] = is_own  # by uid, in the thread that accepts
    refusal: GpqError = REFUSAL  # for all others
    per_user: int = MAX_PER_USER
    looks: int = MAX_LOOKS
    parked: int = MAX_PARKED
    # messages of a user that cost little. More wait, also after one that cost much. 0: no limit
    per_second: float = 0.0
    everybody: bool = False  # every user may open the socket, and `admits` alone decides
    longest_line: int = MAX_LINE  # bytes
    # False: a refused connection is closed at once and not logged, however many come
    lingers: bool = True
    decode: Callable[[bytes], Any] = codec.decode_request  # raises GpqError
    clock: Callable[[], float] = time.monotonic
    work: Callable[[], float] = time.thread_time  # of this thread, in seconds of a core
    pause: Callable[[float], None] = time.sleep


OWN_DOOR = Door()


class Rate:
    """A bucket of messages for each user. It holds those of one second."""

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._full_at: dict[int, float] = {}  # by user, when the bucket is full again

    def take(self, uid: int) -> float:
        """Count a message. Returns the seconds until it may be answered."""
        if not self._per_second:
            return 0.0
        with self._lock:
            now = self._clock()
            full_at = max(self._full_at.get(uid, now), now) + 1 / self._per_second
            self._full_at[uid] = full_at
        return max(full_at - now - 1.0, 0.0)

    def charge(self, uid: int, seconds: float) -> None:
        """Count the work that a message of this user was, in seconds of a core."""
        if self._per_second:
            with self._lock:
                full_at = max(self._full_at.get(uid, 0.0), self._clock())
                self._full_at[uid] = full_at + WORK_COUNTS * seconds


class Server:
    """Serves `handle` on `path` from `start` to `close`. `handle` raises GpqError for the user to
    read. `signpost` is a link to the socket, if the socket has another path."""

    def __init__(
        self, path: str, handle: Handler, signpost: str = "", door: Door = OWN_DOOR
    ) -> None:
        self._handle = handle
        self._door = door
        self._rate = Rate(door.per_second, door.clock)
        self._lock = threading.Lock()
        self._departures = threading.Condition(self._lock)
        self._open: dict[socket.socket, int] = {}  # served now, with their user
        self._parked: dict[int, deque[tuple[socket.socket, int]]] = {}
        self._closing = False
        self._listener = Listener(path, signpost, everybody=door.everybody)
        self.reserve = self._listener.reserve
        self._thread = threading.Thread(target=self._accept, name="accept", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Accept nothing more, remove the socket, let current answers go out for a moment, and hang
        up."""
        with self._lock:
            first = not self._closing
            self._closing = True
            parked_connections = [
                connection for queue in self._parked.values() for connection, _ in queue
            ]
            self._parked.clear()
        if not first:
            return
        self._listener.leave()
        _shut_down(parked_connections, socket.SHUT_RDWR)
        if self._thread.is_alive():  # it looks at the sockets until it has seen their end
            self._thread.join(LAST_WORDS_SECONDS)
        self._listener.close()
        with self._departures:
            _shut_down(self._open, socket.SHUT_RD)
            self._departures.wait_for(lambda: not self._open, timeout=LAST_WORDS_SECONDS)
            _shut_down(self._open, socket.SHUT_RDWR)

    # -- connections -------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError as error:
                if self._closing:
                    return
                # no descriptor left: open connections continue and will free some
                log.warning("accept: %s", error)
                threading.Event().wait(0.1)
                continue
            credentials = connection.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII")
            )
            pid, uid, _ = struct.unpack("iII", credentials)
            if not self._door.admits(uid):
                if self._door.lingers:
                    log.warning("refused uid %d (pid %d)", uid, pid)
                _hang_up(connection, self._door.refusal, lingers=self._door.lingers)
                continue
            self._admit(connection, uid, pid)

    def _admit(self, connection: socket.socket, uid: int, pid: int) -> None:
        with self._lock:
            if self._closing:
                connection.close()
                return
            has_place = self._open_count(uid) < self._most_served(connection)
            if has_place:
                self._open[connection] = uid
            else:
                queue = self._parked.setdefault(uid, deque())
                if len(queue) < self._door.parked:
                    queue.append((connection, pid))
                    return
        if has_place:
            self._spawn(connection, uid, pid)
            return
        problem = Refused("too many commands wait for the daemon", "end some, or try again later")
        _hang_up(connection, problem, lingers=self._door.lingers)

    def _spawn(self, connection: socket.socket, uid: int, pid: int) -> None:
        try:
            threading.Thread(
                target=self._serve, args=(connection, uid, pid), name="client", daemon=True
            ).start()
        except RuntimeError:  # no thread available
            log.warning("cannot start a thread for another connection")
            problem = Refused("the daemon is overloaded", "try again later")
            _hang_up(connection, problem, lingers=self._door.lingers)
            next_turn = self._leave(connection, uid)
            if next_turn is not None:
                self._spawn(*next_turn)

    def _most_served(self, connection: socket.socket) -> int:
        """The most connections of a user that are served if this is one of them. More if its first
        request only looks, as far as it has arrived by now. Takes nothing out of the socket."""
        begin = b""
        with contextlib.suppress(OSError):
            begin = connection.recv(64, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        if any(b'"op":"%s"' % look in begin for look in LOOKS):
            return self._door.per_user + self._door.looks
        return self._door.per_user

    def _open_count(self, uid: int) -> int:
        return list(self._open.values()).count(uid)

    def _serve(self, connection: socket.socket, uid: int, pid: int) -> None:
        """This one, and then those that wait for their turn. In a crowd, a thread for each would
        cost more than the work."""
        turn: Turn | None = (connection, uid, pid)
        while turn is not None:
            connection, _, pid = turn
            name, path = user_name(uid), connection.getsockname()
            peer = Peer(uid, pid, name, lambda: self._closing or bool(self._parked.get(uid)), path)
            try:
                with connection:
                    self._converse(connection, peer)
            except OSError:
                pass  # it hung up, or was too slow
            except Exception:
                log.exception("a connection of uid %d failed", uid)
            turn = self._leave(connection, uid)

    def _leave(self, connection: socket.socket, uid: int) -> Turn | None:
        """A connection has ended: whose turn is it? The place of a look beyond `per_user` goes to
        nobody. Otherwise waiting connections would take all places of looks."""
        with self._lock:
            self._open.pop(connection, None)
            self._departures.notify_all()
            queue = self._parked.get(uid)
            if not queue or self._closing:
                self._parked.pop(uid, None)
                return None
            if self._open_count(uid) >= self._door.per_user:
                return None
            next_connection, pid = queue.popleft()
            self._open[next_connection] = uid
            return next_connection, uid, pid

    def _converse(self, connection: socket.socket, peer: Peer) -> None:
        surplus = b""
        while not self._closing:
            line, surplus = _read_line(connection, surplus, self._door.longest_line)
            if line is None:
                return
            seconds = self._rate.take(peer.uid)
            if seconds:
                self._door.pause(seconds)
            connection.settimeout(SEND_SECONDS)
            begin = self._door.work()
            try:
                for piece in self._answer(line, peer):
                    connection.sendall(piece)
            finally:
                self._rate.charge(peer.uid, self._door.work() - begin)
            if len(line) > self._door.longest_line:
                return  # where the next line would begin is not known

    def _answer(self, line: bytes, peer: Peer) -> Iterable[bytes]:
        try:
            most = self._door.longest_line
            if len(line) > most:
                raise UsageError(f"the request is longer than {most} bytes", "make it shorter")
            result = self._handle(self._door.decode(line), peer)
            if isinstance(result, codec.Stream):  # an error in the middle of it ends the connection
                return codec.encode_pieces(result)
            return [codec.encode_result(result)]
        except GpqError as error:
            return [codec.encode_error(error)]
        except Exception as error:
            log.exception("a request of uid %d (pid %d) failed", peer.uid, peer.pid)
            problem = GpqError(
                f"this request failed in the daemon: {error!r:.200}",
                "this is a bug in gpq: see `gpq daemon logs`",
            )
            return [codec.encode_error(problem)]


def _read_line(
    connection: socket.socket, surplus: bytes, longest: int
) -> tuple[bytes | None, bytes]:
    """(line, what follows it). (None, b"") at the end. A line that never ends is returned when it
    has more than `longest` bytes."""
    buffer = bytearray(surplus)
    until = deadline(LINE_SECONDS if surplus else IDLE_SECONDS)
    scan_start = 0
    while True:
        end = buffer.find(b"\n", scan_start)
        if end >= 0:
            return bytes(buffer[:end]), bytes(buffer[end + 1 :])
        if len(buffer) > longest:
            return bytes(buffer), b""
        scan_start = len(buffer)
        # Even if it is late, what is in the socket still counts: this process may have been
        # stopped.
        connection.settimeout(left(until))
        piece = connection.recv(65536)
        if not piece:
            return None, b""
        if not buffer:
            until = deadline(LINE_SECONDS)
        buffer += piece


def _shut_down(connections: Iterable[socket.socket], how: int) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(how)


def _hang_up(connection: socket.socket, error: GpqError, *, lingers: bool) -> None:
    """Say why, and leave. `lingers`: what the other end still writes is read for a moment, because
    otherwise it may meet our end before our answer."""
    with connection, contextlib.suppress(OSError):
        if not lingers:
            connection.send(codec.encode_error(error), socket.MSG_DONTWAIT)
            return
        connection.settimeout(0.2)
        connection.sendall(codec.encode_error(error))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(65536)


@lru_cache(maxsize=64)
def user_name(uid: int) -> str:
    """The name of a user, or the number if it has no name. As it was when first asked for."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Listener:
    """Listens on `path` from now on, until `leave` and `close`. `signpost` is a link to the socket,
    if the socket has another path. `everybody`: every user may open it."""

    def __init__(self, path: str, signpost: str = "", *, everybody: bool = False) -> None:
        self._path = path
        self._everybody = everybody
        self._signpost = signpost if signpost != path else ""
        self._selector = selectors.DefaultSelector()
        self._ready: list[socket.socket] = []  # whose turn comes before the next look at all
        self._sockets = {path: self._bind()}
        self._selector.register(self._sockets[path], selectors.EVENT_READ)
        self._inode = os.stat(path).st_ino
        if self._signpost:
            temporary_link = f"{self._signpost}.{os.getpid()}"
            with contextlib.suppress(OSError):
                # a file system without links: then jobs do not find the socket
                os.symlink(path, temporary_link)
                os.replace(temporary_link, self._signpost)

    def accept(self) -> socket.socket:
        """The next connection. Sockets take turns. Raises OSError, also for one closed since."""
        while not self._ready:
            self._ready = [key.fileobj for key, _ in self._selector.select()]  # type: ignore[misc]
        return self._ready.pop().accept()[0]

    def reserve(self, uids: Set[int]) -> None:
        """From now on each of these users has a socket `PATH.UID` for them alone, and nobody else
        has. Who has none because of a problem, which the log names, has the common one."""
        uid_by_path = {self._path: -1, **{f"{self._path}.{uid}": uid for uid in uids}}
        for path in self._sockets.keys() - uid_by_path.keys():
            self._selector.unregister(self._sockets[path])
            self._sockets.pop(path).close()
        for path in uid_by_path.keys() - self._sockets.keys():
            try:
                self._sockets[path] = _listen(path, 0o600, uid_by_path[path])
                self._selector.register(self._sockets[path], selectors.EVENT_READ)
            except OSError as error:  # noqa: PERF203
                log.warning("cannot listen on %s: %s", path, error)
        for path in set(glob.glob(f"{glob.escape(self._path)}.*")) - self._sockets.keys():
            os.unlink(path)

    def leave(self) -> None:
        """Remove the sockets, and accept nothing more."""
        with contextlib.suppress(OSError):
            if os.stat(self._path).st_ino == self._inode:  # not a successor's
                for path in self._sockets:
                    os.unlink(path)
                if self._signpost and os.readlink(self._signpost) == self._path:
                    os.unlink(self._signpost)
        with contextlib.suppress(OSError):
            self._sockets[self._path].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for listener in self._sockets.values():
            listener.close()

    def _bind(self) -> socket.socket:
        if len(os.fsencode(self._path)) > MAX_SOCKET_PATH:
            raise Refused(
                f"the socket path {self._path} is longer than {MAX_SOCKET_PATH} bytes",
                "set GPQ_HOME to a folder with a shorter path",
            )
        make_folder, mode = (make_passable, 0o666) if self._everybody else (make_private, 0o600)
        make_folder(os.path.dirname(self._path))
        self._refuse_neighbour()
        try:
            return _listen(self._path, mode)
        except OSError as error:
            raise Refused(
                f"cannot listen on {self._path}: {error.strerror}",
                "set GPQ_HOME to a folder that you can write to",
            ) from None

    def _refuse_neighbour(self) -> None:
        """Another state's daemon may listen here. A daemon that answers keeps its socket, and one
        that hangs loses it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(2.0)
            try:
                probe.connect(self._path)
                probe.sendall(b"\n")
                answers = bool(probe.recv(1))
            except OSError:
                return
        if answers:
            raise Refused(f"another daemon answers on {self._path}", "`gpq daemon stop` stops it")


def _listen(path: str, mode: int, uid: int | None = None) -> socket.socket:
    """Listen on a new socket `path`. `uid`: this user may open it, too. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, mode)
        if uid is not None:
            acl = struct.pack("<I" + 5 * "HHI", 2, *OWNER, 2, 6, uid, *GROUP, *MASK, *OTHERS)
            os.setxattr(path, "system.posix_acl_access", acl)
        listener.listen(512)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
