"""What `gpq doctor` checks on this machine. It starts no daemon and changes nothing."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec

import psutil
from gpq_agent import wire

import gpq
from gpq import config, paths
from gpq.cli.doctor import server_lines
from gpq.errors import DaemonUnreachable, GpqError
from gpq.options import environment
from gpq.options.json_answers import CheckView as Check
from gpq.policies.registry import POLICIES
from gpq.rpc.daemon_answers import DaemonInfo
from gpq.store import disk

LONGEST_SOCKET = 107  # bytes, sockaddr_un
OLDEST_CLOCK = 1_700_000_000  # seconds since 1970. An earlier clock was never set


def everything(python: str = "") -> list[Check]:
    """All checks. They are in this order because one fault may explain the next."""
    checks: list[Callable[[], Check]] = [
        interpreter, configuration, directory, filesystem, socket, daemon, gpus,
        processors, clock,
    ]  # fmt: skip
    return [*(check() for check in checks), *machine(python)]


def interpreter() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    missing = [
        name
        for name in ("msgspec", "numpy", "psutil", "pynvml", "rich", "scipy", "typer")
        if not find_spec(name)
    ]
    if missing:
        fix = f"{sys.executable} -m pip install --upgrade goodput-queue"
        finding = f"{version} at {sys.executable} has no {', '.join(missing)}"
        return Check("python", "fail", finding, fix)
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


def directory() -> Check:
    home = paths.home()
    folder = server_lines.nearest_folder(home)
    if not os.access(folder, os.W_OK | os.X_OK):
        finding = f"{folder} is not writable"
        fix = f"make it writable, or set GPQ_HOME (now {home})"
        return Check("state", "fail", finding, fix)
    if folder != home:
        return Check("state", "ok", f"gpq will create {home}")
    mode = os.stat(home).st_mode & 0o777
    if mode & 0o022:
        finding = f"others may write to {home} (mode {mode:03o})"
        return Check("state", "warn", finding, f"chmod 700 {home}")
    return Check("state", "ok", f"{home} is writable")


def filesystem() -> Check:
    folder = server_lines.nearest_folder(paths.home())
    try:
        disk.refuse_network(folder)
    except GpqError as error:
        return Check("filesystem", "fail", error.message, error.hint)
    return Check("filesystem", "ok", f"{folder} is not on a network file system")


def socket() -> Check:
    path = paths.socket()
    size = len(os.fsencode(path))
    if size > LONGEST_SOCKET:
        finding = f"{path} has {size} bytes, but at most {LONGEST_SOCKET} are possible"
        fix = "set GPQ_HOME to a shorter path"
        return Check("socket", "fail", finding, fix)
    return Check("socket", "ok", path)


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
        finding = f"version {info.version} is running, but this is {gpq.__version__}"
        fix = "`gpq daemon stop`. The next command starts the new one, and jobs keep running"
        return Check("daemon", "warn", finding, fix)
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
        fix = "lower `slots` in config.toml, otherwise replicas share cores"
        return Check("cores", "warn", finding, fix)
    if load > 2 * usable:
        finding = f"{finding}, load {load:.1f}"
        fix = "other programs slow down your jobs. See `top`"
        return Check("cores", "warn", finding, fix)
    return Check("cores", "ok", finding)


def clock() -> Check:
    """Is the clock set, and does it agree with the newest write of the daemon?"""
    now = time.time()
    if now < OLDEST_CLOCK:
        finding = time.strftime("it shows %Y-%m-%d", time.gmtime(now))
        fix = "set it: timedatectl set-ntp true"
        return Check("clock", "fail", finding, fix)
    try:
        newest = os.stat(paths.database()).st_mtime
    except OSError:
        newest = 0.0
    if newest > now + 60:
        finding = f"{newest - now:.0f} s behind the last write of the daemon"
        fix = "timedatectl set-ntp true"
        return Check("clock", "warn", finding, fix)
    return Check("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now)))


def gpus() -> Check:
    look = server_lines.here("driver", server_lines.DRIVER)
    gpus = look.get("gpus", [])
    faults = [f"{gpu['name'] or gpu['uuid']}: {gpu['problem']}" for gpu in gpus if gpu["problem"]]
    others = []
    for pid in sorted({pid for gpu in gpus for pid, _ in gpu["processes"]}):
        name = "gone"
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            name = process.name()
            # the clients of MPS show up separately
            if name.startswith("nvidia-cuda-mps") or wire.ENV_JOB in process.environ():
                continue
        others.append(f"pid {pid} ({name})")
    return server_lines.gpus("", look, faults, others)


def machine(requested_python: str) -> list[Check]:
    """The other lines that servers have as well."""
    python, failures = "", []
    try:
        python = environment.interpreter(requested_python, dict(os.environ))
    except GpqError as error:
        failures = [Check("torch", "fail", error.message, error.hint)]
    facts = server_lines.here("examine", server_lines.TORCH, python=python)
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    checks = server_lines.of_itself("", facts, open_files)
    if python:
        checks.append(server_lines.torch("", python, facts.get("torch", facts)))
    return checks + failures
