"""What servers told -> lines of `gpq doctor`: a verdict and a fix for each. Pure: asks nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpq.cli.doctor.state_checks import NETWORK
from gpq.cli.doctor.verdicts import Check
from gpq.rpc.node_answers import DeviceView, NodeView

Told = Mapping[str, Any]

LEAST_DISK_MIB, LOW_DISK_MIB = 200, 5 << 10
LEAST_INODES = 1000
LEAST_FILES = 4096
LEAST_LOCKED = 64 << 20  # bytes
LEAST_SHM_MIB = 1024
MOST_OFFSET = 2.0  # seconds
FIRST_PORT, LAST_PORT = 20_000, 32_700  # of gpq's master ports
UNLIMITED = -1  # also of what a server tells
CONF = "`{}` in /etc/security/limits.conf, then log in again"


def reachability(node: NodeView) -> Check:
    """Does the daemon hear of it?"""
    if not node.answers:
        fix = (
            f"`gpq daemon logs` says more; `ssh` there by hand; `gpq nodes remove {node.name}`"
            " where it is gone for good"
        )
        return Check(
            "reach",
            "fail",
            f"does not answer: {node.reason or 'no reason is known'}",
            fix,
            node.name,
        )
    reason = f": {node.reason}" if node.reason else ""
    drain_note = f", drained{reason}" if node.drained else ""
    return Check("reach", "ok", f"answers{drain_note}", "", node.name)


def unknown_attempts(node: NodeView) -> list[Check]:
    """Of a database that was restored from a copy."""
    fix = "nothing where it shall go on; else end its process there: no gpq command knows it"
    return [
        Check("attempts", "warn", description, fix, node.name) for description in node.strangers
    ]


def damaged_files(node: NodeView) -> list[Check]:
    fix = (
        "gpq goes on without them: a full disk, a crash of the server, or a program that writes"
        " there may be why"
    )
    return [Check("records", "warn", line, fix, node.name) for line in node.damage]


def of_itself(
    name: str, answer: Told, offset: float, uncertainty: float, files: int = UNLIMITED
) -> list[Check]:
    """From what `examine` told. `offset`: of its clock against ours, seconds, known to within
    `uncertainty`; `files`: that may be open in this shell, and so in its jobs."""
    if "error" in answer:
        return [
            Check(
                "agent",
                "fail",
                str(answer["error"]),
                "`gpq daemon logs`; is a disk of that server hung?",
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
        _shm(name, answer["shm_mib"]),
        _interfaces(name, answer),
        _ports(name, answer["ephemeral"]),
    ]
    conda = answer["conda"] or "no conda in PATH of a login without a shell"
    return [
        *checks,
        Check("path", "ok", f"{conda}; scripts run with an absolute interpreter", "", name),
    ]


def _clock(name: str, offset: float, uncertainty: float) -> Check:
    finding = (
        f"{abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} this machine's (within"
        f" {uncertainty:.1f} s)"
    )
    if abs(offset) - uncertainty > MOST_OFFSET:
        return Check(
            "clock",
            "warn",
            finding,
            "timedatectl set-ntp true, on both; leases do not mind, file dates do",
            name,
        )
    return Check("clock", "ok", finding, "", name)


def _disk(name: str, disk: Told) -> Check:
    what, path = f"{disk['what']} disk", disk["path"]
    if "error" in disk:
        return Check(what, "fail", f"{path}: {disk['error']}", "is its file system mounted?", name)
    inodes = f", {disk['inodes']} inodes" if disk["inodes"] is not None else ""
    finding = f"{disk['free_mib'] / 1024:.1f} GiB{inodes} free at {path} ({disk['filesystem']})"
    room = f"make room there, or set `spool` of [nodes.{name}] to another disk"
    if disk["free_mib"] < LEAST_DISK_MIB or (
        disk["inodes"] is not None and disk["inodes"] < LEAST_INODES
    ):
        return Check(what, "fail", finding, room, name)
    if disk["filesystem"] in NETWORK and disk["what"] == "spool":
        fix = (
            f"set `spool` of [nodes.{name}] to a local disk: when the network file system hangs, so"
            " does the agent"
        )
        return Check(what, "warn", finding, fix, name)
    if disk["free_mib"] < LOW_DISK_MIB:
        return Check(what, "warn", finding, room, name)
    return Check(what, "ok", finding, "", name)


def _files(name: str, shell_limit: int, hard_limit: int) -> Check:
    """A job has the limit of the shell that submits it, as far as its server allows that."""
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
    """InfiniBand locks what it sends."""
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
    return (
        f"{number / (1 << 20):.0f} MiB"
        if number >= 10 << 20 or number % (1 << 20) == 0
        else f"{number >> 10} KiB"
    )


def _shm(name: str, mib: int | None) -> Check:
    if mib is None:
        return Check(
            "shm",
            "warn",
            "no /dev/shm",
            "data loaders with workers and NCCL need it: mount a tmpfs there",
            name,
        )
    fix = (
        "data loaders with workers may die: --shm-size of the container, or mount -o"
        " remount,size=8G /dev/shm"
    )
    is_small = mib < LEAST_SHM_MIB
    return Check(
        "shm",
        "warn" if is_small else "ok",
        f"/dev/shm has {mib / 1024:.1f} GiB",
        fix if is_small else "",
        name,
    )


def _interfaces(name: str, answer: Told) -> Check:
    interface_names = {
        interface["address"]: interface["name"] for interface in answer["interfaces"]
    }
    if not answer["addresses"]:
        fix = f"give it an address that others reach, and set `address` of [nodes.{name}]"
        return Check(
            "network", "warn", "only the loopback: no other server can reach it", fix, name
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
        f"outgoing connections take {first} to {last}, jobs meet on {FIRST_PORT} to {LAST_PORT}"
    )
    if first <= LAST_PORT and last >= FIRST_PORT:
        return Check(
            "ports",
            "warn",
            finding,
            "sysctl -w net.ipv4.ip_local_port_range='32768 60999': else ports clash",
            name,
        )
    return Check("ports", "ok", finding, "", name)


def gpus(node: NodeView, answer: Told) -> Check:
    """Driver, GPUs, and who is on them."""
    name = node.name
    if answer.get("error"):
        return Check(
            "gpus",
            "fail",
            str(answer["error"]),
            "nvidia-smi there; sudo dmesg | grep -i nvrm; at last a reboot",
            name,
        )
    cards = [device for device in node.devices if device.kind == "cuda"]
    notice = str(answer.get("notice") or "")
    if not cards:
        return _without_gpus(node, notice)
    finding = f"{len(cards)} x {cards[0].type}, driver {answer.get('driver') or 'not known'}"
    faults = [
        f"GPU {card.index} {card.state}: {card.reason}"
        for card in cards
        if card.state not in ("ok", "foreign")
    ]
    if faults:
        fix = "sudo dmesg | grep -i xid there says more; a lost GPU needs a reboot"
        return Check("gpus", "fail", "; ".join([finding, *faults]), fix, name)
    foreign_processes = _foreign_processes(cards)
    if foreign_processes:
        finding = "; ".join([finding, *foreign_processes[:6]])
        fix = "gpq leaves those GPUs alone, and takes them when free"
        return Check("gpus", "warn", finding, fix, name)
    if notice:
        fix = "jobs run on the others all the same"
        return Check("gpus", "warn", f"{finding}; {notice}", fix, name)
    return Check("gpus", "ok", finding, "", name)


def _without_gpus(node: NodeView, notice: str) -> Check:
    finding = "no NVIDIA GPU"
    if node.devices:
        finding += f", {len(node.devices)} CPU slots"
    if notice:
        finding += f"; {notice}"
        return Check("gpus", "warn", finding, "nvidia-smi there says more", node.name)
    return Check("gpus", "ok", finding, "", node.name)


def _foreign_processes(cards: Sequence[DeviceView]) -> list[str]:
    """Of no job of gpq's."""
    return [
        f"GPU {card.index}: {process.user} (pid {process.pid}, {process.name})"
        for card in cards
        for process in card.processes
        if process.job is None
    ]


def torch(name: str, python: str, answer: Told) -> Check:
    if "torch" in answer:
        nccl = f", NCCL {answer['nccl']}" if answer.get("nccl") else ""
        finding = (
            f"{answer['torch']} in Python {answer['python']} at {python} sees {answer['gpus']} CUDA"
            f" GPUs{nccl}"
        )
        return Check("torch", "ok", finding, "", name)
    fix = (
        f"make the environment there too, or set script_python of [nodes.{name}]; commands need"
        " none"
    )
    return Check("torch", "warn", f"{python}: {answer.get('error', 'no answer')}", fix, name)
