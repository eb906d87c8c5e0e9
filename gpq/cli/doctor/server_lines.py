"""Turns answers of servers into lines of `gpq doctor`, each with a verdict and a fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpq.cli.doctor.state_checks import NETWORK
from gpq.cli.doctor.verdicts import Check
from gpq.rpc.node_answers import NodeView

Told = Mapping[str, Any]

LEAST_DISK_MIB, LOW_DISK_MIB = 200, 5 << 10
LEAST_INODES = 1000
LEAST_FILES = 4096
LEAST_LOCKED = 64 << 20  # bytes
LEAST_SHM_MIB = 1024
MOST_OFFSET = 2.0  # seconds
FIRST_PORT, LAST_PORT = 20_000, 32_700  # gpq's master ports
UNLIMITED = -1  # servers report it like this too
CONF = "`{}` in /etc/security/limits.conf, then log in again"


def reachability(node: NodeView) -> Check:
    """Does the server answer the daemon?"""
    if not node.answers:
        fix = (
            f"see `gpq daemon logs`, try `ssh` by hand, or `gpq nodes remove {node.name}` if it is"
            " gone"
        )
        return Check(
            "reach",
            "fail",
            f"does not answer: {node.reason or 'unknown reason'}",
            fix,
            node.name,
        )
    finding = "answers"
    if node.drained:
        finding += ", drained"
    if node.drained and node.reason:
        finding += f": {node.reason}"
    return Check("reach", "ok", finding, "", node.name)


def unknown_attempts(node: NodeView) -> list[Check]:
    """Attempts that a restored database does not know."""
    fix = (
        "nothing if it should continue. Otherwise end its process there, because no gpq command can"
    )
    return [
        Check("attempts", "warn", description, fix, node.name) for description in node.strangers
    ]


def damaged_files(node: NodeView) -> list[Check]:
    fix = (
        "gpq continues without them. The cause may be a full disk, a crash of the server, or"
        " another program that writes there"
    )
    return [Check("records", "warn", line, fix, node.name) for line in node.damage]


def of_itself(
    name: str, answer: Told, offset: float, uncertainty: float, files: int = UNLIMITED
) -> list[Check]:
    """From the answer to `examine`. `offset`: of its clock from ours in seconds, give or take
    `uncertainty`. `files`: how many this shell, and so its jobs, may open."""
    if "error" in answer:
        return [
            Check(
                "agent",
                "fail",
                str(answer["error"]),
                "see `gpq daemon logs`, and check that server for a hung disk",
                name,
            )
        ]
    agent = f"agent {str(answer['agent'])[:12] or 'as installed'}, protocol {answer['version']}"
    checks = [
        Check(
            "agent", "ok", f"{agent}, Python {answer['python']} at {answer['executable']}", "", name
        )
    ]
    checks.append(_clock(name, offset, uncertainty))
    checks += [_disk(name, disk) for disk in answer["disks"]]
    checks += [
        _files(name, files, answer["limits"]["nofile"][1]),
        _locked(name, answer),
        shared_memory(name, answer["shm_mib"]),
        _interfaces(name, answer),
        _ports(name, answer["ephemeral"]),
    ]
    conda = answer["conda"] or "no conda in the PATH of a login without a shell"
    return [
        *checks,
        Check("path", "ok", f"{conda} (scripts run with an absolute interpreter)", "", name),
    ]


def _clock(name: str, offset: float, uncertainty: float) -> Check:
    finding = (
        f"{abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} this machine (within"
        f" {uncertainty:.1f} s)"
    )
    if abs(offset) - uncertainty > MOST_OFFSET:
        return Check(
            "clock",
            "warn",
            finding,
            "timedatectl set-ntp true, on both. File dates are wrong otherwise. Leases do not mind",
            name,
        )
    return Check("clock", "ok", finding, "", name)


def _disk(name: str, disk: Told) -> Check:
    what, path = f"{disk['what']} disk", disk["path"]
    if "error" in disk:
        return Check(
            what, "fail", f"{path}: {disk['error']}", "check that its file system is mounted", name
        )
    free = f"{disk['free_mib'] / 1024:.1f} GiB"
    inodes = disk["inodes"]  # None if the file system does not count them
    if inodes is not None:
        free += f", {inodes} inodes"
    finding = f"{free} free at {path} ({disk['filesystem']})"
    room = f"make room there, or set `spool` in [nodes.{name}] to another disk"
    is_full = disk["free_mib"] < LEAST_DISK_MIB
    if is_full or (inodes is not None and inodes < LEAST_INODES):
        return Check(what, "fail", finding, room, name)
    if disk["filesystem"] in NETWORK and disk["what"] == "spool":
        fix = (
            f"set `spool` in [nodes.{name}] to a local disk, because the agent hangs when the"
            " network file system does"
        )
        return Check(what, "warn", finding, fix, name)
    if disk["free_mib"] < LOW_DISK_MIB:
        return Check(what, "warn", finding, room, name)
    return Check(what, "ok", finding, "", name)


def _files(name: str, shell_limit: int, hard_limit: int) -> Check:
    """A job has the limit of the shell that submits it, up to what its server allows."""
    limits = [limit for limit in (shell_limit, hard_limit) if limit != UNLIMITED]
    usual = min(limits, default="unlimited")
    line = f"open files: {usual} from this shell, at most {_amount(hard_limit)}"
    if 0 <= hard_limit < LEAST_FILES:
        return Check("nofile", "warn", line, CONF.format("* hard nofile 65536"), name)
    if 0 <= shell_limit < LEAST_FILES:
        return Check(
            "nofile",
            "warn",
            line,
            "`ulimit -n 65536` in the shell that submits, or in its .bashrc",
            name,
        )
    return Check("nofile", "ok", line, "", name)


def _locked(name: str, answer: Told) -> Check:
    """InfiniBand locks the memory that it sends from."""
    soft, hard = answer["limits"]["memlock"]
    line = f"locked memory: {_size(soft)}, at most {_size(hard)}"
    if answer["infiniband"] and 0 <= soft < LEAST_LOCKED:
        return Check("memlock", "fail", line, CONF.format("* - memlock unlimited"), name)
    return Check("memlock", "ok", line, "", name)


def _amount(number: int) -> str:
    return "unlimited" if number < 0 or number >= 1 << 60 else str(number)


def _size(number: int) -> str:
    if _amount(number) == "unlimited":
        return "unlimited"
    if number >= 10 << 20 or number % (1 << 20) == 0:
        return f"{number / (1 << 20):.0f} MiB"
    return f"{number >> 10} KiB"


def shared_memory(name: str, mib: int | None) -> Check:
    """`name`: the server, "" for this machine."""
    if mib is None:
        return Check(
            "shm",
            "warn",
            "no /dev/shm",
            "DataLoader workers and NCCL need it. Mount a tmpfs there",
            name,
        )
    finding = f"/dev/shm has {mib / 1024:.1f} GiB"
    if mib < LEAST_SHM_MIB:
        fix = (
            "DataLoader workers may crash. Use --shm-size for a container, or mount -o"
            " remount,size=8G /dev/shm"
        )
        return Check("shm", "warn", finding, fix, name)
    return Check("shm", "ok", finding, "", name)


def _interfaces(name: str, answer: Told) -> Check:
    interface_names = {
        interface["address"]: interface["name"] for interface in answer["interfaces"]
    }
    if not answer["addresses"]:
        fix = f"give it an address that others reach, and set `address` in [nodes.{name}]"
        return Check(
            "network", "warn", "only the loopback, so no other server can reach it", fix, name
        )
    return Check(
        "network",
        "ok",
        ", ".join(f"{interface_names[address]} {address}" for address in answer["addresses"]),
        "",
        name,
    )


def _ports(name: str, ephemeral: Sequence[int]) -> Check:
    first, last = ephemeral
    finding = (
        f"outgoing connections use {first} to {last}, jobs meet on {FIRST_PORT} to {LAST_PORT}"
    )
    if first <= LAST_PORT and last >= FIRST_PORT:
        return Check(
            "ports",
            "warn",
            finding,
            "sysctl -w net.ipv4.ip_local_port_range='32768 60999', otherwise ports clash",
            name,
        )
    return Check("ports", "ok", finding, "", name)
