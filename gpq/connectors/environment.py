"""What gpq's own processes inherit from the shell that happened to start the daemon: what they
need, and nothing for jobs.

They are isolated as with `python -I`, except that they find gpq where the command found it: in a
venv, a checkout, or a user's own packages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import gpq_agent

import gpq
from gpq import paths
from gpq.outward import CERTIFICATES, PROXIES

OF_AGENTS = frozenset({
    *("HOME", "USER", "LOGNAME", "SHELL", "PATH"),
    "LD_LIBRARY_PATH",  # an interpreter of an environment module may need it to start
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
    """The environment of this process, for a daemon in `interpreter`. Relative paths become
    absolute, because the daemon works in /."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name in OF_THE_DAEMON or name.startswith(OF_TESTS)
    }
    places = {name: paths.absolute(variables[name]) for name in PLACES if variables.get(name)}
    return {**variables, **places, **python_path()}


def of_agent(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of an agent on this machine, in any interpreter."""
    home = str(Path(gpq_agent.__file__).resolve().parents[1])
    return {
        **{name: value for name, value in environ.items() if name in OF_AGENTS},
        "PYTHONPATH": home,
    }


def interpreter() -> list[str]:
    """The environment of gpq's own processes. They look for the user's packages where this process
    found them."""
    return [sys.executable, *(["-s"] if sys.flags.no_user_site else [])]


def python_path() -> dict[str, str]:
    """PYTHONPATH for `interpreter`: the folders that hold this gpq, if it would not find them on
    its own."""
    path = os.environ.get("PYTHONPATH")
    extra = {os.path.realpath(entry) for entry in path.split(os.pathsep)} if path else set()
    usual = {os.path.realpath(entry) for entry in sys.path[1:]} - extra
    own_folders = dict.fromkeys(
        str(Path(str(package.__file__)).resolve().parents[1]) for package in (gpq, gpq_agent)
    )
    missing_folders = [folder for folder in own_folders if folder not in usual]
    if not missing_folders:
        return {}
    return {"PYTHONPATH": os.pathsep.join(missing_folders)}
