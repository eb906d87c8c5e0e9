"""`gpq doctor` for servers: asks all of them at the same time, with a time limit for each, and then
tries what is between them: shared folders, connections, and an all-reduce over each connection.
The verdicts about one server are in `server_lines`."""

from __future__ import annotations

import os
import resource
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpq_agent import wire

from gpq import config
from gpq.cli.doctor import server_lines
from gpq.cli.doctor.server_lines import Told, errand, job_environment, nccl, side_by_side
from gpq.client.connection import call
from gpq.config import NodeConfig
from gpq.connectors.ssh import Target
from gpq.options import environment
from gpq.options.json_answers import CheckView as Check
from gpq.rpc import node_answers, requests
from gpq.rpc.node_answers import NodeView

SSH_LIMIT = 5.0  # seconds

EXAMINE = 20.0  # seconds
TCP, REDUCE = 15.0, 75.0  # seconds
LISTENS = 40.0  # seconds in which all others may try
LOOPBACK = "127.0.0.1"
GpuLines = dict[str, list[wire.GpuLine]]  # by server
# address and port -> why there is no connection, "" if there is one
Problems = Mapping[tuple[str, int], str]
SLOW = 100e6  # bytes per second. A network of 1 Gbit/s has 125e6


def of_servers(names: Sequence[str], python: str, show: Callable[[str], None]) -> list[Check]:
    """Lines about these servers, or about all. Raises GpqError if the daemon cannot be reached or
    does not know a server."""
    nodes = call(requests.Nodes(list(names)), node_answers.NodeList).nodes
    checkup = _Checkup(nodes, python, show)
    try:
        return checkup.lines()
    finally:
        show("")


def gpu_report(names: Sequence[str], python: str, show: Callable[[str], None]) -> GpuLines:
    """What `gpq doctor --gpu` says of each server, and of this machine ("") if none is named.
    Raises GpqError if the daemon cannot be reached or does not know a server."""
    show("testing the GPUs")
    try:
        if not names:
            interpreter = environment.interpreter(python, dict(os.environ))
            answer = server_lines.here("gpu", wire.GPU_LIMIT, python=interpreter)
            return {"": _gpu_lines(answer)}
        nodes = call(requests.Nodes(list(names)), node_answers.NodeList).nodes
        configs = config.load().nodes

        def there(name: str) -> list[wire.GpuLine]:
            interpreter = environment.on_server(python, configs.get(name, NodeConfig()))
            return _gpu_lines(
                errand(name, "gpu", wire.GPU_LIMIT, python=interpreter, env=job_environment())
            )

        return side_by_side(there, [node.name for node in nodes])
    finally:
        show("")


def _gpu_lines(answer: Told) -> list[wire.GpuLine]:
    """One line that fails if there is no answer."""
    if "lines" in answer:
        return [wire.GpuLine(**row) for row in answer["lines"]]
    fix = "try nvidia-smi and sudo dmesg | grep -i nvrm, and reboot if nothing else helps"
    return [wire.GpuLine("report", "FAIL", str(answer.get("error", "no answer")), fix=fix)]


@dataclass(frozen=True, slots=True)
class Server:
    """What one server reported. `python`: the interpreter of scripts there. `offset`: of its clock
    from ours in seconds, give or take `uncertainty`."""

    node: NodeView
    python: str
    facts: Told
    driver: Told
    torch: Told
    offset: float
    uncertainty: float

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def boot(self) -> str:
        """The same for two servers that are one machine."""
        return str(self.facts["boot"])

    @property
    def addresses(self) -> list[str]:
        addresses = [self.node.address, *self.facts["addresses"]]
        return list(dict.fromkeys(filter(None, addresses)))


