"""`gpq doctor` of servers: what is asked of which, side by side and each with a time limit.
Verdicts are in `server_lines`."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import Any, TypeVar

from gpq import config
from gpq.cli.doctor import link_lines, server_lines
from gpq.cli.doctor.verdicts import Check
from gpq.client.connection import call
from gpq.config import NodeConfig
from gpq.connectors.ssh import Target
from gpq.errors import GpqError
from gpq.options import environment
from gpq.rpc import node_answers, requests
from gpq.rpc.node_answers import NodeView

T = TypeVar("T")
Told = Mapping[str, Any]
MOST_AT_ONCE = 8
EXAMINE, DRIVER, TORCH, TCP, REDUCE = 20.0, 40.0, 75.0, 15.0, 75.0  # seconds
LISTENS = 40.0  # seconds, for all tries of the others
SSH_SAYS = 5.0
LOOPBACK = "127.0.0.1"


class Progress:
    """One line on stderr that is written over, where somebody watches."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __call__(self, line: str) -> None:
        if self._shown:
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()


def of_servers(names: Sequence[str], python: str, show: Callable[[str], None]) -> list[Check]:
    """Lines of these servers, all if none is named. Raises GpqError where the daemon is not
    reached, or knows none of one."""
    nodes = call(requests.Nodes(list(names)), node_answers.NodeList).nodes
    checkup = _Checkup(nodes, python, show)
    try:
        return checkup.lines()
    finally:
        show("")


