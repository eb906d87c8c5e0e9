"""What servers told -> lines of `gpq doctor`: a verdict and a fix for each. Pure: asks nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpq.cli.doctor.checks import NETWORK
from gpq.cli.doctor.verdicts import Check
from gpq.rpc.node_answers import NodeView

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
        mend = (
            f"`gpq daemon logs` says more; `ssh` there by hand; `gpq nodes remove {node.name}`"
            " where it is gone for good"
        )
        return Check(
            "reach",
            "fail",
            f"does not answer: {node.reason or 'no reason is known'}",
            mend,
            node.name,
        )
    reason = f": {node.reason}" if node.reason else ""
    drained = f", drained{reason}" if node.drained else ""
    return Check("reach", "ok", f"answers{drained}", "", node.name)


def unknown_attempts(node: NodeView) -> list[Check]:
    """Of a database that was restored from a copy."""
    mend = "nothing where it shall go on; else end its process there: no gpq command knows it"
    return [Check("attempts", "warn", told, mend, node.name) for told in node.strangers]


def damaged_files(node: NodeView) -> list[Check]:
    mend = (
        "gpq goes on without them: a full disk, a crash of the server, or a program that writes"
        " there may be why"
    )
    return [Check("records", "warn", line, mend, node.name) for line in node.damage]


def of_itself(
    name: str, told: Told, offset: float, unsure: float, files: int = UNLIMITED
) -> list[Check]:
    """From what `examine` told. `offset`: of its clock against ours, seconds, known to within
    `unsure`; `files`: that may be open in this shell, and so in its jobs."""
    if "error" in told:
        return [
            Check(
                "agent",
                "fail",
                str(told["error"]),
                "`gpq daemon logs`; is a disk of that server hung?",
                name,
            )
        ]
    agent = f"agent {str(told['agent'])[:12] or 'as installed'}, protocol {told['version']}"
    found = [
        Check("agent", "ok", f"{agent}, Python {told['python']} at {told['executable']}", "", name)
    ]
    found.append(_clock(name, offset, unsure))
    found += [_disk(name, disk) for disk in told["disks"]]
    found += [
        _files(name, files, told["limits"]["nofile"][1]),
        _locked(name, told),
        _shm(name, told["shm_mib"]),
        _interfaces(name, told),
        _ports(name, told["ephemeral"]),
    ]
    conda = told["conda"] or "no conda in PATH of a login without a shell"
    return [
        *found,
        Check("path", "ok", f"{conda}; scripts run with an absolute interpreter", "", name),
    ]


def _clock(name: str, offset: float, unsure: float) -> Check:
    said = (
        f"{abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} this machine's (within"
        f" {unsure:.1f} s)"
    )
    if abs(offset) - unsure > MOST_OFFSET:
        return Check(
            "clock",
            "warn",
            said,
            "timedatectl set-ntp true, on both; leases do not mind, file dates do",
            name,
        )
    return Check("clock", "ok", said, "", name)


def _disk(name: str, disk: Told) -> Check:
    what, path = f"{disk['what']} disk", disk["path"]
    if "error" in disk:
        return Check(what, "fail", f"{path}: {disk['error']}", "is its file system mounted?", name)
    inodes = f", {disk['inodes']} inodes" if disk["inodes"] is not None else ""
    said = f"{disk['free_mib'] / 1024:.1f} GiB{inodes} free at {path} ({disk['filesystem']})"
    room = f"make room there, or set `spool` of [nodes.{name}] to another disk"
    if disk["free_mib"] < LEAST_DISK_MIB or (
        disk["inodes"] is not None and disk["inodes"] < LEAST_INODES
    ):
        return Check(what, "fail", said, room, name)
    if disk["filesystem"] in NETWORK and disk["what"] == "spool":
        mend = (
            f"set `spool` of [nodes.{name}] to a local disk: when the network file system hangs, so"
            " does the agent"
        )
        return Check(what, "warn", said, mend, name)
    if disk["free_mib"] < LOW_DISK_MIB:
        return Check(what, "warn", said, room, name)
    return Check(what, "ok", said, "", name)


def _files(name: str, shell: int, most: int) -> Check:
    """A job has the limit of the shell that submits it, as far as its server allows that."""
    ends = [limit for limit in (shell, most) if limit != UNLIMITED]
    line = f"open files: {min(ends, default='unlimited')} from this shell, at most {_amount(most)}"
    if 0 <= most < LEAST_FILES:
        return Check("nofile", "warn", line, CONF.format("* hard nofile 65536"), name)
    if 0 <= shell < LEAST_FILES:
        return Check(
            "nofile",
            "warn",
            line,
            "`ulimit -n 65536` in the shell that submits, or in its .bashrc",
            name,
        )
    return Check("nofile", "ok", line, "", name)


def _locked(name: str, told: Told) -> Check:
    """InfiniBand locks what it sends."""
    soft, hard = told["limits"]["memlock"]
    line = f"locked memory: {_size(soft)}, at most {_size(hard)}"
    if told["infiniband"] and 0 <= soft < LEAST_LOCKED:
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
    mend = (
        "data loaders with workers may die: --shm-size of the container, or mount -o"
        " remount,size=8G /dev/shm"
    )
    is_small = mib < LEAST_SHM_MIB
    return Check(
        "shm",
        "warn" if is_small else "ok",
        f"/dev/shm has {mib / 1024:.1f} GiB",
        mend if is_small else "",
        name,
    )


def _interfaces(name: str, told: Told) -> Check:
    by = {one["address"]: one["name"] for one in told["interfaces"]}
    if not told["addresses"]:
        mend = f"give it an address that others reach, and set `address` of [nodes.{name}]"
        return Check(
            "network", "warn", "only the loopback: no other server can reach it", mend, name
        )
    return Check(
        "network", "ok", ", ".join(f"{by[each]} {each}" for each in told["addresses"]), "", name
    )


def _ports(name: str, ephemeral: Sequence[int]) -> Check:
    first, last = ephemeral
    said = f"outgoing connections take {first} to {last}, jobs meet on {FIRST_PORT} to {LAST_PORT}"
    if first <= LAST_PORT and last >= FIRST_PORT:
        return Check(
            "ports",
            "warn",
            said,
            "sysctl -w net.ipv4.ip_local_port_range='32768 60999': else ports clash",
            name,
        )
    return Check("ports", "ok", said, "", name)


def gpus(node: NodeView, told: Told) -> Check:
    """Driver, GPUs, and who is on them."""
    name = node.name
    if told.get("error"):
        return Check(
            "gpus",
            "fail",
            str(told["error"]),
            "nvidia-smi there; sudo dmesg | grep -i nvrm; at last a reboot",
            name,
        )
    cards = [device for device in node.devices if device.kind == "cuda"]
    notice = str(told.get("notice") or "")
    if not cards:
        slots = f", {len(node.devices)} CPU slots" if node.devices else ""
        said = f"no NVIDIA GPU{slots}"
        if notice:
            return Check("gpus", "warn", f"{said}; {notice}", "nvidia-smi there says more", name)
        return Check("gpus", "ok", said, "", name)
    said = f"{len(cards)} x {cards[0].type}, driver {told.get('driver') or 'not known'}"
    bad = [
        f"GPU {each.index} {each.state}: {each.reason}"
        for each in cards
        if each.state not in ("ok", "foreign")
    ]
    if bad:
        mend = "sudo dmesg | grep -i xid there says more; a lost GPU needs a reboot"
        return Check("gpus", "fail", "; ".join([said, *bad]), mend, name)
    others = [
        f"GPU {each.index}: {one.user} (pid {one.pid}, {one.name})"
        for each in cards
        for one in each.processes
        if one.job is None
    ]
    if others:
        return Check(
            "gpus",
            "warn",
            "; ".join([said, *others[:6]]),
            "gpq leaves those GPUs alone, and takes them when free",
            name,
        )
    if notice:
        return Check(
            "gpus", "warn", f"{said}; {notice}", "jobs run on the others all the same", name
        )
    return Check("gpus", "ok", said, "", name)


def torch(name: str, python: str, told: Told) -> Check:
    if "torch" in told:
        more = f", NCCL {told['nccl']}" if told.get("nccl") else ""
        said = (
            f"{told['torch']} in Python {told['python']} at {python} sees {told['gpus']} CUDA"
            f" GPUs{more}"
        )
        return Check("torch", "ok", said, "", name)
    mend = (
        f"make the environment there too, or set script_python of [nodes.{name}]; commands need"
        " none"
    )
    return Check("torch", "warn", f"{python}: {told.get('error', 'no answer')}", mend, name)
