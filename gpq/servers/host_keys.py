"""The host key of a new server: shows it, compares it with the keys that ssh knows, and accepts a
new one only if the user says so.

ssh itself does the work, so this is right through jump hosts as well. `-v` makes it print the key.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Protocol

from gpq.connectors import ssh_errors
from gpq.connectors.ssh import Target
from gpq.errors import GpqError, Refused

PATIENCE = 120.0  # seconds, because the user may have to touch a hardware key
# the ssh of a jump host does not print this
LOGGED_IN = re.compile(rb"^debug1: Sending command: ", re.MULTILINE)
KEY = re.compile(r"debug1: Server host key: (\S+) (SHA256:\S+)")
CHATTER = re.compile(
    r"debug1: .*|OpenSSH_.*|Warning: Permanently added .*|Authenticated to .*|Transferred: .*|Bytes"
    r" per second.*"
)


class Talk(Protocol):
    """Where findings go: `say` shows lines to a person, `note` shows remarks."""

    def say(self, *lines: str) -> None: ...

    def note(self, *lines: str) -> None: ...


@dataclass(frozen=True, slots=True)
class KeyProbe:
    """The result of one connection. `key` is the type and fingerprint of the last host that showed
    one."""

    ok: bool
    key: tuple[str, str] | None
    unknown: bool
    problem: ssh_errors.Problem | None


def settle(target: Target, talk: Talk, *, yes: bool, quiet: bool, asks: bool) -> str:
    """The fingerprint, once ssh reaches the server with a known key and without a question.

    `yes` accepts a new key. Otherwise `asks` asks the user on a terminal. Raises GpqError.
    """
    look = _look(target, "yes")
    if look.key is not None:
        _show(look.key, talk, unknown=look.unknown, quiet=quiet)
    if look.unknown:
        _agree(target, talk, yes=yes, asks=asks)
        first_key, look = look.key, _look(target, "accept-new")
        if look.key != first_key:
            raise GpqError(
                f"{target.host} showed another host key the second time: {look.key}",
                "somebody may be intercepting the connection. `ssh-keygen -R"
                f" {target.host}` removes the key again",
            )
    if not look.ok:
        problem = look.problem or ssh_errors.end_problem(target.host, 255, target.shown)
        raise (Refused if problem.lasting else GpqError)(problem.sentence, problem.hint)
    return look.key[1] if look.key is not None else ""


def _show(key: tuple[str, str], talk: Talk, *, unknown: bool, quiet: bool) -> None:
    line = f"host key  {key[0]} {key[1]}"
    if unknown:
        line += " (new)"
    if not quiet:
        talk.say(line)
    elif unknown:
        talk.note(line)


def _agree(target: Target, talk: Talk, *, yes: bool, asks: bool) -> None:
    if yes:
        talk.note(f"saved the host key of {target.host} as known")
        return
    if not (asks and sys.stdin.isatty()):
        raise Refused(
            f"the host key of {target.host} is not known",
            "compare the fingerprint, then repeat with --yes or run"
            f" `{target.shown} {target.host}`",
        )
    talk.note(
        "run `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` (or _rsa_, _ecdsa_) on the server"
        " to see its real key"
    )
    if input("Is this the server's key? [y/N] ").strip().lower() not in ("y", "yes"):
        raise Refused(f"{target.host} was not added", "")


def _look(target: Target, strict: str) -> KeyProbe:
    options = [
        "-v",
        "-T",
        "-o",
        "BatchMode=yes",
        "-o",
        f"StrictHostKeyChecking={strict}",
        "-o",
        "ControlPath=none",
    ]
    options += [
        "-o",
        "ClearAllForwardings=yes",
        "-o",
        "PermitLocalCommand=no",
        "-o",
        "RemoteCommand=none",
    ]
    argv = [*target.argv(*options), "-o", "ConnectTimeout=15", "--", target.host, "exit 0"]
    environment = {**os.environ, "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"}
    code, lines = _until_logged_in(argv, environment, target)
    keys = [match.groups() for line in lines if (match := KEY.match(line))]
    output = "\n".join(line for line in lines if not CHATTER.fullmatch(line.strip()))
    changed = "REMOTE HOST IDENTIFICATION HAS CHANGED" in output
    unknown = code == 255 and "Host key verification failed" in output and not changed
    problem = key = None
    if code == 255:
        problem = ssh_errors.problem(output, target.host, target.shown)
    if keys:
        key = (str(keys[-1][0]), str(keys[-1][1]))
    return KeyProbe(code != 255, key, unknown, problem)


def _until_logged_in(
    argv: list[str], environment: dict[str, str], target: Target
) -> tuple[int, list[str]]:
    """ssh's exit code, and what it has printed. 0 as soon as it has logged in, without waiting for
    login scripts."""
    output = b""
    try:
        ssh = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise GpqError(
            f"cannot start {argv[0]}: {error.strerror}", "install the OpenSSH client"
        ) from None
    assert ssh.stderr is not None
    until = time.monotonic() + PATIENCE
    try:
        while not LOGGED_IN.search(output):
            if not select.select([ssh.stderr], [], [], max(until - time.monotonic(), 0.0))[0]:
                hint = f"run `{target.shown} {target.host} true` to see why"
                raise GpqError(f"{target.host} took longer than {PATIENCE:.0f} s", hint)
            piece = os.read(ssh.stderr.fileno(), 1 << 16)
            if not piece:
                return ssh.wait(), output.decode("utf-8", "replace").splitlines()
            output += piece
        return 0, output.decode("utf-8", "replace").splitlines()
    finally:
        ssh.stderr.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(ssh.pid, signal.SIGKILL)  # with its jump hosts
        ssh.wait()