class _Checkup:
    def __init__(self, nodes: Sequence[NodeView], python: str, show: Callable[[str], None]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.configs = config.load().nodes
        self.show = show
        self.python = python
        self.checks: list[Check] = []
        self.torch: dict[str, Told] = {}
        self.addresses: dict[str, list[str]] = {}
        self.boots: dict[str, str] = {}
        self.routes: dict[tuple[str, str], str] = {}  # (from, to) -> the address that works

    def lines(self) -> list[Check]:
        reachable = [name for name, node in self.nodes.items() if node.answers]
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # of this shell
        answers = self._each_alone(reachable)
        for name, node in self.nodes.items():
            self.checks.append(server_lines.reachability(node))
            self.checks += server_lines.unknown_attempts(node)
            self.checks += server_lines.damaged_files(node)
            if self._config(name).connector == "ssh":
                self.checks.append(_ssh(name, self._config(name)))
            if name in answers:
                facts, driver, offset, uncertainty = answers[name]
                self.checks += server_lines.of_itself(name, facts, offset, uncertainty, files)
                self.checks.append(server_lines.gpus(node, driver))
                self.checks.append(server_lines.torch(name, self._python(name), self.torch[name]))
        examined = {name: answers[name][0] for name in reachable if "error" not in answers[name][0]}
        if len(examined) > 1:
            self._together(examined)
        return self.checks

    def _config(self, name: str) -> NodeConfig:
        return self.configs.get(name, NodeConfig())

    def _python(self, name: str) -> str:
        return environment.on_server(self.python, self._config(name))

    def _each_alone(self, names: Sequence[str]) -> dict[str, tuple[Told, Told, float, float]]:
        self.show(f"looking at {len(names)} servers")
        finished_names: list[str] = []

        def look(name: str) -> tuple[Told, Told, float, float]:
            begin = time.time()
            facts = _errand(name, "examine", EXAMINE)
            end = time.time()
            offset = float(facts.get("time", end)) - (begin + end) / 2
            driver = _errand(name, "driver", DRIVER)
            env = environment.kept(dict(os.environ), {})
            whole = _errand(name, "examine", TORCH, python=self._python(name), env=env)
            self.torch[name] = whole.get("torch", whole)
            finished_names.append(name)
            self.show(f"looked at {len(finished_names)} of {len(names)} servers")
            return facts, driver, offset, (end - begin) / 2

        return _side_by_side(look, names)

    # -- several of them ---------------------------------------------------------------------------

    def _together(self, answers: Mapping[str, Told]) -> None:
        names = sorted(answers)
        self.checks += [
            link_lines.versions({name: self.torch[name] for name in names}),
            link_lines.host_names(answers),
        ]
        self.checks.append(link_lines.shared(self._shared(names)))
        for name in names:
            own = self.nodes[name].address
            self.addresses[name] = list(
                dict.fromkeys([*([own] if own else []), *answers[name]["addresses"]])
            )
            self.boots[name] = str(answers[name]["boot"])
        self._try_ports(names)
        self._measure(names)

    def _shared(self, names: Sequence[str]) -> list[list[str]]:
        """Groups of servers that see each other's mark in the folder of the checkpoints."""
        self.show("which servers share their files")
        tokens = {name: uuid.uuid4().hex for name in names}
        _side_by_side(lambda name: _errand(name, "mark", TCP, token=tokens[name]), names)
        sightings = _side_by_side(
            lambda name: _errand(name, "seen", TCP, tokens=[*tokens.values()]), names
        )
        _side_by_side(lambda name: _errand(name, "unmark", TCP, token=tokens[name]), names)
        groups: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            groups.setdefault(
                tuple(sorted(sightings[name].get("seen", [tokens[name]]))), []
            ).append(name)
        return list(groups.values())

    def _ways(self, source: str, target: str) -> list[str]:
        """Addresses that a job over both would try, in its order: two nodes of one machine need no
        network, unless they are in containers of their own."""
        alike = (
            [LOOPBACK] if self.boots[source] and self.boots[source] == self.boots[target] else []
        )
        return list(dict.fromkeys([*alike, *self.addresses[target]]))

    def _try_ports(self, names: Sequence[str]) -> None:
        """From each to each other, on a port of both ranges that jobs use."""
        self.show(f"trying connections between {len(names)} servers")
        tokens = {name: uuid.uuid4().hex for name in names}
        listeners = _side_by_side(
            lambda name: _errand(name, "listen", TCP, token=tokens[name], seconds=LISTENS), names
        )

        def reach(source: str) -> dict[str, dict[tuple[str, int], str]]:
            ends = [
                (target, address, port)
                for target in names
                if target != source
                for address in self._ways(source, target)
                for port in listeners[target].get("ports", [])
            ]
            targets = [
                {"address": address, "port": port, "token": tokens[target]}
                for target, address, port in ends
            ]
            answer = _errand(source, "reach", TCP, targets=targets)
            problems = answer.get("problems", [str(answer.get("error", "no answer"))] * len(ends))
            outcomes: dict[str, dict[tuple[str, int], str]] = {
                target: {} for target in names if target != source
            }
            for (target, address, port), problem in zip(ends, problems, strict=True):
                outcomes[target][address, port] = problem
            return outcomes

        for source, problems in _side_by_side(reach, names).items():
            for target, target_problems in problems.items():
                ways = self._ways(source, target)
                check = link_lines.reached(source, target, ways, target_problems)
                self.checks.append(check)
                open_addresses = [
                    address
                    for address in ways
                    if not any(
                        problem
                        for (tried_address, _), problem in target_problems.items()
                        if tried_address == address
                    )
                ]
                if check.verdict == "ok":
                    self.routes[source, target] = open_addresses[0]

    def _measure(self, names: Sequence[str]) -> None:
        """An all-reduce between the two of each pair; no server takes part in two at once, so none
        disturbs another."""
        candidates = [name for name in names if "torch" in self.torch[name]]
        pairs = [
            pair
            for pair in combinations(candidates, 2)
            if pair in self.routes and pair[::-1] in self.routes
        ]
        if not pairs:
            why = "no two servers with torch reach each other"
            self.checks.append(
                Check("all-reduce", "warn", f"not measured: {why}", "mend what stands above")
            )
        measured_count = 0
        for batch in _disjoint(pairs):
            answers = _side_by_side(lambda pair: self._all_reduce(*pair), batch)
            for (first, second), (answer, backend) in answers.items():
                self.checks.append(link_lines.all_reduce(first, second, answer, backend))
                if "bandwidth" in answer:
                    _keep(first, second, answer, backend)
            measured_count += len(batch)
            self.show(f"measured {measured_count} of {len(pairs)} connections")

    def _all_reduce(self, first: str, second: str) -> tuple[Told, str]:
        devices = {name: _free_gpu(self.nodes[name]) for name in (first, second)}
        backend = (
            "nccl"
            if all(devices.values()) and all(self.torch[name].get("gpus") for name in devices)
            else "gloo"
        )
        port = _errand(first, "listen", TCP, token="x", seconds=0.01).get("ports", [0, 0])[1]
        common = {
            "address": self.routes[second, first],
            "port": port,
            "backend": backend,
            "seconds": REDUCE - 10.0,
        }

        def rank(number: int) -> Told:
            name, peer = (first, second) if number == 0 else (second, first)
            return _errand(
                name, "all-reduce", REDUCE, rank=number, peer=self.routes[name, peer],
                python=self._python(name), device=devices[name] if backend == "nccl" else "",
                env=environment.kept(dict(os.environ), {}), **common,
            )  # fmt: skip

        answers = _side_by_side(rank, [0, 1])
        return (answers[1] if "error" in answers[1] else answers[0]), backend


def _free_gpu(node: NodeView) -> str:
    """A GPU on which nobody is, "" where there is none."""
    free = (
        device.id
        for device in node.devices
        if device.kind == "cuda" and device.state == "ok" and device.job is None
    )
    return next(free, "")


def _disjoint(pairs: Sequence[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Rounds in which no name comes twice, together all pairs."""
    open_pairs = list(pairs)
    while open_pairs:
        batch: list[tuple[str, str]] = []
        busy_names: set[str] = set()
        for pair in open_pairs:
            if not busy_names & set(pair):
                batch.append(pair)
                busy_names |= set(pair)
        open_pairs = [pair for pair in open_pairs if pair not in batch]
        yield batch


def _keep(first: str, second: str, answer: Told, backend: str) -> None:
    measurement = requests.Measured(
        [first, second], float(answer["latency"]), float(answer["bandwidth"]), backend
    )
    call(measurement, node_answers.Kept)


K = TypeVar("K")


def _side_by_side(work: Callable[[K], T], keys: Sequence[K]) -> dict[K, T]:
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        return dict(zip(keys, pool.map(work, keys), strict=True))


def _errand(node: str, name: str, limit: float, **fields: Any) -> Told:
    """What the server told; {"error"} where it came to nothing."""
    try:
        return call(
            requests.Errand(node, name, fields, limit), node_answers.ErrandResult, start=False
        ).answer
    except GpqError as error:
        return {"error": error.message}


def _ssh(name: str, node: NodeConfig) -> Check:
    """What ssh makes of the settings, ~/.ssh/config included. Connects to nothing."""
    target = Target(
        node.host, node.port, os.path.expanduser(node.identity), tuple(node.ssh or ["ssh"])
    )
    argv = [*target.argv("-G"), "--", target.host]
    try:
        result = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=SSH_SAYS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(
            "ssh",
            "fail",
            f"{argv[0]}: {error}",
            "install OpenSSH's client, or correct `ssh` in config.toml",
            name,
        )
    settings = dict(line.partition(" ")[::2] for line in result.stdout.splitlines())
    if result.returncode != 0 or "hostname" not in settings:
        why = (result.stderr.strip().splitlines() or [f"exit {result.returncode}"])[-1]
        return Check(
            "ssh",
            "fail",
            why,
            "correct ~/.ssh/config; `ssh -G HOST` shows what it makes of it",
            name,
        )
    jump = f", by {settings['proxyjump']}" if settings.get("proxyjump", "none") != "none" else ""
    return Check(
        "ssh",
        "ok",
        f"{settings.get('user', '')}@{settings['hostname']},"
        f" port {settings.get('port', '22')}{jump}",
        "",
        name,
    )
