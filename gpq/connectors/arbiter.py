"""The member's end of the arbiter's socket: one request, one answer. It speaks only to a listener
of the account that decides for the team, and believes no answer beyond its bounds."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from typing import TypeVar

from gpq import paths
from gpq.connectors.arbiter_link import ArbiterLink
from gpq.connectors.ssh_agents import SshAgents
from gpq.errors import DaemonUnreachable, Refused
from gpq.rpc import codec
from gpq.rpc.team_codec import decode_team_answer
from gpq.rpc.team_messages import MAX_LINE, Hello, Membership, TeamRequest, View, Welcome

R = TypeVar("R")
ANSWER_SECONDS = 10.0
CONNECT_SECONDS = 5


class ArbiterClient:
    """An open connection to the arbiter of team `name`, which user `uid` runs, perhaps on another
    machine, `head`. `agents` are the ssh-agents on the way there."""

    def __init__(
        self, name: str, uid: int, head: str = "", agents: SshAgents | None = None
    ) -> None:
        """Raises DaemonUnreachable if nobody listens, Refused if somebody else does, and GpqError
        if `head` cannot be reached."""
        self.name, self._surplus = name, b""
        self._link = ArbiterLink(head, name, uid, agents) if head else None
        if self._link is not None:
            self.pid, self._socket = 0, self._link.socket
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # waits for a place in a full queue, which a socket with a timeout of Python's does not
            patience = struct.pack("ll", CONNECT_SECONDS, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
            path = _path(name, uid)
            try:  # the socket that is for this user alone
                self._socket.connect(f"{path}.{os.geteuid()}")
            except (FileNotFoundError, PermissionError, ConnectionRefusedError):
                self._socket.connect(path)
            size = struct.calcsize("iII")
            credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            self.pid, listener, _ = struct.unpack("iII", credentials)
            if listener != uid:
                raise Refused(
                    f"user {listener} listens where the arbiter of team {name} should, which is"
                    f" user {uid}",
                    "ask that user whether the arbiter runs",
                )
        except OSError as error:
            self._socket.close()
            raise _unreachable(name, error) from None
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """From any thread: a `call` in another one ends."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._link is not None:
            self._link.close()

    def copy(self, source: int, sink: int) -> None:
        """Between two descriptors and the arbiter, until somebody hangs up. `source` begins."""
        self._socket.setblocking(True)
        arbiter = self._socket.fileno()
        ways = {source: arbiter}
        while True:
            for end in select.select(list(ways), [], [])[0]:
                try:
                    piece = os.read(end, 65536)
                    if not piece:
                        return
                    ways.setdefault(arbiter, sink)
                    while piece:
                        piece = piece[os.write(ways[end], piece) :]
                except ConnectionError:  # noqa: PERF203
                    if end == arbiter:
                        return
                    del ways[source]  # the arbiter may have given the reason before

    def call(self, request: TeamRequest, kind: type[R], patience: float = ANSWER_SECONDS) -> R:
        """The answer, which must be complete within `patience` seconds. Raises the arbiter's
        GpqError, DaemonUnreachable, or Refused for an answer out of bounds."""
        until = time.monotonic() + patience
        try:
            self._socket.settimeout(patience)
            with contextlib.suppress(BrokenPipeError):  # it may have given the reason before
                self._socket.sendall(codec.encode_request(request))
            line = self._read_line(until)
        except OSError as error:
            raise _unreachable(self.name, error) from None
        return decode_team_answer(line, kind)

    def welcome(self) -> Welcome:
        """Who this user is there. Who may join is a member from then on."""
        return self.call(Hello(team=self.name), Welcome)

    def members(self) -> Membership:
        return self.call(View(kind="members"), Membership)

    def _read_line(self, until: float) -> bytes:
        buffer = bytearray(self._surplus)
        while b"\n" not in buffer:
            if len(buffer) > MAX_LINE:
                raise Refused(f"the arbiter of team {self.name} answered with too long a line")
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer in time")
            self._socket.settimeout(left)
            piece = self._socket.recv(65536)
            if not piece:
                raise ConnectionError("it hung up")
            buffer += piece
        line, _, surplus = bytes(buffer).partition(b"\n")
        self._surplus = surplus
        return line


def _path(name: str, uid: int) -> str:
    folders = [folder for folder in paths.team_folders(name, uid) if os.path.isdir(folder)]
    return os.path.join((folders or paths.team_folders(name, uid))[0], "sock")


def _unreachable(name: str, error: OSError) -> DaemonUnreachable:
    reason = error.strerror or str(error)
    return DaemonUnreachable(f"the arbiter of team {name} does not answer: {reason}")
