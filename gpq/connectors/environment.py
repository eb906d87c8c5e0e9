"""What gpq's own processes get of the shell that happened to start the daemon: what they need, and
nothing for jobs.

Isolated as `python -I` is, but that they find gpq where the command found it: in a venv, a
checkout, a user's own packages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import gpq_agent

import gpq
from gpq.outward import CERTIFICATES, PROXIES

OF_AGENTS = frozenset({
    *("HOME", "USER", "LOGNAME", "SHELL", "PATH"),
    "LD_LIBRARY_PATH",  # an interpreter of a module may not start without it
})  # fmt: skip
PLACES = ("GPQ_HOME", "GPQ_CONFIG", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME")
OF_SSH = ("SSH_AUTH_SOCK", "KRB5CCNAME", "KRB5_CONFIG")
OF_MESSAGES = (
    *PROXIES,
    *CERTIFICATES,
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "DBUS_SESSION_BUS_ADDRESS",
)
OF_THE_DAEMON = OF_AGENTS.union(PLACES, OF_SSH, OF_MESSAGES, ["TZ"])
OF_TESTS = "GPQ_TEST_"


def of_daemon() -> dict[str, str]:
    """Of this process's, for a daemon in `interpreter`. What is relative to the working directory
    becomes absolute: it works in /."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name in OF_THE_DAEMON or name.startswith(OF_TESTS)
    }
    places = {name: os.path.abspath(variables[name]) for name in PLACES if variables.get(name)}
    return {**variables, **places, **python_path()}


def of_agent(environ: Mapping[str, str]) -> dict[str, str]:
    """Of one on this machine, in any interpreter."""
    home = str(Path(gpq_agent.__file__).resolve().parents[1])
    return {
        **{name: value for name, value in environ.items() if name in OF_AGENTS},
        "PYTHONPATH": home,
    }


def interpreter() -> list[str]:
    """What a process of gpq's own is started with: user's packages are looked at where they were
    for this one."""
    return [sys.executable, *(["-s"] if sys.flags.no_user_site else [])]


def python_path() -> dict[str, str]:
    """PYTHONPATH for `interpreter`: where it would not find this gpq by itself, the folders that
    hold it."""
    extra = {
        os.path.realpath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    }
    usual = {os.path.realpath(entry) for entry in sys.path[1:]} - extra
    own_folders = dict.fromkeys(
        str(Path(str(package.__file__)).resolve().parents[1]) for package in (gpq, gpq_agent)
    )
    missing_folders = [folder for folder in own_folders if folder not in usual]
    if not missing_folders:
        return {}
    return {"PYTHONPATH": os.pathsep.join(missing_folders)}
