"""What `gpq doctor` checks on this machine. It starts no daemon and changes nothing."""

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
from gpq.cli.doctor import gpu_looks, server_lines, state_checks
from gpq.cli.doctor.verdicts import Check
from gpq.errors import DaemonUnreachable, GpqError
from gpq.options import environment
from gpq.policies.registry import POLICIES
from gpq.rpc.daemon_answers import DaemonInfo

OLDEST_CLOCK = 1_700_000_000  # seconds since 1970. An earlier clock was never set


def everything(python: str = "") -> list[Check]:
    """All checks. They are in this order because one fault may explain the next."""
    checks: list[Callable[[], Check]] = [
        interpreter, configuration, state_checks.directory, state_checks.filesystem,
        state_checks.free_space, state_checks.socket, daemon, gpu_looks.gpus, processors,
        shared_memory, clock, lambda: torch(python),
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
    if os.path.exists(path):
        return Check("config", "ok", f"{path} is valid")
    return Check("config", "ok", f"no {path}, so the defaults apply")


def daemon() -> Check:
    from gpq.client import daemon_control

    try:
        try:
            info = daemon_control.status()
        except DaemonUnreachable:
            if daemon_control.running() is None:
                return Check("daemon", "ok", "not running. The next command starts it")
            raise
    except GpqError as error:
        return Check("daemon", "fail", error.message, error.hint)
    return running_daemon(info)


def running_daemon(info: DaemonInfo) -> Check:
    from gpq.client import daemon_control

    if info.version != gpq.__version__:
        return Check(
            "daemon",
            "warn",
            f"version {info.version} is running, but this is {gpq.__version__}",
            "`gpq daemon stop`. The next command starts the new one, and jobs keep running",
        )
    finding, fix = f"running (pid {info.pid})", ""
    unreachable = sorted(name for name, state in info.nodes.items() if state == "unreachable")
    if unreachable:
        finding += f", cannot reach {', '.join(unreachable)}"
        fix = "`gpq nodes` says why"
    if info.config_changed:
        finding += f", {daemon_control.CHANGED}"
        fix = daemon_control.RESTART
    if fix:
        return Check("daemon", "warn", finding, fix)
    return Check("daemon", "ok", f"{finding}, version {info.version}")


def has_servers() -> bool:
    """Does a daemon run that has more than this machine?"""
    from gpq.client import daemon_control

    try:
        nodes = daemon_control.status().nodes
        local = all(node.connector == "local" for node in config.load().nodes.values())
    except GpqError:  # `daemon` and `config` have reported it
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
    finding = f"{usable} of {os.cpu_count()} cores usable"
    if slots:
        finding += f", {slots} CPU slots configured"
    if slots > usable:
        return Check(
            "cores", "warn", finding, "lower `slots` in config.toml, otherwise replicas share cores"
        )
    if load > 2 * usable:
        return Check(
            "cores",
            "warn",
            f"{finding}, load {load:.1f}",
            "other programs slow down your jobs. See `top`",
        )
    return Check("cores", "ok", finding)


def shared_memory() -> Check:
    try:
        size = shutil.disk_usage("/dev/shm").total >> 20
    except OSError:
        size = None
    return server_lines.shared_memory("", size)


def clock() -> Check:
    """Is the clock set, and does it agree with the newest write of the daemon?"""
    now = time.time()
    if now < OLDEST_CLOCK:
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
            f"{newest - now:.0f} s behind the last write of the daemon",
            "timedatectl set-ntp true",
        )
    return Check("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now)))


def torch(requested_python: str) -> Check:
    """Can the interpreter that runs the scripts import torch, and does it see the GPUs?"""
    try:
        python = environment.interpreter(requested_python, dict(os.environ))
    except GpqError as error:
        return Check("torch", "fail", error.message, error.hint)
    program = "import torch\nprint(torch.__version__, torch.cuda.device_count())"
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
            "training scripts need it, commands do not",
        )
    if answer.returncode != 0:
        finding = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Check(
            "torch",
            "warn",
            f"{python}: {finding}",
            f"{python} -m pip install torch (only training scripts need it)",
        )
    version, count = answer.stdout.split()[-2:]
    return Check("torch", "ok", f"{version} in {python} sees {count} CUDA GPUs")
