"""What `gpq doctor` looks at on this machine. Looks only: starts no daemon and changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec

import gpq
from gpq import config, paths
from gpq.cli.doctor import gpu_looks
from gpq.cli.doctor.verdicts import Check
from gpq.errors import DaemonUnreachable, GpqError
from gpq.options import environment
from gpq.policies.registry import POLICIES

MIN_FREE_MIB = 200
LONGEST_SOCKET = 107  # bytes, sockaddr_un
NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "fuse.sshfs",
    "lustre",
    "beegfs",
    "glusterfs",
    "ceph",
    "gpfs",
    "afs",
    "9p",
)


def everything(python: str = "") -> list[Check]:
    """All checks, in the order in which a mistake in one explains those after it."""
    checks: list[Callable[[], Check]] = [
        interpreter, configuration, state_directory, state_filesystem, free_space, socket_path,
        daemon, gpu_looks.gpus, processors, shared_memory, clock, lambda: torch(python),
    ]  # fmt: skip
    return [check() for check in checks]


def interpreter() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    missing = [
        name
        for name in ("msgspec", "numpy", "psutil", "pynvml", "rich", "scipy", "typer")
        if not find_spec(name)
    ]
    if missing:
        fix = f"{sys.executable} -m pip install --upgrade goodput-queue"
        return Check(
            "python", "fail", f"{version} at {sys.executable} has no {', '.join(missing)}", fix
        )
    return Check("python", "ok", f"{version} at {sys.executable} runs gpq {gpq.__version__}")


def configuration() -> Check:
    path = paths.config()
    try:
        config.load(policies=POLICIES, cores=os.sched_getaffinity(0))
    except GpqError as error:
        return Check("config", "fail", error.message, error.hint)
    return Check(
        "config",
        "ok",
        f"{path} is right" if os.path.exists(path) else f"no {path}: the defaults hold",
    )


def state_directory() -> Check:
    home = paths.home()
    folder = existing(home)
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check(
            "state",
            "fail",
            f"{folder} is not writable",
            f"make it writable, or set GPQ_HOME (now {home})",
        )
    if folder != home:
        return Check("state", "ok", f"{home} will be made")
    mode = os.stat(home).st_mode & 0o777
    if mode & 0o022:
        return Check(
            "state",
            "warn",
            f"{home} may be written by others (mode {mode:03o})",
            f"chmod 700 {home}",
        )
    return Check("state", "ok", f"{home} is writable")


def existing(path: str) -> str:
    """The path, or the nearest folder above it that is there."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def state_filesystem() -> Check:
    folder = os.path.realpath(existing(paths.home()))
    longest_mount, kind = "", "unknown"
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as stream:
            for line in stream:
                _, mount, filesystem, *_ = line.split(" ")
                mount = mount.replace("\\040", " ")
                if os.path.commonpath([folder, mount]) == mount and len(mount) >= len(
                    longest_mount
                ):
                    longest_mount, kind = mount, filesystem
    except OSError as error:
        return Check("filesystem", "warn", f"cannot read /proc/self/mounts: {error.strerror}", "")
    if kind in NETWORK:
        return Check(
            "filesystem",
            "fail",
            f"the state is on {kind} ({longest_mount}), where locks and SQLite cannot be trusted",
            "set GPQ_HOME to a folder on a local disk",
        )
    return Check("filesystem", "ok", f"the state is on {kind} ({longest_mount})")


def free_space() -> Check:
    folder = existing(paths.home())
    free = shutil.disk_usage(folder).free >> 20
    if free < MIN_FREE_MIB:
        return Check(
            "disk",
            "fail",
            f"{free} MiB are free at {folder}",
            "make room, or set GPQ_HOME to another disk",
        )
    return Check("disk", "ok", f"{free / 1024:.1f} GiB are free at {folder}")


def socket_path() -> Check:
    path = paths.socket()
    size = len(os.fsencode(path))
    if size > LONGEST_SOCKET:
        return Check(
            "socket",
            "fail",
            f"{path} has {size} bytes, at most {LONGEST_SOCKET} may be",
            "set GPQ_HOME to a shorter path",
        )
    return Check("socket", "ok", path)