class _Checkup:
    def __init__(self, nodes: Sequence[NodeView], python: str, show: Callable[[str], None]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.configs = config.load().nodes
        self.show = show
        self.python = python
        self.open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # limit of this shell

    def lines(self) -> list[Check]:
        servers = self._examine([name for name, node in self.nodes.items() if node.answers])
        checks: list[Check] = []
        for name, node in self.nodes.items():
            settings = self._config(name)
            checks.append(server_lines.reachability(node))
            checks += server_lines.unknown_attempts(node)
            checks += server_lines.damaged_files(node)
            if settings.connector == "ssh":
                checks.append(ssh(name, settings))
            if name in servers:
                server = servers[name]
                if "error" not in server.facts:
                    checks.append(server_lines.clock(name, server.offset, server.uncertainty))
                checks += server_lines.of_itself(name, server.facts, self.open_files)
                checks.append(gpus(node, server.driver))
                checks.append(server_lines.torch(name, server.python, server.torch))
        examined = [server for server in servers.values() if "error" not in server.facts]
        if len(examined) > 1:
            checks += _Links(examined, self.show).lines()
        return checks

    def _config(self, name: str) -> NodeConfig:
        return self.configs.get(name, NodeConfig())

    def _examine(self, names: Sequence[str]) -> dict[str, Server]:
        self.show(f"checking {len(names)} servers")
        finished_names: list[str] = []

        def look(name: str) -> Server:
            python = environment.on_server(self.python, self._config(name))
            begin = time.time()
            facts = errand(name, "examine", EXAMINE)
            end = time.time()
            offset = float(facts.get("time", end)) - (begin + end) / 2
            driver = errand(name, "driver", server_lines.DRIVER)
            whole = errand(
                name,
                "examine",
                server_lines.TORCH,
                python=python,
                env=job_environment(),
            )
            finished_names.append(name)
            self.show(f"checked {len(finished_names)} of {len(names)} servers")
            torch, uncertainty = whole.get("torch", whole), (end - begin) / 2
            return Server(self.nodes[name], python, facts, driver, torch, offset, uncertainty)

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


def gpus(node: NodeView, look: Told) -> Check:
    """Which of its GPUs are faulty or in use, from what the daemon knows."""
    cards = [device for device in node.devices if device.kind == "cuda"]
    faults = [
        f"GPU {card.index} {card.state}: {card.reason}"
        for card in cards
        if card.state not in ("ok", "foreign")
    ]
    others = [
        f"GPU {card.index}: {process.user} (pid {process.pid}, {process.name})"
        for card in cards
        for process in card.processes
        if process.job is None
    ]
    return server_lines.gpus(node.name, look, faults, others)


class _Links:
    """The lines about several servers together."""

    def __init__(self, servers: Sequence[Server], show: Callable[[str], None]) -> None:
        self.names = sorted(server.name for server in servers)
        self.servers = {server.name: server for server in servers}
        self.show = show
        self.routes: dict[tuple[str, str], str] = {}  # (from, to) -> the address that works

    def lines(self) -> list[Check]:
        return [
            versions({name: self.servers[name].torch for name in self.names}),
            host_names({name: self.servers[name].facts for name in self.names}),
            shared_files(self._shared_folders()),
            *self._connections(),
            *self._all_reduces(),
        ]

    # -- files -------------------------------------------------------------------------------------

    def _shared_folders(self) -> list[list[str]]:
        """Groups of servers that see each other's mark in the checkpoint folder."""
        self.show("checking which servers share their files")
        tokens = self._tokens()
        side_by_side(lambda name: errand(name, "mark", TCP, token=tokens[name]), self.names)
        sightings = side_by_side(
            lambda name: errand(name, "seen", TCP, tokens=[*tokens.values()]), self.names
        )
        side_by_side(lambda name: errand(name, "unmark", TCP, token=tokens[name]), self.names)
        groups: dict[tuple[str, ...], list[str]] = {}
        for name in self.names:
            marks = sightings[name].get("seen", [tokens[name]])
            groups.setdefault(tuple(sorted(marks)), []).append(name)
        return list(groups.values())

    def _tokens(self) -> dict[str, str]:
        return {name: uuid.uuid4().hex for name in self.names}

    # -- connections -------------------------------------------------------------------------------

    def _connections(self) -> list[Check]:
        """From each server to each other, on a port of both ranges that jobs use."""
        self.show(f"trying connections between {len(self.names)} servers")
        tokens = self._tokens()
        listeners = side_by_side(
            lambda name: errand(name, "listen", TCP, token=tokens[name], seconds=LISTENS),
            self.names,
        )
        outcomes = side_by_side(lambda name: self._reach(name, listeners, tokens), self.names)
        checks = []
        for source, problems_by_target in outcomes.items():
            for target, problems in problems_by_target.items():
                ways = self._ways(source, target)
                checks.append(tcp_line(source, target, ways, problems))
                open_ways = [address for address in ways if is_open(address, problems)]
                if open_ways:
                    self.routes[source, target] = open_ways[0]
        return checks

    def _reach(
        self, source: str, listeners: Mapping[str, Told], tokens: Mapping[str, str]
    ) -> dict[str, dict[tuple[str, int], str]]:
        """Target -> address and port -> the problem, "" if it works."""
        peers = [name for name in self.names if name != source]
        ends = [
            (target, address, port)
            for target in peers
            for address in self._ways(source, target)
            for port in listeners[target].get("ports", [])
        ]
        targets = [
            {"address": address, "port": port, "token": tokens[target]}
            for target, address, port in ends
        ]
        answer = errand(source, "reach", TCP, targets=targets)
        problems = answer.get("problems", [str(answer.get("error", "no answer"))] * len(ends))
        outcomes: dict[str, dict[tuple[str, int], str]] = {target: {} for target in peers}
        for (target, address, port), problem in zip(ends, problems, strict=True):
            outcomes[target][address, port] = problem
        return outcomes

    def _ways(self, source: str, target: str) -> list[str]:
        """Addresses that a job on both would try, in its order. Two servers that are one machine
        need no network, unless they are in separate containers."""
        boot, addresses = self.servers[source].boot, self.servers[target].addresses
        if boot and boot == self.servers[target].boot:
            addresses = [LOOPBACK, *addresses]
        return list(dict.fromkeys(addresses))

    # -- all-reduce --------------------------------------------------------------------------------

    def _all_reduces(self) -> list[Check]:
        """One for each pair. No server takes part in two at once, so none disturbs another."""
        names = [name for name in self.names if "torch" in self.servers[name].torch]
        pairs = [
            pair
            for pair in combinations(names, 2)
            if pair in self.routes and pair[::-1] in self.routes  # connected both ways
        ]
        if not pairs:
            finding = "not measured, because no two servers with torch reach each other"
            return [Check("all-reduce", "warn", finding, "fix the lines above")]
        checks: list[Check] = []
        for batch in disjoint(pairs):
            answers = side_by_side(lambda pair: self._all_reduce(*pair), batch)
            for (first, second), (answer, backend) in answers.items():
                checks.append(all_reduce(first, second, answer, backend))
                if "bandwidth" in answer:
                    latency, bandwidth = float(answer["latency"]), float(answer["bandwidth"])
                    call(
                        requests.Measured([first, second], latency, bandwidth, backend),
                        node_answers.Kept,
                    )
            self.show(f"measured {len(checks)} of {len(pairs)} connections")
        return checks

    def _all_reduce(self, first: str, second: str) -> tuple[Told, str]:
        """What the two ranks reported, and the backend."""
        devices = {}
        for name in (first, second):
            free_gpus = (
                device.id
                for device in self.servers[name].node.devices
                if device.kind == "cuda" and device.state == "ok" and device.job is None
            )
            devices[name] = next(free_gpus, "")
        has_gpus = all(self.servers[name].torch.get("gpus") for name in devices)
        backend = "nccl" if has_gpus and all(devices.values()) else "gloo"
        listener = errand(first, "listen", TCP, token="x", seconds=0.01)
        common = {
            "address": self.routes[second, first],
            "port": listener.get("ports", [0, 0])[1],
            "backend": backend,
            "seconds": REDUCE - 10.0,
        }

        def rank(number: int) -> Told:
            name, peer = ((first, second), (second, first))[number]
            return errand(
                name, "all-reduce", REDUCE, rank=number, peer=self.routes[name, peer],
                python=self.servers[name].python,
                device=devices[name] if backend == "nccl" else "",
                env=job_environment(), **common,
            )  # fmt: skip

        answers = side_by_side(rank, [0, 1])
        outcome = answers[0]
        if "error" in answers[1]:
            outcome = answers[1]
        return outcome, backend


def disjoint(pairs: Sequence[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """All pairs, in rounds in which no name occurs twice."""
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


def versions(answers: Mapping[str, Told]) -> Check:
    """Is torch the same everywhere? Replicas of one job must agree."""
    kinds: dict[str, list[str]] = {}
    for name in sorted(answers):
        answer = answers[name]
        if "torch" in answer:
            python = ".".join(str(answer["python"]).split(".")[:2])
            kind = f"Python {python}, torch {answer['torch']}{nccl(answer)}"
            kinds.setdefault(kind, []).append(name)
    if len(kinds) > 1:
        finding = ", but ".join(f"{kind} on {', '.join(names)}" for kind, names in kinds.items())
        fix = "install the same versions, because replicas of one job must agree"
        return Check("versions", "fail", finding, fix)
    if not kinds:
        fix = "see the lines above. Jobs on several servers need it"
        return Check("versions", "warn", "no server reported its torch version", fix)
    [(kind, names)] = kinds.items()
    return Check("versions", "ok", f"{kind} on {', '.join(names)}")


def host_names(answers: Mapping[str, Told]) -> Check:
    """NCCL takes two servers with the same name for one."""
    hosts: dict[str, dict[str, str]] = {}  # host name -> boot -> its first server
    for name in sorted(answers):
        hosts.setdefault(str(answers[name]["host"]), {}).setdefault(
            str(answers[name]["boot"]), name
        )
    clashes = [
        f"{', '.join(boots.values())} all have the host name {host}"
        for host, boots in hosts.items()
        if len(boots) > 1
    ]
    if clashes:
        fix = "hostnamectl set-hostname NAME, because NCCL takes them for one machine"
        return Check("hostnames", "warn", ", ".join(clashes), fix)
    return Check("hostnames", "ok", ", ".join(sorted(hosts)))


def shared_files(groups: Sequence[Sequence[str]]) -> Check:
    """Which servers share a checkpoint folder. `groups`: names of servers."""
    finding = ", ".join(
        f"{' and '.join(names)} share one" if len(names) > 1 else f"{names[0]} has its own"
        for names in groups
    )
    return Check("files", "ok", f"checkpoint folders: {finding}")


def is_open(address: str, problems: Problems) -> bool:
    """Does a connection to all of its ports work?"""
    return not any(problem for (tried, _), problem in problems.items() if tried == address)


def tcp_line(source: str, target: str, addresses: Sequence[str], problems: Problems) -> Check:
    """One address is enough, but all of its ports must work."""
    for address in addresses:
        if is_open(address, problems):
            return Check("tcp", "ok", f"{source} -> {target} at {address}")
    open_ends = [
        f"{address}:{port}" for (address, port), problem in problems.items() if not problem
    ]
    if open_ends:
        finding = f"{source} -> {target}: of {len(problems)} ports only {', '.join(open_ends)}"
        fix = (
            f"a firewall opens only some ports, but NCCL and gloo use any. On {target}, allow all"
            f" TCP from {source}"
        )
        return Check("tcp", "fail", finding, fix)
    problem = (
        ", ".join(f"{address}: {problem}" for (address, _), problem in list(problems.items())[:3])
        or "it has no address"
    )
    fix = (
        f"on {target}, allow all TCP from {source} (ufw allow from ADDRESS), or set `address` in"
        f" [nodes.{target}]"
    )
    return Check("tcp", "fail", f"{source} -> {target}: {problem}", fix)


def all_reduce(first: str, second: str, answer: Told, backend: str) -> Check:
    """What two ranks measured."""
    servers = f"{first} - {second}"
    if "bandwidth" not in answer:
        fix = "check for a firewall between them"
        if backend == "nccl":
            fix = "run a job on both with NCCL_DEBUG=INFO to see more"
        return Check("all-reduce", "fail", f"{servers}: {answer.get('error', 'no answer')}", fix)
    figures = f"{answer['bandwidth'] / 1e6:.0f} MB/s, {answer['latency'] * 1e3:.2f} ms"
    means = backend
    if answer.get("interface"):
        means += f" over {answer['interface']}"
    finding = f"{servers}: {figures} ({means})"
    if answer["bandwidth"] < SLOW:
        fix = (
            "below 1 Gbit/s. Try another interface or cable. gpq now takes this into account"
            " for jobs on both"
        )
        return Check("all-reduce", "warn", finding, fix)
    return Check("all-reduce", "ok", finding)
