"""The ssh-agents of the logins that commands come from, and which of them answers now. A login
ends, and its agent with it."""

from __future__ import annotations

import os
import socket
import struct
import threading

VARIABLE = "SSH_AUTH_SOCK"
MOST = 8  # agents to remember
PATIENCE = 1.0  # seconds that an agent has to answer
# asks for its keys: SSH_AGENTC_REQUEST_IDENTITIES, SSH_AGENT_IDENTITIES_ANSWER
ASK, ANSWER = b"\0\0\0\1\x0b", 12


class SshAgents:
    """By the paths of their sockets. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: tuple[str, ...] = ()  # first
        self._is_any = False
        self.is_gone = False  # there was one, but none answered the last request

    def note(self, path: str) -> bool:
        """A command came from a login with this agent, or without one (""). Is it a new one that
        answers?"""
        is_known = path in self._newest
        if not path or not (is_known or _listens(path)):
            return False
        with self._lock:
            self._newest = (
                path,
                *(agent_path for agent_path in self._newest if agent_path != path),
            )[:MOST]
        self._is_any = True
        return not is_known

    def answering(self) -> str:
        """The newest with keys, otherwise the newest that answers, otherwise "". Agents that no
        longer answer are forgotten."""
        best = ""
        for path in self._newest:
            keys = _keys(path)
            if keys:
                best = path
                break
            if keys is None:
                if not _listens(path):
                    with self._lock:
                        self._newest = tuple(
                            agent_path for agent_path in self._newest if agent_path != path
                        )
            elif not best:
                best = path
        self.is_gone = self._is_any and not best
        return best


def of_process(pid: int) -> str:
    """The agent of the shell that started the process. "" if it has none or the process belongs to
    another user."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            variables = stream.read().split(b"\0")
    except OSError:
        return ""
    begin = f"{VARIABLE}=".encode()
    return next(
        (
            os.fsdecode(variable[len(begin) :])
            for variable in variables
            if variable.startswith(begin)
        ),
        "",
    )


def _listens(path: str) -> bool:
    """Returns at once, even if the other end hangs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:  # more connections wait there than it accepts
            return True
        except (OSError, ValueError):  # ValueError: not a path
            return False
    return True


def _keys(path: str) -> int | None:
    """How many keys it has. None if it does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(PATIENCE)
        try:
            line.connect(path)
            line.sendall(ASK)
            _, kind = struct.unpack(">IB", _read(line, 5))
            if kind != ANSWER:
                return 0
            return int(struct.unpack(">I", _read(line, 4))[0])
        except OSError:
            return None


def _read(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = line.recv(size - len(data))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data
