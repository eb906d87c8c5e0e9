"""How a test sees the effect of a fault of the laboratory: sessions of plain ssh, connections, single datagrams."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

from tests.lab.lab import Lab
from tests.lab.machine import run
from tests.lab.server import Server

KEEPALIVE: dict[str, str | int] = {"ServerAliveInterval": 2, "ServerAliveCountMax": 3}
LOUD = "while :; do read -r uptime _ </proc/uptime; echo $uptime; sleep 0.1; done"


@contextlib.contextmanager
def session(
    lab: Lab, name: str, command: str = "echo here; exec sleep 1000", /, **options: str | int
) -> Iterator[subprocess.Popen[str]]:
    """An ssh that is logged in and stays."""
    argv = lab.ssh_argv(name, command, **options)
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as ssh:
        try:
            assert ssh.stdout is not None
            assert ssh.stdout.readline().strip()
            yield ssh
        finally:
            ssh.kill()


def reaches(server: Server, patience: float = 1.0) -> bool:
    try:
        socket.create_connection((server.address, server.kind.port), patience).close()
    except OSError:
        return False
    return True


def datagrams_in(server: Server, count: int = 1) -> int:
    """How many of this many datagrams from this machine arrive at the server."""
    code = (
        "import socket, sys\n"
        "end = socket.socket(type=socket.SOCK_DGRAM); end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)\n"
        "end.bind(('', 9999)); end.settimeout(0.5); print('bound', flush=True); sys.stdin.readline(); seen = 0\n"
        "try:\n  while True: end.recv(9); seen += 1\n"
        "except TimeoutError: print(seen)"
    )
    argv = server.network_argv(sys.executable, "-c", code)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdin is not None
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "bound\n"
        with socket.socket(type=socket.SOCK_DGRAM) as end:
            for _ in range(count):
                end.sendto(b"x", (server.address, 9999))
        receiver.stdin.write("sent\n")
        receiver.stdin.flush()
        return int(receiver.stdout.readline())


def datagram_out(lab: Lab, server: Server) -> bool:
    """Does a datagram from the server arrive at this machine?"""
    gateway = f"{server.address.rpartition('.')[0]}.1"
    with socket.socket(type=socket.SOCK_DGRAM) as end:
        end.bind((gateway, 0))
        end.settimeout(0.5)
        code = (
            f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('{gateway}', {end.getsockname()[1]}))"
        )
        with contextlib.suppress(AssertionError):  # the sender may learn that its packet was dropped
            run(*server.network_argv(sys.executable, "-W", "ignore", "-c", code))
        try:
            return end.recv(9) == b"x"
        except TimeoutError:
            return False
