"""A laboratory: servers in network namespaces with real sshd, on one machine, as root. It removes what it made, even
after this process was killed (the next lab removes what the kernel does not)."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from tests.lab.kinds import PLAIN, Kind
from tests.lab.machine import run, started
from tests.lab.server import USER, Port, Server, mac

ALIAS = re.compile(r"gpq-lab (\d+) (\d+) (/\S+)")
CONNECT_TIMEOUT = 5  # seconds, as in the generated ssh_config


class Lab:
    """`with Lab({"srv-a": PLAIN, "srv-b": CSH}) as lab`: all servers are on. `lab.ssh("srv-a", "uptime")` logs in there
    as the user of the lab. Two labs never collide, because names and addresses contain (process, number)."""

    _numbers = itertools.count()

    def __init__(self, kinds: Mapping[str, Kind] | None = None) -> None:
        self.kinds = dict({"srv-a": PLAIN, "srv-b": PLAIN} if kinds is None else kinds)
        assert all(kind.behind in ("", *self.kinds) for kind in self.kinds.values())
        self.servers: dict[str, Server] = {}

    def __getitem__(self, name: str) -> Server:
        return self.servers[name]

    def __iter__(self) -> Iterator[Server]:
        return iter(self.servers.values())

    def __enter__(self) -> Lab:
        sweep()
        with ExitStack() as undo:
            self._make(undo)
            for server in self:
                undo.callback(server.power_off)
                server.boot()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    # -- making

    def _make(self, undo: ExitStack) -> None:
        number = next(self._numbers)
        self.folder = Path(tempfile.mkdtemp(prefix="gpq-lab-"))
        undo.callback(shutil.rmtree, self.folder)
        self.folder.chmod(0o711)  # users of the servers cross it on the way to their homes
        tag = f"{_letters(os.getpid())}{_letters(number)}"  # an interface's name has 15 characters
        network = _free_network(os.getpid() * 7 + number)
        bridges = [f"gq{tag}br", f"gq{tag}bq"]  # the second one is for servers behind another server
        alias = f"gpq-lab {os.getpid()} {started(os.getpid())} {self.folder}"
        for bridge, own in zip(bridges, (f"{network}.1", f"{network}.129"), strict=True):
            run("ip", "link", "add", bridge, "address", mac(own), "type", "bridge", "forward_delay", "0")
            undo.callback(run, "ip", "link", "del", bridge)
            run("ip", "link", "set", bridge, "alias", alias, "up")
        run("ip", "addr", "add", f"{network}.1/25", "dev", bridges[0])
        # A server behind another must not be searched for elsewhere. This machine's default route may lead to a host
        # that answers.
        run("ip", "route", "add", f"{network}.128/25", "dev", bridges[0])

        key = self.folder / "id_ed25519"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpq-lab", "-f", key)
        gates = {kind.behind for kind in self.kinds.values()} - {""}
        for place, (name, kind) in enumerate(self.kinds.items(), start=10):
            public = Port("eth0", f"gq{tag}v{place}", bridges[0], f"{network}.{place}/25")
            private = Port("eth1", f"gq{tag}w{place}", bridges[1], f"{network}.{128 + place}/25")
            if kind.behind:
                ports = [Port("eth0", private.outside, private.bridge, private.address)]
            else:
                ports = [public, *([private] if name in gates else [])]
            self.servers[name] = Server(name, kind, self.folder / name, ports)
        hosts = "".join(f"{server.address} {server.name}\n" for server in self)
        for server in self:
            server.folder.mkdir()
            server.install(key.with_suffix(".pub").read_text(), hosts)
        self._write_ssh_config(key)

    def _write_ssh_config(self, key: Path) -> None:
        known = "".join(f"{server.name} {server.host_key}\n" for server in self)
        (self.folder / "known_hosts").write_text(known)
        lines = []
        for server in self:
            lines += [f"Host {server.name}", f"  HostName {server.address}", f"  Port {server.kind.port}"]
            lines += [f"  ProxyJump {server.kind.behind}"] if server.kind.behind else []
            lines += [f"  HostKeyAlias {server.name}"]
        lines += ["Host *", f"  User {USER}", f"  IdentityFile {key}", "  IdentitiesOnly yes"]
        lines += [f"  UserKnownHostsFile {self.folder}/known_hosts", "  GlobalKnownHostsFile /dev/null"]
        lines += [f"  ConnectTimeout {CONNECT_TIMEOUT}", "  StrictHostKeyChecking yes"]
        self.ssh_config.write_text("\n".join(lines) + "\n")
        self.bin.mkdir()
        wrapper = self.bin / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.ssh_config} "$@"\n')
        wrapper.chmod(0o755)

    # -- using

    def repair(self) -> None:
        """Every server is on, and its network and sshd work. Call it from the thread that ends last: with the thread
        that booted it, a server dies."""
        for server in self:
            if not server.on:
                server.boot()
            server.link.heal()
            server.thaw_sshd()
            if not server.processes("sshd"):
                server.start_sshd()

    @property
    def ssh_config(self) -> Path:
        """How to reach them: `ssh -F`."""
        return self.folder / "ssh_config"

    @property
    def bin(self) -> Path:
        """For PATH: an `ssh` whose configuration is this lab's."""
        return self.folder / "bin"

    def ssh_argv(self, name: str, *command: str, **options: str | int) -> list[str]:
        """`options`: of ssh_config, for this call."""
        chosen = [f"-o{option}={value}" for option, value in options.items()]
        return ["ssh", "-F", str(self.ssh_config), "-oBatchMode=yes", *chosen, "--", name, *command]

    def ssh(
        self, name: str, *command: str, patience: float = 60.0, **options: str | int
    ) -> subprocess.CompletedProcess[str]:
        """Plain ssh, as a user types it."""
        argv = self.ssh_argv(name, *command, **options)
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience)


def sweep() -> None:
    """Remove what labs left behind when their process was killed. Their servers died with it."""
    for link in json.loads(run("ip", "-json", "link", "show", "type", "bridge")):
        owner = ALIAS.fullmatch(link.get("ifalias", ""))
        if owner is None or started(int(owner[1])) == int(owner[2]):
            continue
        run("ip", "link", "del", link["ifname"], check=False)  # another lab may clean up too
        folder = Path(owner[3])
        if folder.name.startswith("gpq-lab-"):
            shutil.rmtree(folder, ignore_errors=True)


def _letters(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return (_letters(number // 36) if number >= 36 else "") + digits[number % 36]


def _free_network(seed: int) -> str:
    """The first three numbers of a network in 10.0.0.0/8 for which this machine has no address and no route."""
    taken = run("ip", "-4", "route", "show", "table", "all") + run("ip", "-4", "addr")
    for offset in range(1 << 16):
        number = (seed + offset) % (1 << 16)
        network = f"10.{number >> 8}.{number & 255}"
        if f" {network}." not in f" {taken}":
            return network
    raise AssertionError("every private network is taken")
