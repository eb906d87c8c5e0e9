"""What `gpq doctor` asks servers through the daemon, all at once and each with a time limit, and
the lines that it makes of their answers, each with a verdict and a fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from gpq import paths
from gpq.client.connection import call
from gpq.errors import GpqError
from gpq.options import environment
from gpq.options.json_answers import CheckView as Check
from gpq.rpc import node_answers, requests
from gpq.rpc.node_answers import NodeView

Told = Mapping[str, Any]
K = TypeVar("K")
T = TypeVar("T")
MOST_AT_ONCE = 8
DRIVER, TORCH = 40.0, 75.0  # seconds. A driver without persistence mode is slow
LEAST_INODES = 1000
LEAST_FILES = 4096
LEAST_LOCKED = 64 << 20  # bytes
LEAST_SHM_MIB = 1024
MOST_OFFSET = 2.0  # seconds
UNLIMITED = -1  # servers report it like this too
NETWORK = (
    "nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "lustre", "beegfs", "glusterfs", "ceph", "gpfs",
    "afs", "9p",
)  # fmt: skip
CONF = "`{}` in /etc/security/limits.conf, then log in again"


LEAST_DISK_MIB, LOW_DISK_MIB = 200, 5 << 10
FIRST_PORT, LAST_PORT = 20_000, 32_700  # gpq's master ports


def errand(node: str, name: str, limit: float, **fields: Any) -> Told:
    """What the server answered, or {"error"} if that failed."""
    request = requests.Errand(node, name, fields, limit)
    try:
        return call(request, node_answers.ErrandResult, start=False).answer
    except GpqError as error:
        return {"error": error.message}


def here(name: str, limit: float, **fields: Any) -> Told:
    """The same about this machine, without a daemon. The environment of a job counts as ours.

    It runs in a child process, because a broken driver may never answer, and in /, so that no
    file in the current folder counts as a module.
    """
    folder, pythonpath = nearest_folder(paths.home()), os.environ.get("PYTHONPATH", "")
    order = {
        "spool": folder, "checkpoints": folder,
        "fields": {**fields, "env": _absolute(pythonpath.split(":") if pythonpath else [])},
    }  # fmt: skip
    try:
        process = subprocess.run(
            [sys.executable, "-m", "gpq_agent.node.doctor.checks", name], input=json.dumps(order),
            capture_output=True, text=True, errors="replace", timeout=limit, cwd="/", check=False,
            env=_absolute(sys.path),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {limit:.0f} s"}
    if process.returncode == 0 and process.stdout:
        answer: Told = json.loads(process.stdout.splitlines()[-1])
        return answer
    words = (process.stderr.strip().splitlines() or ["no output"])[-1]
    return {"error": f"exit {process.returncode}: {words}"}


def _absolute(folders: Sequence[str]) -> dict[str, str]:
    """Our environment, with these folders as PYTHONPATH, which count from the current one."""
    entries = os.pathsep.join(os.path.abspath(folder or ".") for folder in folders)
    return {**os.environ, "PYTHONPATH": entries}


def nearest_folder(path: str) -> str:
    """The path, or the nearest folder above it that exists."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def side_by_side(work: Callable[[K], T], keys: Sequence[K]) -> dict[K, T]:
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        return dict(zip(keys, pool.map(work, keys), strict=True))


def job_environment() -> dict[str, str]:
    """The variables of a job that is submitted here."""
    return environment.job_variables(dict(os.environ), {})


def reachability(node: NodeView) -> Check:
    """Does the server answer the daemon?"""
    if not node.answers:
        fix = (
            f"see `gpq daemon logs`, try `ssh` by hand, or `gpq nodes remove {node.name}` if it is"
            " gone"
        )
        finding = f"does not answer: {node.reason or 'unknown reason'}"
        return Check("reach", "fail", finding, fix, node.name)
    finding = "answers"
    if node.drained:
        finding += f", drained: {node.reason}" if node.reason else ", drained"
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


