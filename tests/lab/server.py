"""One server of a laboratory: a disk that survives a power cut, and namespaces that do not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab.kinds import Kind
from tests.lab.link import Link
from tests.lab.machine import PATIENCE, python_home, run, search_path, started
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
USER = "ada"
UID = 20_000
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class Port:
    """A network interface of a server: `name` inside, `outside` on this machine, a member of `bridge`."""

    name: str
    outside: str
    bridge: str
    address: str  # with the length of its prefix

    @property
    def mac(self) -> str:
        """The same after every boot, like a real network card, because others remember it."""
        return mac(self.address.partition("/")[0])


def mac(address: str) -> str:
    """A locally administered address, derived from an IPv4 address."""
    return ":".join(f"{number:02x}" for number in (2, 0, *map(int, address.split("."))))


class Server:
    """On after boot(). `folder` is its disk. Files in /tmp and /run there are lost with its power."""

    def __init__(self, name: str, kind: Kind, folder: Path, ports: Sequence[Port]) -> None:
        self.name = name
        self.kind = kind
        self.folder = folder
        self.ports = tuple(ports)
        self.address = ports[0].address.partition("/")[0]
        self.home = folder / "home" / USER  # as seen from this machine. On the server it is /home/ada
        self.link = Link(self)
        self._power: subprocess.Popen[str] | None = None
        self._init = 0

    # -- the disk

    def install(self, authorized: str, hosts: str) -> None:
        """Make its disk: users, sshd with its own key, and other accounts."""
        etc = self.folder / "etc"
        for path in (etc / "ssh", self.home / ".ssh", self.folder / "root", self.folder / "vartmp"):
            path.mkdir(parents=True)
        (self.folder / "vartmp").chmod(0o1777)
        users = [
            "root:x:0:0:root:/root:/bin/sh",
            "sshd:x:100:65534::/run/sshd:/usr/sbin/nologin",
            f"{USER}:x:{UID}:{UID}::/home/{USER}:{self.kind.shell}",
            "nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin",
        ]
        (etc / "passwd").write_text("\n".join(users) + "\n")
        (etc / "group").write_text(f"root:x:0:\n{USER}:x:{UID}:\nnogroup:x:65534:\n")
        (etc / "shadow").write_text("".join(f"{user.partition(':')[0]}:*:19000:0:99999:7:::\n" for user in users))
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        (etc / "profile").write_text(f"PATH={self.path}\nexport PATH\n")
        (self.home / ".ssh" / "authorized_keys").write_text(authorized)
        for name in {"csh": [".cshrc"], "fish": [".config/fish/config.fish"]}.get(
            Path(self.kind.shell).name, [".bashrc"]
        ):
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.home / name).write_text(self.kind.rc)
        for folder, _, files in os.walk(self.home):
            for name in [folder, *(os.path.join(folder, file) for file in files)]:
                os.chown(name, UID, UID)
        (self.folder / "interfaces").write_text("".join(f"{port.name} {port.address}\n" for port in self.ports))
        (self.folder / "shown").write_text("".join(f"{path}\n" for path in self._shown()))
        hidden = [ROOT, *([Path(sys.prefix)] if sys.prefix != sys.base_prefix else [])]
        (self.folder / "hidden").write_text("".join(f"{path}\n" for path in hidden))
        if self.kind.python is None:
            (self.folder / "no-python").touch()
        self.new_host_key()
        self._configure_sshd()

    @property
    def python(self) -> Path | None:
        """Where its Python is installed."""
        if self.kind.python is None:
            return None
        return python_home(self.kind.python) if self.kind.python else Path(sys.base_prefix)

    @property
    def path(self) -> str:
        """PATH of every login."""
        return SYSTEM_PATH if self.python is None else f"{self.python}/bin:{SYSTEM_PATH}"

    def _shown(self) -> list[Path]:
        system = (None, Path("/usr"), Path("/usr/local"))
        return [*([] if self.python in system else [self.python]), *self.kind.shown]

    def _configure_sshd(self) -> None:
        settings = {
            "Port": str(self.kind.port),
            "ListenAddress": "0.0.0.0",
            "HostKey": "/etc/ssh/host_key",
            "PidFile": "/run/sshd.pid",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PrintMotd": "no",
            "SetEnv": f"PATH={self.path}",
            **self.kind.sshd,
        }
        lines = "".join(f"{name} {value}\n" for name, value in settings.items())
        (self.folder / "etc" / "ssh" / "sshd_config").write_text(lines)

    def new_host_key(self) -> None:
        """As after a new installation. sshd reads the key when it starts."""
        key = self.folder / "etc" / "ssh" / "host_key"
        for old in (key, key.with_suffix(".pub")):
            old.unlink(missing_ok=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", key)

    @property
    def host_key(self) -> str:
        """The public key: type and key."""
        return " ".join((self.folder / "etc" / "ssh" / "host_key.pub").read_text().split()[:2])

    @property
    def boot_id(self) -> str:
        return (self.folder / "boot_id").read_text().strip()

    # -- the power

    @property
    def on(self) -> bool:
        return self._power is not None

    @property
    def init(self) -> int:
        """Its first process, as seen from this machine."""
        assert self.on, f"{self.name} is off"
        return self._init

    def boot(self) -> None:
        """New namespaces, a new boot id, sshd. Its network faults are over, but an unplugged cable stays unplugged."""
        assert not self.on, f"{self.name} is on"
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        # The server ends with the lab: the kernel kills it when this process ends, however it ends.
        argv = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork"]
        with open(self.folder / "boot.log", "ab") as log:
            power = subprocess.Popen(
                [*argv, "--kill-child=KILL", "sh", str(ROOT / "tests" / "lab" / "boot.sh"), str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={"PATH": search_path(), "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        self._power = power
        assert power.stdin is not None
        assert power.stdout is not None
        with power.stdin, power.stdout:
            self._init = int(power.stdout.readline() or 0)
            if self._init:
                self._plug()
                power.stdin.write("go\n")
                power.stdin.flush()
            if power.stdout.readline() != "up\n":
                raise AssertionError(f"{self.name} did not boot: {(self.folder / 'boot.log').read_text()}")
        self._wait_for_sshd()

    def _plug(self) -> None:
        for port in self.ports:
            peer = ("type", "veth", "peer", "name", port.name, "address", port.mac, "netns", str(self._init))
            run("ip", "link", "add", port.outside, *peer)
            run("ip", "link", "set", port.outside, "master", port.bridge, "up")
        self.link.plugged()

    def power_off(self) -> None:
        """Pull the plug. Nothing says goodbye, and everything inside is gone when this returns. May be called twice."""
        if self._power is None:
            return
        for port in self.ports:  # first the network, so that no FIN of a dying process leaves
            run("ip", "link", "del", port.outside, check=False)
        self._power.kill()
        self._power.wait(PATIENCE)
        init, self._power, self._init = self._init, None, 0
        wait_until(lambda: not init or started(init) is None, f"{self.name} is off", PATIENCE)

    def reboot(self) -> None:
        self.power_off()
        self.boot()

    # -- what runs there

    def argv(self, *argv: str, user: str = "root") -> list[str]:
        """The command line that runs a command there without ssh, for a judge. As `user`, from /."""
        login = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"] if user == USER else []
        home = "/root" if user == "root" else f"/home/{user}"
        environment = ["env", "-i", f"PATH={self.path}", f"HOME={home}", f"USER={user}"]
        enter = ["nsenter", "--target", str(self.init), "--mount", "--uts", "--ipc", "--net", "--pid", "--wd=/"]
        return [*enter, *environment, *login, *argv]

    def inside(self, *argv: str, user: str = "root", check: bool = True) -> str:
        """The output of a command that runs there."""
        return run(*self.argv(*argv, user=user), check=check)

    def network_argv(self, *argv: str) -> list[str]:
        """The command line that runs a command of this machine, with its files, in the network of the server."""
        return ["nsenter", "--target", str(self.init), "--net", *argv]

    def processes(self, name: str = "") -> list[int]:
        """Its live processes as seen from this machine. With `name`, only those (as in /proc/PID/comm)."""
        own = os.stat(f"/proc/{self.init}/ns/pid").st_ino
        found = []
        for pid in sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
            try:
                mine = os.stat(f"/proc/{pid}/ns/pid").st_ino == own
                called = Path(f"/proc/{pid}/comm").read_text().strip() if mine else ""
            except OSError:  # it ended
                continue
            if mine and called and name in ("", called) and started(pid) is not None:
                found.append(pid)
        return found

    def as_pid(self, pid: int, *argv: str) -> None:
        """Start a command in the background with this pid there, which must be free."""
        script = 'echo $(($1 - 1)) >/proc/sys/kernel/ns_last_pid; shift; "$@" </dev/null >/dev/null 2>&1 &'
        self.inside("setsid", "sh", "-c", script, "sh", str(pid), *argv)
        called = self.inside("cat", f"/proc/{pid}/comm", check=False).strip()
        assert called, f"{argv[0]} did not get the pid {pid}"

    # -- sshd

    def _signal_sshd(self, number: signal.Signals, sessions: bool) -> None:
        listener = 0 if sessions else int(self.inside("cat", "/run/sshd.pid"))
        for pid in self.processes("sshd"):
            if listener in (0, self.pid_inside(pid)):
                with contextlib.suppress(ProcessLookupError):  # of a login that was just ending
                    os.kill(pid, number)

    @staticmethod
    def pid_inside(pid: int) -> int:
        """The pid of a process there, 0 once it has ended."""
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return 0
        return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])

    def freeze_sshd(self, sessions: bool = True) -> None:
        """SIGSTOP: the kernel still accepts connections, but nobody answers. `sessions`: also stop open ones."""
        self._signal_sshd(signal.SIGSTOP, sessions)

    def thaw_sshd(self) -> None:
        self._signal_sshd(signal.SIGCONT, sessions=True)

    def kill_sshd(self, sessions: bool = True) -> None:
        """kill -9: new connections are refused. With `sessions`, open ones break."""
        before = self.processes("sshd")
        self._signal_sshd(signal.SIGKILL, sessions)
        if sessions:
            wait_until(lambda: not set(before) & set(self.processes("sshd")), "sshd is gone", PATIENCE)

    def start_sshd(self) -> None:
        self.inside("/usr/sbin/sshd", "-f", "/etc/ssh/sshd_config", "-E", "/srv/lab/sshd.log")
        self._wait_for_sshd()

    def _wait_for_sshd(self) -> None:
        listening = f"{self.kind.port:04X} 00000000:0000 0A"
        table = Path(f"/proc/{self.init}/net/tcp")
        wait_until(lambda: listening in table.read_text(), f"sshd of {self.name} listens", PATIENCE)
