"""A private sshd on loopback for tests, with its own keys, port and configuration. It needs no privileges."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.waiting import wait_until

SSHD = "/usr/sbin/sshd"


class Sshd:
    """`with Sshd(folder) as server` listens on 127.0.0.1:`port`. `config` is a file for `ssh -F` in which `name` leads
    there.

    `home` is the HOME of every login. `directives` are lines of sshd_config. `environment` is set for every session.
    """

    def __init__(
        self, folder: Path, *, name: str = "server", directives: Sequence[str] = (), environment: Sequence[str] = ()
    ) -> None:
        if not Path(SSHD).exists() or shutil.which("ssh") is None:
            pytest.skip("needs openssh-server and openssh-client")
        self.folder = folder
        self.name = name
        self.home = folder / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self.config = folder / "ssh_config"
        self.known_hosts = folder / "known_hosts"
        self.key = folder / "key"
        self.host_key = folder / "host_key"
        self.directives = list(directives)
        self.environment = [f"HOME={self.home}", *environment]
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        for path in (self.key, self.host_key):
            _make_key(path)
        self.know()
        self._write()

    @property
    def command(self) -> list[str]:
        """How `[nodes.NAME]` starts ssh to reach this server."""
        return ["ssh", "-F", str(self.config)]

    def toml(self, **more: object) -> str:
        """The lines below `[nodes.NAME]`."""
        fields = {"connector": "ssh", "host": self.name, "ssh": self.command, "slots": 2, **more}
        return "\n".join(f"{key} = {value!r}" for key, value in fields.items()) + "\n"

    def know(self) -> None:
        """Make its host key the known one."""
        key = self.host_key.with_suffix(".pub").read_text()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {key}")

    def change_host_key(self) -> None:
        """Another host key than the known one, from the next start on."""
        self.host_key.unlink()
        _make_key(self.host_key)

    def _write(self) -> None:
        self.config.write_text(
            f"Host {self.name}\n  HostName 127.0.0.1\n  Port {self.port}\n  IdentityFile {self.key}\n"
            f"  IdentitiesOnly yes\n  IdentityAgent none\n  UserKnownHostsFile {self.known_hosts}\n"
            "  GlobalKnownHostsFile /dev/null\n"
        )
        keys = self.folder / "authorized_keys"
        keys.write_text(self.key.with_suffix(".pub").read_text())
        keys.chmod(0o600)
        variables = " ".join(f'"{each}"' for each in self.environment)
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {keys}",
            f"PidFile {self.folder / 'sshd.pid'}",
            f"SetEnv {variables}",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PrintMotd no",
            *self.directives,
        ]
        (self.folder / "sshd_config").write_text("\n".join(lines) + "\n")

    def start(self) -> Sshd:
        self._write()
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        with open(self.folder / "sshd.log", "ab") as log:
            self._process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")], stderr=log, start_new_session=True
            )
        wait_until(self._listens, "sshd listens")
        return self

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "sshd.log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
            return True
        return False

    def stop(self) -> None:
        """End the listener. Existing connections live on."""
        if self._process is not None:
            self.signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        """Send a signal to the listener and to everything that serves a connection. SIGSTOP makes the server hang,
        SIGCONT wakes it."""
        assert self._process is not None
        for pid in [*self.sessions(), self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def sessions(self) -> list[int]:
        """Pids of the sshd processes that serve a connection, while the listener lives."""
        assert self._process is not None
        found = {self._process.pid}
        for _ in range(3):  # listener, monitor, and one more without privileges
            found |= {pid for pid in _processes() if _parent(pid) in found and _title(pid).startswith("sshd:")}
        return sorted(found - {self._process.pid})

    def __enter__(self) -> Sshd:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        mark = f"HOME={self.home}".encode()
        wait_until(lambda: not _end(mark), "nobody is logged in")


def clients(config: Path) -> list[int]:
    """Pids of the ssh clients that use this configuration."""
    found = []
    for pid in _processes():
        with contextlib.suppress(OSError):
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if argv[0] == b"ssh" and str(config).encode() in argv:
                found.append(pid)
    return found


def _end(mark: bytes) -> list[int]:
    """Kill every process with `mark` in its environment. Returns those that were still there."""
    found = []
    for pid in _processes():
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
            if state != b"Z" and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
                found.append(pid)
    return found


def _processes() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
