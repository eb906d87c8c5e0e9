"""Acting as one of several users of a machine, in this process. Needs root."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ANA, BOB = (pwd.getpwnam(name) for name in ("daemon", "nobody"))  # two that every system has


@contextlib.contextmanager
def acting_as(user: pwd.struct_passwd) -> Iterator[None]:
    """With this user's rights, and a home of their own nowhere."""
    groups, umask = os.getgroups(), os.umask(0o022)
    os.setgroups([])
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
        os.umask(umask)


@contextlib.contextmanager
def shared_place() -> Iterator[Path]:
    """A folder where everybody may make files and remove only their own, as /tmp."""
    with tempfile.TemporaryDirectory(prefix="gpq-users-") as name:
        os.chmod(name, 0o1777)
        yield Path(name)


@contextlib.contextmanager
def without_acls(folder: Path) -> Iterator[None]:
    """A new folder on a file system that has no ACLs."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "-o", "mode=711", "gpq-test", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def command_of(user: pwd.struct_passwd) -> list[str]:
    """What to put in front of a command so that it runs as this user, but may read everything, as the checkout or the
    interpreter may be in a folder of root's."""
    return [
        "setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups",
        "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
    ]  # fmt: skip
