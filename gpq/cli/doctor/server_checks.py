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
        self.asked = python
        self.found: list[Check] = []
        self.torch: dict[str, Told] = {}
        self.addresses: dict[str, list[str]] = {}
        self.boots: dict[str, str] = {}
        self.open: dict[tuple[str, str], str] = {}  # (from, to) -> the address that works

    def lines(self) -> list[Check]:
        up = [name for name, node in self.nodes.items() if node.answers]
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # of this shell
        told = self._each_alone(up)
        for name, node in self.nodes.items():
            self.found.append(server_lines.reachability(node))
            self.found += server_lines.unknown_attempts(node)
            self.found += server_lines.damaged_files(node)
            if self._config(name).connector == "ssh":
                self.found.append(_ssh(name, self._config(name)))
            if name in told:
                facts, driver, offset, unsure = told[name]
                self.found += server_lines.of_itself(name, facts, offset, unsure, files)
                self.found.append(server_lines.gpus(node, driver))
                self.found.append(server_lines.torch(name, self._python(name), self.torch[name]))
        answering = {name: told[name][0] for name in up if "error" not in told[name][0]}
        if len(answering) > 1:
            self._together(answering)
        return self.found

    def _config(self, name: str) -> NodeConfig:
        return self.configs.get(name, NodeConfig())

    def _python(self, name: str) -> str:
        return environment.on_server(self.asked, self._config(name))

    def _each_alone(self, names: Sequence[str]) -> dict[str, tuple[Told, Told, float, float]]:
        self.show(f"looking at {len(names)} servers")
        done: list[str] = []

        def look(name: str) -> tuple[Told, Told, float, float]:
            begin = time.time()
            facts = _errand(name, "examine", EXAMINE)
            end = time.time()
            offset = float(facts.get("time", end)) - (begin + end) / 2
            driver = _errand(name, "driver", DRIVER)
            env = environment.kept(dict(os.environ), {})
            whole = _errand(name, "examine", TORCH, python=self._python(name), env=env)
            self.torch[name] = whole.get("torch", whole)
            done.append(name)
            self.show(f"looked at {len(done)} of {len(names)} servers")
            return facts, driver, offset, (end - begin) / 2

        return _side_by_side(look, names)

    # -- several of them ---------------------------------------------------------------------------

    def _together(self, told: Mapping[str, Told]) -> None:
        names = sorted(told)
        self.found += [
            link_lines.versions({name: self.torch[name] for name in names}),
            link_lines.host_names(told),
        ]
        self.found.append(link_lines.shared(self._shared(names)))
        for name in names:
            own = self.nodes[name].address
            self.addresses[name] = list(
                dict.fromkeys([*([own] if own else []), *told[name]["addresses"]])
            )
            self.boots[name] = str(told[name]["boot"])
        self._try_ports(names)
        self._measure(names)

    def _shared(self, names: Sequence[str]) -> list[list[str]]:
        """Groups of servers that see each other's mark in the folder of the checkpoints."""
        self.show("which servers share their files")
        tokens = {name: uuid.uuid4().hex for name in names}
        _side_by_side(lambda name: _errand(name, "mark", TCP, token=tokens[name]), names)
        seen = _side_by_side(
            lambda name: _errand(name, "seen", TCP, tokens=[*tokens.values()]), names
        )
        _side_by_side(lambda name: _errand(name, "unmark", TCP, token=tokens[name]), names)
        groups: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            groups.setdefault(tuple(sorted(seen[name].get("seen", [tokens[name]]))), []).append(
                name
            )
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
        heard = _side_by_side(
            lambda name: _errand(name, "listen", TCP, token=tokens[name], seconds=LISTENS), names
        )

        def reach(source: str) -> dict[str, dict[tuple[str, int], str]]:
            ends = [
                (target, address, port)
                for target in names
                if target != source
                for address in self._ways(source, target)
                for port in heard[target].get("ports", [])
            ]
            targets = [
                {"address": address, "port": port, "token": tokens[target]}
                for target, address, port in ends
            ]
            answer = _errand(source, "reach", TCP, targets=targets)
            problems = answer.get("problems", [str(answer.get("error", "no answer"))] * len(ends))
            found: dict[str, dict[tuple[str, int], str]] = {
                target: {} for target in names if target != source
            }
            for (target, address, port), problem in zip(ends, problems, strict=True):
                found[target][address, port] = problem
            return found

        for source, problems in _side_by_side(reach, names).items():
            for target, of_target in problems.items():
                ways = self._ways(source, target)
                check = link_lines.reached(source, target, ways, of_target)
                self.found.append(check)
                works = [
                    a for a in ways if not any(p for (each, _), p in of_target.items() if each == a)
                ]
                if check.verdict == "ok":
                    self.open[source, target] = works[0]

    def _measure(self, names: Sequence[str]) -> None:
        """An all-reduce between the two of each pair; no server takes part in two at once, so none
        disturbs another."""
        able = [name for name in names if "torch" in self.torch[name]]
        pairs = [
            pair for pair in combinations(able, 2) if pair in self.open and pair[::-1] in self.open
        ]
        if not pairs:
            why = "no two servers with torch reach each other"
            self.found.append(
                Check("all-reduce", "warn", f"not measured: {why}", "mend what stands above")
            )
        done = 0
        for together in _disjoint(pairs):
            answers = _side_by_side(lambda pair: self._all_reduce(*pair), together)
            for (first, second), (told, backend) in answers.items():
                self.found.append(link_lines.all_reduce(first, second, told, backend))
                if "bandwidth" in told:
                    _keep(first, second, told, backend)
            done += len(together)
            self.show(f"measured {done} of {len(pairs)} connections")

    def _all_reduce(self, first: str, second: str) -> tuple[Told, str]:
        devices = {name: _free_gpu(self.nodes[name]) for name in (first, second)}
        backend = (
            "nccl"
            if all(devices.values()) and all(self.torch[n].get("gpus") for n in devices)
            else "gloo"
        )
        port = _errand(first, "listen", TCP, token="x", seconds=0.01).get("ports", [0, 0])[1]
        common = {
            "address": self.open[second, first],
            "port": port,
            "backend": backend,
            "seconds": REDUCE - 10.0,
        }

        def rank(number: int) -> Told:
            name, other = (first, second) if number == 0 else (second, first)
            return _errand(
                name, "all-reduce", REDUCE, rank=number, peer=self.open[name, other],
                python=self._python(name), device=devices[name] if backend == "nccl" else "",
                env=environment.kept(dict(os.environ), {}), **common,
            )  # fmt: skip

        told = _side_by_side(rank, [0, 1])
        return (told[1] if "error" in told[1] else told[0]), backend