def of_itself(name: str, answer: Told, files: int = UNLIMITED) -> list[Check]:
    """From the answer to `examine`. `name`: "" for this machine. `files`: how many this shell, and
    so its jobs, may open."""
    if "error" in answer:
        fix = "see `gpq daemon logs`, and check that server for a hung disk"
        return [Check("agent", "fail", str(answer["error"]), fix, name)]
    agent = f"agent {str(answer['agent'])[:12] or 'as installed'}, protocol {answer['version']}"
    checks = [
        Check("agent", "ok", f"{agent}, Python {answer['python']} at {answer['executable']}"),
        *(_disk(name, disk) for disk in answer["disks"]),
        _files(files, answer["limits"]["nofile"][1]),
        _locked_memory(answer),
        _shared_memory(answer["shm_mib"]),
    ]
    if name:
        conda = answer["conda"] or "no conda in the PATH of a login without a shell"
        checks += [
            _interfaces(name, answer),
            _ports(answer["ephemeral"]),
            Check("path", "ok", f"{conda} (scripts run with an absolute interpreter)"),
        ]
    return [msgspec.structs.replace(check, node=name) for check in checks]


def clock(name: str, offset: float, uncertainty: float) -> Check:
    """`offset`: of its clock from ours in seconds, give or take `uncertainty`."""
    finding = (
        f"{abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} this machine (within"
        f" {uncertainty:.1f} s)"
    )
    if abs(offset) - uncertainty > MOST_OFFSET:
        fix = "timedatectl set-ntp true on both. File dates are wrong otherwise. Leases do not mind"
        return Check("clock", "warn", finding, fix, name)
    return Check("clock", "ok", finding, "", name)


def _disk(name: str, disk: Told) -> Check:
    what, path = f"{disk['what']} disk", disk["path"]
    if "error" in disk:
        fix = "check that its file system is mounted"
        return Check(what, "fail", f"{path}: {disk['error']}", fix)
    free = f"{disk['free_mib'] / 1024:.1f} GiB"
    inodes = disk["inodes"]  # None if the file system does not count them
    if inodes is not None:
        free += f", {inodes} inodes"
    finding = f"{free} free at {path} ({disk['filesystem']})"
    setting = f"`spool` in [nodes.{name}]" if name else "GPQ_HOME"
    room = f"make room there, or set {setting} to another disk"
    is_full = disk["free_mib"] < LEAST_DISK_MIB
    if is_full or (inodes is not None and inodes < LEAST_INODES):
        return Check(what, "fail", finding, room)
    if disk["filesystem"] in NETWORK and disk["what"] == "spool":
        fix = (
            f"set {setting} to a local disk, because the agent hangs when the network file system"
            " does"
        )
        return Check(what, "warn", finding, fix)
    if disk["free_mib"] < LOW_DISK_MIB:
        return Check(what, "warn", finding, room)
    return Check(what, "ok", finding)


def _files(shell_limit: int, hard_limit: int) -> Check:
    """A job has the limit of the shell that submits it, up to what its server allows."""
    limits = [limit for limit in (shell_limit, hard_limit) if limit != UNLIMITED]
    usual = min(limits, default="unlimited")
    line = f"open files: {usual} from this shell, at most {_amount(hard_limit)}"
    if 0 <= hard_limit < LEAST_FILES:
        return Check("nofile", "warn", line, CONF.format("* hard nofile 65536"))
    if 0 <= shell_limit < LEAST_FILES:
        fix = "`ulimit -n 65536` in the shell that submits, or in its .bashrc"
        return Check("nofile", "warn", line, fix)
    return Check("nofile", "ok", line)


def _locked_memory(answer: Told) -> Check:
    """InfiniBand locks the memory that it sends from."""
    soft, hard = answer["limits"]["memlock"]
    line = f"locked memory: {_size(soft)}, at most {_size(hard)}"
    if answer["infiniband"] and 0 <= soft < LEAST_LOCKED:
        return Check("memlock", "fail", line, CONF.format("* - memlock unlimited"))
    return Check("memlock", "ok", line)


def _amount(number: int) -> str:
    return str(number) if 0 <= number < 1 << 60 else "unlimited"