def daemon() -> Check:
    from gpq.client import daemon_control

    try:
        info = daemon_control.status()
    except DaemonUnreachable as error:
        if daemon_control.running() is None:
            return Check("daemon", "ok", "none runs: the next command starts it")
        return Check("daemon", "fail", error.message, error.hint)
    except GpqError as error:
        return Check("daemon", "fail", error.message, error.hint)
    if info.version != gpq.__version__:
        finding = f"version {info.version} runs, this is {gpq.__version__}"
        return Check(
            "daemon",
            "warn",
            finding,
            "`gpq daemon stop`: the next command starts the new one, jobs run on",
        )
    unreachable = sorted(name for name, state in info.nodes.items() if state == "unreachable")
    if unreachable:
        finding = f"pid {info.pid} runs, and cannot reach {', '.join(unreachable)}"
        if info.config_changed:
            finding += f"; {daemon_control.CHANGED}"
        return Check(
            "daemon",
            "warn",
            finding,
            "`gpq nodes` says why" if not info.config_changed else daemon_control.RESTART,
        )
    if info.config_changed:
        return Check(
            "daemon",
            "warn",
            f"pid {info.pid} runs; {daemon_control.CHANGED}",
            daemon_control.RESTART,
        )
    return Check("daemon", "ok", f"pid {info.pid} runs, version {info.version}")


def has_servers() -> bool:
    """Does a daemon run that has more than this machine's one node?"""
    from gpq.client import daemon_control

    try:
        nodes = daemon_control.status().nodes
        local = all(node.connector == "local" for node in config.load().nodes.values())
    except GpqError:  # `daemon` and `config` have said so
        return False
    return len(nodes) > 1 or not local


def processors() -> Check:
    usable = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    try:
        nodes = config.load().nodes
    except GpqError:
        nodes = {}
    slots = sum(node.slots or 0 for node in nodes.values() if node.connector == "local")
    finding = f"{usable} of {os.cpu_count()} cores may be used" + (
        f", {slots} CPU slots are configured" if slots else ""
    )
    if slots > usable:
        return Check(
            "cores", "warn", finding, "lower `slots` in config.toml: replicas would share cores"
        )
    if load > 2 * usable:
        return Check(
            "cores",
            "warn",
            f"{finding}; the load is {load:.1f}",
            "other programs slow your jobs down: see `top`",
        )
    return Check("cores", "ok", finding)


def shared_memory() -> Check:
    try:
        size = shutil.disk_usage("/dev/shm").total >> 20
    except OSError:
        return Check(
            "shm", "warn", "no /dev/shm", "data loaders with workers need it: mount a tmpfs there"
        )
    if size < 1024:
        return Check(
            "shm",
            "warn",
            f"/dev/shm has {size} MiB",
            "data loaders with workers may die: --shm-size, or mount -o remount,size=8G",
        )
    return Check("shm", "ok", f"/dev/shm has {size / 1024:.1f} GiB")


def clock() -> Check:
    """The wall clock against the newest file that this machine keeps writing, and against
    reason."""
    now = time.time()
    if now < 1_700_000_000:
        return Check(
            "clock",
            "fail",
            time.strftime("it shows %Y-%m-%d", time.gmtime(now)),
            "set it: timedatectl set-ntp true",
        )
    try:
        newest = os.stat(paths.database()).st_mtime
    except OSError:
        newest = 0.0
    if newest > now + 60:
        return Check(
            "clock",
            "warn",
            f"it is {newest - now:.0f} s behind the last write of the daemon",
            "timedatectl set-ntp true",
        )
    return Check("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now)))


def torch(requested_python: str) -> Check:
    """Can the interpreter that runs the scripts import torch, and does it see the GPUs?"""
    try:
        python = environment.interpreter(requested_python, dict(os.environ))
    except GpqError as error:
        return Check("torch", "fail", error.message, error.hint)
    program = "import torch; print(torch.__version__, torch.cuda.device_count())"
    try:
        answer = subprocess.run(
            [python, "-c", program],
            capture_output=True,
            text=True,
            timeout=120,
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(
            "torch",
            "warn",
            f"{python} did not import torch: {error}",
            "training scripts need it; commands do not",
        )
    if answer.returncode != 0:
        finding = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Check(
            "torch",
            "warn",
            f"{python}: {finding}",
            f"{python} -m pip install torch; only training scripts need it",
        )
    version, count = answer.stdout.split()[-2:]
    return Check("torch", "ok", f"{version} in {python} sees {count} CUDA GPUs")
