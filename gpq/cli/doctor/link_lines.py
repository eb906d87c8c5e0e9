"""Verdicts of `gpq doctor` on what is between servers: versions, names, folders and the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpq.cli.doctor.server_lines import Told
from gpq.cli.doctor.verdicts import Check

SLOW = 100e6  # bytes a second: a network of 1 Gbit/s has 125e6


# -- several servers -------------------------------------------------------------------------------


def versions(told: Mapping[str, Told]) -> Check:
    """Of torch: replicas of one job must agree."""
    kinds: dict[str, list[str]] = {}
    for name in sorted(told):
        found = told[name]
        if "torch" in found:
            python = ".".join(str(found["python"]).split(".")[:2])
            nccl = f", NCCL {found['nccl']}" if found.get("nccl") else ""
            kinds.setdefault(f"Python {python}, torch {found['torch']}{nccl}", []).append(name)
    if len(kinds) > 1:
        said = "; ".join(f"{', '.join(names)}: {kind}" for kind, names in kinds.items())
        return Check(
            "versions", "fail", said, "install the same versions: replicas of one job must agree"
        )
    if not kinds:
        return Check(
            "versions",
            "warn",
            "no server told its torch",
            "see the lines above; jobs over several servers need it",
        )
    [(kind, names)] = kinds.items()
    return Check("versions", "ok", f"{kind} on {', '.join(names)}")


def host_names(told: Mapping[str, Told]) -> Check:
    """NCCL takes two servers of one name for one."""
    by: dict[str, dict[str, str]] = {}  # host name -> boot -> the first that is there
    for name in sorted(told):
        by.setdefault(str(told[name]["host"]), {}).setdefault(str(told[name]["boot"]), name)
    twice = [
        f"{', '.join(boots.values())} are all called {host}"
        for host, boots in by.items()
        if len(boots) > 1
    ]
    if twice:
        mend = "hostnamectl set-hostname NAME: NCCL takes them for one machine"
        return Check("hostnames", "warn", "; ".join(twice), mend)
    return Check("hostnames", "ok", ", ".join(sorted(by)))


def shared(groups: Sequence[Sequence[str]]) -> Check:
    """Which servers have one folder of checkpoints: `groups` of names."""
    said = "; ".join(
        f"{', '.join(names)} share one" if len(names) > 1 else f"{names[0]} has its own"
        for names in groups
    )
    return Check("files", "ok", f"folders of checkpoints: {said}")


def reached(
    source: str, target: str, addresses: Sequence[str], problems: Mapping[tuple[str, int], str]
) -> Check:
    """`problems`: by address and port what was in the way, "" for nothing. Any address will do,
    with all of its ports."""
    for address in addresses:
        if not any(why for (each, _), why in problems.items() if each == address):
            return Check("tcp", "ok", f"{source} -> {target} at {address}")
    open_ones = [f"{address}:{port}" for (address, port), why in problems.items() if not why]
    if open_ones:
        said = f"{source} -> {target}: only {', '.join(open_ones)} of {len(problems)} ports tried"
        mend = (
            f"a firewall lets some ports through; NCCL and gloo use any: on {target}, allow all TCP"
            f" from {source}"
        )
        return Check("tcp", "fail", said, mend)
    why = (
        "; ".join(f"{address}: {why}" for (address, _), why in list(problems.items())[:3])
        or "it has no address"
    )
    mend = (
        f"on {target}, allow all TCP from {source} (ufw allow from ADDRESS), or set `address` of"
        f" [nodes.{target}]"
    )
    return Check("tcp", "fail", f"{source} -> {target}: {why}", mend)


def all_reduce(first: str, second: str, told: Told, backend: str) -> Check:
    """What two ranks measured."""
    where = f"{first} - {second}"
    if "bandwidth" not in told:
        mend = (
            "NCCL_DEBUG=INFO in a job over both says more"
            if backend == "nccl"
            else "is a firewall between them?"
        )
        return Check("all-reduce", "fail", f"{where}: {told.get('error', 'no answer')}", mend)
    figures = f"{told['bandwidth'] / 1e6:.0f} MB/s, {told['latency'] * 1e3:.2f} ms"
    by = f" by {told['interface']}" if told.get("interface") else ""
    said = f"{where}: {figures} ({backend}{by})"
    if told["bandwidth"] < SLOW:
        mend = (
            "below 1 Gbit/s: another interface or cable; gpq knows now what jobs over both would"
            " lose"
        )
        return Check("all-reduce", "warn", said, mend)
    return Check("all-reduce", "ok", said)
