"""Kinds of servers and users in real labs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

NOISE = "echo 'Welcome to this server!'; echo; printf 'no newline \\033[31mand red\\033[0m'; echo complaint >&2\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`python`: version that is first in PATH, "" for the one that runs the tests, None for none. `shell`: login shell
    of the user. `rc`: content of its start file, the one it reads without a terminal. `sshd`: lines of sshd_config.
    `behind`: the only server that can reach it. `shown`: folders of this machine that it sees, read-only. It has its
    own home, /tmp and /run, but neither the checkout nor the environment of the tests."""

    python: str | None = ""
    shell: str = "/bin/bash"
    rc: str = ""
    port: int = 22
    sshd: Mapping[str, str] = field(default_factory=dict)
    behind: str = ""
    shown: tuple[Path, ...] = ()


PLAIN = Kind()
OLD_PYTHON = Kind(python="3.8")
NEW_PYTHON = Kind(python="3.13")
NO_PYTHON = Kind(python=None)
CSH = Kind(shell="/bin/csh")
FISH = Kind(shell="/usr/bin/fish")
NOISY = Kind(rc=NOISE)
NOISY_CSH = replace(CSH, rc="echo 'Welcome to this server!'\nstty erase x\n")
EXITING = Kind(rc="exit 0\n")
TALKATIVE = Kind(rc="yes 'message of the day' | head -c 200000\n")  # more than gpq searches for a sentinel
PORT_2222 = Kind(port=2222)
ONE_SESSION = Kind(sshd={"MaxSessions": "1"})
NO_SESSION = Kind(sshd={"MaxSessions": "0"})


def behind(server: str) -> Kind:
    """Reachable only from `server`, with ProxyJump."""
    return Kind(behind=server)
