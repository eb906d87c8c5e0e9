"""What the laboratory needs from this machine, and commands on it that say why they failed."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from unittest import SkipTest

from tests.support.pythons import pythons

PATIENCE = 60.0  # seconds that a command on this machine may take
NEEDED = {
    "ip": "iproute2",
    "tc": "iproute2",
    "iptables": "iptables",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "pgrep": "procps",
    "csh": "csh",
    "fish": "fish",
}


@cache
def lacking() -> str:
    """Why there can be no laboratory here, or "" if there can."""
    if os.geteuid() != 0:
        return "needs root"
    packages = {package for command, package in NEEDED.items() if shutil.which(command, path=search_path()) is None}
    if packages:
        return f"needs the packages {', '.join(sorted(packages))}"
    tried = subprocess.run(["unshare", "--mount", "--uts", "--net", "--pid", "--fork", "true"], capture_output=True)
    return "" if tried.returncode == 0 else f"needs namespaces: {tried.stderr.decode().strip()}"


def search_path() -> str:
    """PATH with the folders of administrator commands, which not every PATH has."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def run(*argv: str | Path, check: bool = True, patience: float = PATIENCE, told: str = "") -> str:
    """The command's stdout. Raises with its error output."""
    done = subprocess.run(
        [str(word) for word in argv],
        input=told,
        capture_output=True,
        text=True,
        timeout=patience,
        env={**os.environ, "PATH": search_path()},
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, argv))}: {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def started(pid: int) -> int | None:
    """When the process started, in clock ticks since boot, or None if it does not exist. (pid, started) is unique."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def python_home(version: str) -> Path:
    """Where this version of Python ("3.8") is installed on this machine. Tests are skipped without it."""
    for found, python in pythons().items():
        if "{}.{}".format(*found) == version:
            return python.home
    raise SkipTest(f"no Python {version} on this machine")
