"""What `gpq doctor` says about the ssh settings of a server."""

from __future__ import annotations

import os
import subprocess

from gpq.cli.doctor.verdicts import Check
from gpq.config import NodeConfig
from gpq.connectors.ssh import Target

LIMIT = 5.0  # seconds


def ssh(name: str, node: NodeConfig) -> Check:
    """How ssh reads the settings, including ~/.ssh/config. Connects to nothing."""
    target = Target(
        node.host, node.port, os.path.expanduser(node.identity), tuple(node.ssh or ["ssh"])
    )
    argv = [*target.argv("-G"), "--", target.host]
    try:
        result = subprocess.run(
            argv, capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        fix = "install the OpenSSH client, or correct `ssh` in config.toml"
        return Check("ssh", "fail", f"{argv[0]}: {error}", fix, name)
    settings = dict(line.partition(" ")[::2] for line in result.stdout.splitlines())
    if result.returncode != 0 or "hostname" not in settings:
        messages = result.stderr.strip().splitlines() or [f"exit {result.returncode}"]
        fix = "correct ~/.ssh/config. `ssh -G HOST` shows how ssh reads it"
        return Check("ssh", "fail", messages[-1], fix, name)
    finding = (
        f"{settings.get('user', '')}@{settings['hostname']}, port {settings.get('port', '22')}"
    )
    if settings.get("proxyjump", "none") != "none":
        finding += f", through {settings['proxyjump']}"
    return Check("ssh", "ok", finding, "", name)
