"""`gpq doctor` for servers: asks all of them at the same time, with a time limit for each.
The verdicts are in `server_lines`."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpq import config
from gpq.cli.doctor import link_checks, server_lines
from gpq.cli.doctor.server_lines import Check, Told, errand, job_environment, side_by_side
from gpq.client.connection import call
from gpq.config import NodeConfig
from gpq.connectors.ssh import Target
from gpq.options import environment
from gpq.rpc import node_answers, requests
from gpq.rpc.node_answers import NodeView

SSH_LIMIT = 5.0  # seconds

EXAMINE, DRIVER, TORCH = 20.0, 40.0, 75.0  # seconds


def of_servers(names: Sequence[str], python: str, show: Callable[[str], None]) -> list[Check]:
    """Lines about these servers, or about all. Raises GpqError if the daemon cannot be reached or
    does not know a server."""
    nodes = call(requests.Nodes(list(names)), node_answers.NodeList).nodes
    checkup = _Checkup(nodes, python, show)
    try:
        return checkup.lines()
    finally:
        show("")


@dataclass(frozen=True, slots=True)
class _Examination:
    """What one server reported. `offset`: of its clock from ours in seconds, give or take
    `uncertainty`."""

    facts: Told
    driver: Told
    torch: Told
    offset: float
    uncertainty: float


class _Checkup:
    def __init__(self, nodes: Sequence[NodeView], python: str, show: Callable[[str], None]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.configs = config.load().nodes
        self.show = show
        self.python = python
        self.open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # limit of this shell

    def lines(self) -> list[Check]:
        examinations = self._examine([name for name, node in self.nodes.items() if node.answers])
        checks: list[Check] = []
        for name, node in self.nodes.items():
            settings = self._config(name)
            checks.append(server_lines.reachability(node))
            checks += server_lines.unknown_attempts(node)
            checks += server_lines.damaged_files(node)
            if settings.connector == "ssh":
                checks.append(ssh(name, settings))
            if name in examinations:
                look = examinations[name]
                checks += server_lines.of_itself(
                    name, look.facts, look.offset, look.uncertainty, self.open_files
                )
                checks.append(server_lines.gpus(node, look.driver))
                checks.append(server_lines.torch(name, self._python(name), look.torch))
        servers = [
            link_checks.Server(self.nodes[name], self._python(name), answer.facts, answer.torch)
            for name, answer in examinations.items()
            if "error" not in answer.facts
        ]
        if len(servers) > 1:
            checks += link_checks.between(servers, self.show)
        return checks

    def _config(self, name: str) -> NodeConfig:
        return self.configs.get(name, NodeConfig())

    def _python(self, name: str) -> str:
        return environment.on_server(self.python, self._config(name))

    def _examine(self, names: Sequence[str]) -> dict[str, _Examination]:
        self.show(f"checking {len(names)} servers")
        finished_names: list[str] = []

        def look(name: str) -> _Examination:
            begin = time.time()
            facts = errand(name, "examine", EXAMINE)
            end = time.time()
            offset = float(facts.get("time", end)) - (begin + end) / 2
            driver = errand(name, "driver", DRIVER)
            whole = errand(name, "examine", TORCH, python=self._python(name), env=job_environment())
            finished_names.append(name)
            self.show(f"checked {len(finished_names)} of {len(names)} servers")
            return _Examination(
                facts, driver, whole.get("torch", whole), offset, uncertainty=(end - begin) / 2
            )

        return side_by_side(look, names)


def ssh(name: str, node: NodeConfig) -> Check:
    """How ssh reads the settings, including ~/.ssh/config. Connects to nothing."""
    target = Target(
        node.host, node.port, os.path.expanduser(node.identity), tuple(node.ssh or ["ssh"])
    )
    argv = [*target.argv("-G"), "--", target.host]
    try:
        result = subprocess.run(
            argv, capture_output=True, text=True, timeout=SSH_LIMIT, stdin=subprocess.DEVNULL,
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
