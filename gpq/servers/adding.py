"""The steps of `gpq nodes add`: read the options, offer hosts, check the host key, look at the
server, write config.toml."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from gpq import config
from gpq.config import NodeConfig
from gpq.config_rules import HOST, NODE_NAME
from gpq.connectors.ssh import Target
from gpq.errors import NotFound, Refused, UsageError
from gpq.options import values
from gpq.servers import config_file, first_contact
from gpq.views import plain

DEEPEST = 16  # levels of includes, as in ssh


@dataclass(frozen=True, slots=True)
class Wanted:
    """The server as the user asked for it."""

    host: str
    name: str
    gpus: list[str]
    slots: int | None
    python: str
    port: int
    address: str
    ssh_config: str

    def node(self) -> NodeConfig:
        ssh: list[str] = []  # the command that starts it, empty for the usual one
        if self.ssh_config:
            ssh = ["ssh", "-F", os.path.abspath(os.path.expanduser(self.ssh_config))]
        return NodeConfig(
            connector="ssh",
            slots=self.slots,
            gpus=self.gpus,
            python=self.python,
            host=self.host,
            port=self.port,
            address=self.address,
            ssh=ssh,
        )

    def node_name(self) -> str:
        """The name of the server. Raises UsageError for an invalid one."""
        name = (
            self.name
            or re.sub(r"[^A-Za-z0-9._-]", "-", self.host.rpartition("@")[2]).lstrip("._-")[:64]
        )
        if not NODE_NAME.fullmatch(name):
            raise UsageError(
                f"invalid server name {name!r}",
                "use --name with letters, digits, dots, dashes and underscores",
            )
        return name


def add(
    request: Wanted, talk: first_contact.Talk, *, yes: bool, quiet: bool, asks: bool = True
) -> dict[str, Any]:
    """Returns what --json shows of the server. If it raises GpqError, nothing was written. `yes`
    and `asks` are about its host key, as in `first_contact.settle`."""
    if not HOST.fullmatch(request.host):
        raise UsageError(
            f"invalid host {request.host!r}", "use user@host, or a name from ~/.ssh/config"
        )
    if request.ssh_config:
        configuration(request.ssh_config)
    node, name = request.node(), request.node_name()
    fields = {key: value for key, value in asdict(node).items() if value not in ("", 0, None, [])}
    if request.slots == 0:
        fields["slots"] = 0
    before = config_file.read()
    after = config_file.with_node(before, name, fields)
    target = Target(node.host, node.port, command=tuple(node.ssh or ["ssh"]))
    key = first_contact.settle(target, talk, yes=yes, quiet=quiet, asks=asks)
    findings, place = first_contact.meet(name, node, talk)
    if other_name := first_contact.other_name(name, place, config.load().nodes, talk):
        raise Refused(
            f"{request.host} is already the server {other_name}",
            f"to rename it, run `gpq nodes remove {other_name}` first",
        )
    if not quiet:
        talk.say(*first_contact.lines(name, findings))
    check(request, findings)
    config_file.write(after, before)
    return {"name": name, "host": node.host, "host_key": key, **asdict(findings)}


def check(request: Wanted, findings: first_contact.Findings) -> None:
    """Raises Refused if the server lacks a GPU that the user named, or has nothing to run jobs
    on."""
    indices = [str(device["index"]) for device in findings.gpus]
    gpu_names = {*indices, *(str(device["id"]) for device in findings.gpus)}
    missing_gpus = ", ".join(gpu for gpu in request.gpus if gpu not in gpu_names)
    if missing_gpus:
        hint = findings.problem or "it has no GPU. --slots N makes CPU slots of its cores"
        if indices:
            hint = f"it has GPU {', '.join(indices)}"
        raise Refused(f"{request.host} has no GPU {missing_gpus}, so it was not added", hint)
    if request.slots == 0 and not findings.devices:
        raise Refused(
            f"{request.host} has no GPU, and --slots 0 makes no CPU slots, so it was not added",
            findings.problem or "leave out --slots for one CPU slot per core",
        )


def configuration(file: str) -> str:
    """The path that -F names. Raises UsageError if it cannot be read."""
    path = os.path.abspath(os.path.expanduser(file))
    values.readable(
        path,
        f"-F {file}",
        "give a configuration of ssh, or leave out -F for ~/.ssh/config",
        special=True,
    )
    return path


def offer(ssh_config: str, *, every: bool) -> list[str]:
    """The hosts of ~/.ssh/config that the user picks from those that are not servers yet. Raises
    NotFound and Refused."""
    path = configuration(ssh_config) if ssh_config else ssh_config_path()
    if not os.path.exists(path):
        raise NotFound(
            f"there is no {path}", "use gpq nodes add user@host, or -F FILE for another file"
        )
    node_hosts = {node.host for node in config.load().nodes.values()}
    hosts = [host for host in ssh_hosts(path) if host not in node_hosts]
    if not hosts:
        raise NotFound(
            f"{path} names no new host", "use gpq nodes add user@host, or -F FILE for another file"
        )
    if every:
        return hosts
    width = len(str(len(hosts)))
    sys.stderr.write(
        "".join(f"{number:{width}}  {plain.safe(host)}\n" for number, host in enumerate(hosts, 1))
    )
    sys.stderr.write("Which hosts? Numbers (1,3-4), or all: ")
    sys.stderr.flush()
    return choice(sys.stdin.readline().strip(), hosts)


def choice(answer: str, hosts: list[str]) -> list[str]:
    """The hosts that the answer names, in their order. Raises Refused and UsageError."""
    if not answer:
        raise Refused("no host was chosen", "type numbers such as 1,3-4, or all")
    if answer == "all":
        return hosts
    numbers: set[int] = set()
    for word in filter(None, answer.replace(" ", ",").split(",")):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", word)
        if match is None:
            raise UsageError(f"invalid number {word!r}", "type numbers such as 1,3-4, or all")
        numbers |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    if not numbers or not numbers <= set(range(1, len(hosts) + 1)):
        raise UsageError(
            f"the numbers go from 1 to {len(hosts)}", "type numbers such as 1,3-4, or all"
        )
    return [hosts[number - 1] for number in sorted(numbers)]


def ssh_hosts(path: str) -> list[str]:
    """The hosts that a configuration of ssh names, in its order, each once: Host entries without
    patterns, also those of included files."""
    return list(dict.fromkeys(name for name in _hosts(path, 0) if HOST.fullmatch(name)))


def ssh_config_path() -> str:
    """The user's ~/.ssh/config. Like ssh, takes the home directory from the password database
    and not from $HOME."""
    import pwd

    return os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".ssh", "config")


def _hosts(path: str, depth: int) -> Iterator[str]:
    """The words of `Host a b`, `Host=a` and `Host "a b"`. None if the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return
    for line in lines:
        match = re.fullmatch(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*)", line)
        if match is None:
            continue
        keyword, words = match[1].lower(), list[str]()
        with contextlib.suppress(ValueError):  # an open quote
            words = shlex.split(match[2])
        if keyword == "host" and not any(word.startswith("!") for word in words):
            yield from words
        elif keyword == "include" and depth < DEEPEST:
            folder = os.path.dirname(ssh_config_path())
            for pattern in words:
                for file in sorted(glob.glob(os.path.join(folder, os.path.expanduser(pattern)))):
                    yield from _hosts(file, depth + 1)