def _size(number: int) -> str:
    if _amount(number) == "unlimited":
        return "unlimited"
    if number >= 10 << 20 or number % (1 << 20) == 0:
        return f"{number / (1 << 20):.0f} MiB"
    return f"{number >> 10} KiB"


def _shared_memory(mib: int | None) -> Check:
    if mib is None:
        fix = "DataLoader workers and NCCL need it. Mount a tmpfs there"
        return Check("shm", "warn", "no /dev/shm", fix)
    finding = f"/dev/shm has {mib / 1024:.1f} GiB"
    if mib < LEAST_SHM_MIB:
        fix = (
            "DataLoader workers may crash. Use --shm-size for a container, or mount -o"
            " remount,size=8G /dev/shm"
        )
        return Check("shm", "warn", finding, fix)
    return Check("shm", "ok", finding)


def _interfaces(name: str, answer: Told) -> Check:
    interface_names = {
        interface["address"]: interface["name"] for interface in answer["interfaces"]
    }
    if not answer["addresses"]:
        fix = f"give it an address that others reach, and set `address` in [nodes.{name}]"
        return Check("network", "warn", "only the loopback, so no other server can reach it", fix)
    addresses = [f"{interface_names[address]} {address}" for address in answer["addresses"]]
    return Check("network", "ok", ", ".join(addresses))


def _ports(ephemeral: Sequence[int]) -> Check:
    first, last = ephemeral
    finding = (
        f"outgoing connections use {first} to {last}, jobs meet on {FIRST_PORT} to {LAST_PORT}"
    )
    if first <= LAST_PORT and last >= FIRST_PORT:
        fix = "sysctl -w net.ipv4.ip_local_port_range='32768 60999', otherwise ports clash"
        return Check("ports", "warn", finding, fix)
    return Check("ports", "ok", finding)


def gpus(name: str, look: Told, faults: Sequence[str], others: Sequence[str]) -> Check:
    """Driver, GPUs, and who uses them. `look`: at the GPUs, from the agent. `faults`: the faulty
    GPUs. `others`: processes that are not of gpq."""
    if look.get("error"):
        fix = "try nvidia-smi and sudo dmesg | grep -i nvrm, and reboot if nothing else helps"
        return Check("gpus", "fail", str(look["error"]), fix, name)
    finding = "no NVIDIA GPU, so jobs run on CPU slots"
    kinds = Counter(gpu["name"] for gpu in look["gpus"])
    if kinds:
        counts = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
        finding = f"{counts}, driver {look['driver']}"
    if faults:
        fix = "sudo dmesg | grep -i xid says more. A lost GPU needs a reboot"
        return Check("gpus", "fail", ", ".join([finding, *faults]), fix, name)
    if look["notice"]:  # the driver answers but reports a problem
        finding += f", but {look['notice']}"
        if look["lost"]:
            return Check("gpus", "fail", finding, "nvidia-smi says more", name)
        return Check("gpus", "warn", finding, "" if kinds else "nvidia-smi says more", name)
    if others:
        finding += f", in use by others: {', '.join(others[:6])}"
        fix = "gpq leaves those GPUs alone until they are free"
        return Check("gpus", "warn", finding, fix, name)
    return Check("gpus", "ok", finding, "", name)


def torch(name: str, python: str, answer: Told) -> Check:
    if "torch" in answer:
        finding = (
            f"{answer['torch']} in Python {answer['python']} at {python} sees {answer['gpus']} CUDA"
            f" GPUs{nccl(answer)}"
        )
        return Check("torch", "ok", finding, "", name)
    fix = f"{python} -m pip install torch"
    if name:
        fix = f"create the environment there, or set script_python in [nodes.{name}]"
    fix += " (only training scripts need it)"
    return Check("torch", "warn", f"{python}: {answer.get('error', 'no answer')}", fix, name)


def nccl(answer: Told) -> str:
    """`, NCCL 2.27`, "" if torch has none."""
    return f", NCCL {answer['nccl']}" if answer.get("nccl") else ""