def _free_gpu(node: NodeView) -> str:
    """A GPU on which nobody is, "" where there is none."""
    free = (
        each.id
        for each in node.devices
        if each.kind == "cuda" and each.state == "ok" and each.job is None
    )
    return next(free, "")


def _disjoint(pairs: Sequence[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Rounds in which no name comes twice, together all pairs."""
    left = list(pairs)
    while left:
        chosen: list[tuple[str, str]] = []
        busy: set[str] = set()
        for pair in left:
            if not busy & set(pair):
                chosen.append(pair)
                busy |= set(pair)
        left = [pair for pair in left if pair not in chosen]
        yield chosen


def _keep(first: str, second: str, told: Told, backend: str) -> None:
    measured = requests.Measured(
        [first, second], float(told["latency"]), float(told["bandwidth"]), backend
    )
    call(measured, node_answers.Kept)


K = TypeVar("K")


def _side_by_side(work: Callable[[K], T], things: Sequence[K]) -> dict[K, T]:
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        return dict(zip(things, pool.map(work, things), strict=True))


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
        done = subprocess.run(
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
    said = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    if done.returncode != 0 or "hostname" not in said:
        why = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        return Check(
            "ssh",
            "fail",
            why,
            "correct ~/.ssh/config; `ssh -G HOST` shows what it makes of it",
            name,
        )
    jump = f", by {said['proxyjump']}" if said.get("proxyjump", "none") != "none" else ""
    return Check(
        "ssh",
        "ok",
        f"{said.get('user', '')}@{said['hostname']}, port {said.get('port', '22')}{jump}",
        "",
        name,
    )
