"""`[nodes.NAME]` -> the connection to that server and the arguments of its agent. Starts
nothing."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

from gpq.config import NodeConfig
from gpq.connectors.bundle import bundle
from gpq.connectors.local import Connector, LocalConnector
from gpq.connectors.ssh import SshConnector, Target
from gpq.connectors.ssh_agents import SshAgents
from gpq.folders import make_private


def ssh(config: NodeConfig, errors: Path, agents: SshAgents | None = None) -> SshConnector:
    """`errors` is a file for the complaints of ssh and the agent. `agents` are ssh-agents that it
    may ask. None means that of our shell. Raises UsageError for an invalid host."""
    target = Target(
        config.host,
        config.port,
        os.path.expanduser(config.identity),
        tuple(map(os.path.expanduser, config.ssh or ["ssh"])),
    )
    return SshConnector(target, bundle(), errors=errors, python=config.python, agents=agents)


def way(
    node: str, config: NodeConfig, home: str, agents: SshAgents | None = None
) -> tuple[Connector, list[str]]:
    """The connection to a server and the arguments of its agent. `home` is the state directory.
    `agents` as for `ssh`. Raises UsageError for an invalid host."""
    folder = os.path.join(home, "nodes", node)
    make_private(folder)
    errors = Path(folder) / "agent.log"
    if config.connector == "ssh":
        return ssh(config, errors, agents), ssh_arguments(node, config, home)
    return LocalConnector(errors, python=config.python), local_arguments(config, home, folder)


def ssh_arguments(node: str, config: NodeConfig, home: str) -> list[str]:
    """The spool's folder has the name of the server, because several servers may share one home
    directory. Such servers share the checkpoint folder, so a job finds its own checkpoint wherever
    it resumes."""
    folder = f"~/.gpq/nodes/{daemon_id(home)}"
    spool = config.spool or f"{folder}/{node}"
    checkpoints = _checkpoints(config, home) or f"{folder}/checkpoints"
    return ["--spool", spool, "--checkpoints", checkpoints, *_common(config)]


def local_arguments(config: NodeConfig, home: str, spool: str) -> list[str]:
    """Checkpoints of a job that moves between servers are in one folder, unless the server has its
    own."""
    checkpoints = _checkpoints(config, home) or os.path.join(home, "checkpoints")
    return ["--spool", spool, "--checkpoints", checkpoints, *_common(config)]


def _checkpoints(config: NodeConfig, home: str) -> str:
    """The server's own folder, or ""."""
    if not config.checkpoints:
        return ""
    return f"{config.checkpoints}/{daemon_id(home)}"


def _common(config: NodeConfig) -> list[str]:
    slots = "auto" if config.slots is None else str(config.slots)
    arguments = ["--slots", slots]
    if config.cores:
        arguments += ["--cores", ",".join(map(str, config.cores))]
    if config.lock:
        arguments.append("--lock-slots")
    if config.transfer_limit:
        arguments += ["--transfer-limit", str(config.transfer_limit)]
    if config.visible != "uuid":
        arguments += ["--visible", config.visible]
    if config.owner:
        arguments += [f"--owner={config.owner}"]
    return arguments


def daemon_id(home: str) -> str:
    """Each daemon has its own folders on servers, by machine, user and state directory."""
    try:
        machine = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except OSError:
        machine = socket.gethostname()
    return hashlib.sha256(f"{machine}:{os.getuid()}:{home}".encode()).hexdigest()[:12]
