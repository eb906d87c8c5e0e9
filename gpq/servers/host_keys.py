"""The host key of a new server. ssh asks about it, compares it with the keys that it knows and
saves it, so this is right through jump hosts as well. `-v` makes ssh print the key."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from typing import Protocol

from gpq.connectors import ssh_errors
from gpq.connectors.ssh import Target
from gpq.errors import GpqError, Refused

PATIENCE = 120.0  # seconds, because the user may have to touch a hardware key
# the ssh of a jump host does not print this
LOGGED_IN = re.compile(rb"^debug1: Sending command: ", re.MULTILINE)
KEY = re.compile(r"^debug1: Server host key: (\S+) (SHA256:\S+)", re.MULTILINE)
CHATTER = re.compile(
    r"^(?:debug1: |OpenSSH_|Authenticated to |Transferred: |Bytes per second).*\n?", re.MULTILINE
)
# These come before the user's own options. No prompt but the one about the key.
FIXED = (
    "-v", "-T",
    "-o", "NumberOfPasswordPrompts=0",
    "-o", "ControlPath=none",
    "-o", "ClearAllForwardings=yes",
    "-o", "PermitLocalCommand=no",
    "-o", "RemoteCommand=none",
)  # fmt: skip


class Talk(Protocol):
    """Where findings go: `say` shows lines to a person, `note` shows remarks."""

    def say(self, *lines: str) -> None: ...

    def note(self, *lines: str) -> None: ...


def settle(target: Target, talk: Talk, *, yes: bool, quiet: bool, asks: bool) -> str:
    """The fingerprint, once ssh reaches the server with a known key and without a question.

    `yes` accepts a new key. Otherwise `asks` lets ssh ask the user on a terminal. Raises GpqError.
    """
    asks = asks and not yes and sys.stdin.isatty()
    strict = "ask" if asks else "yes"
    if yes:
        strict = "accept-new"
    code, output = _log_in(target, strict, asks=asks)
    keys = KEY.findall(output)
    output = CHATTER.sub("", output)
    is_changed = "REMOTE HOST IDENTIFICATION HAS CHANGED" in output
    is_unknown = code == 255 and "Host key verification failed" in output and not is_changed
    is_saved = "Warning: Permanently added" in output
    is_new = is_unknown or is_saved
    if keys and (is_new or not quiet):
        show = talk.note if quiet else talk.say
        show(f"host key  {' '.join(keys[-1])}" + " (new)" * is_new)
    if is_saved:
        talk.note(f"saved the host key of {target.host} as known")
    if is_unknown and not yes:
        raise Refused(
            f"the host key of {target.host} is not known",
            "compare the fingerprint, then repeat with --yes or run"
            f" `{target.shown} {target.host}`",
        )
    if code == 255:
        raise _failure(target, output)
    return keys[-1][1] if keys else ""


def _failure(target: Target, output: str) -> GpqError:
    problem = ssh_errors.problem(output, target.host, target.shown)
    problem = problem or ssh_errors.end_problem(target.host, 255, target.shown)
    kind = Refused if problem.lasting else GpqError
    return kind(problem.sentence, problem.hint)


def _log_in(target: Target, strict: str, *, asks: bool) -> tuple[int, str]:
    """ssh's exit code, and what it has printed. 0 as soon as it has logged in, without waiting for
    login scripts. If it `asks`, it shares our terminal and our session."""
    batch = "no" if asks else "yes"
    options = (*FIXED, "-o", f"BatchMode={batch}", "-o", f"StrictHostKeyChecking={strict}")
    argv = [*target.argv(*options), "-o", "ConnectTimeout=15", "--", target.host, "exit 0"]
    output = b""
    try:
        ssh = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"},
            start_new_session=not asks,
        )
    except OSError as error:
        raise GpqError(
            f"cannot start {argv[0]}: {error.strerror}", "install the OpenSSH client"
        ) from None
    assert ssh.stderr is not None
    until = time.monotonic() + PATIENCE
    try:
        while not LOGGED_IN.search(output):
            patience = None if asks else max(until - time.monotonic(), 0.0)
            if not select.select([ssh.stderr], [], [], patience)[0]:
                hint = f"run `{target.shown} {target.host} true` to see why"
                raise GpqError(f"{target.host} took longer than {PATIENCE:.0f} s", hint)
            piece = os.read(ssh.stderr.fileno(), 1 << 16)
            if not piece:
                return ssh.wait(), output.decode("utf-8", "replace")
            output += piece
        return 0, output.decode("utf-8", "replace")
    finally:
        ssh.stderr.close()
        ssh.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(
                ssh.pid, signal.SIGKILL
            )  # with its jump hosts, if it does not share our group
        ssh.wait()
