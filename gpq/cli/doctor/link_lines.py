"""Verdicts of `gpq doctor` about several servers: versions, names, folders and the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpq.cli.doctor.server_gpu_lines import nccl
from gpq.cli.doctor.server_lines import Told
from gpq.cli.doctor.verdicts import Check

# address and port -> why there is no connection, "" if there is one
Problems = Mapping[tuple[str, int], str]
SLOW = 100e6  # bytes per second. A network of 1 Gbit/s has 125e6


# -- several servers -------------------------------------------------------------------------------


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
        return Check(
            "versions",
            "fail",
            finding,
            "install the same versions, because replicas of one job must agree",
        )
    if not kinds:
        return Check(
            "versions",
            "warn",
            "no server reported its torch version",
            "see the lines above. Jobs on several servers need it",
        )
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


def shared(groups: Sequence[Sequence[str]]) -> Check:
    """Which servers share a checkpoint folder. `groups`: names of servers."""
    finding = ", ".join(
        f"{' and '.join(names)} share one" if len(names) > 1 else f"{names[0]} has its own"
        for names in groups
    )
    return Check("files", "ok", f"checkpoint folders: {finding}")


def is_open(address: str, problems: Problems) -> bool:
    """Does a connection to all of its ports work?"""
    return not any(problem for (tried, _), problem in problems.items() if tried == address)


def reached(source: str, target: str, addresses: Sequence[str], problems: Problems) -> Check:
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
