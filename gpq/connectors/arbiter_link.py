"""The way to an arbiter on another machine: the user's own ssh runs `gpq team link` there. That
says who decides, and then copies between its pipes and the arbiter's socket. sshd made it run as
the member, so the arbiter sees the member's uid."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess

from gpq import pace
from gpq.connectors import ssh_errors
from gpq.connectors.local import Complaints, start
from gpq.connectors.ssh import ALIVE, CLOSE_PATIENCE, FIXED, Handshake, Target, environment_of
from gpq.connectors.ssh_agents import SshAgents
from gpq.errors import GpqError, Refused

READY = "gpq-link-5d1c0f2e"
# sh in single quotes, because the login shell may be any. `words` have nothing to quote
REMOTE = (
    "exec /bin/sh -c 'PATH=\"$HOME/.local/bin:$PATH\"; export PATH; exec gpq team link {words}'"
)
DECIDER = re.compile(rf"^(\d{{1,10}}) (\S{{1,64}})\n{READY}\n\Z", re.MULTILINE | re.ASCII)


class ArbiterLink:
    """`socket` leads to the arbiter of team `name`, which `uid` (called `user` there) runs. Without
    a uid, whoever decides there."""

    def __init__(
        self, head: str, name: str, uid: int | None = None, agents: SshAgents | None = None
    ) -> None:
        """Raises GpqError, and UsageError for a `head` that is no host for ssh."""
        self._target = Target(head)
        words = name if uid is None else f"{name} --uid {uid}"
        timeout = f"ConnectTimeout={pace.FIRST_TIMEOUT}"
        remote = REMOTE.format(words=words)
        argv = [*self._target.argv(*FIXED), *ALIVE, "-o", timeout, "--", head, remote]
        self.socket, theirs = socket.socketpair()
        with theirs:
            hint = "install the OpenSSH client"
            end = theirs.fileno()
            self._process = start(argv, environment_of(agents), None, hint, ends=end)
        self._complaints = Complaints(self._process.stderr, None)  # type: ignore[arg-type]
        try:
            self.uid, self.user = self._decider(head)
            if uid not in (None, self.uid):
                raise Refused(f"user {self.uid} decides for team {name} on {head}, not {uid}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """From any thread."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        with contextlib.suppress(ProcessLookupError):  # with its jump hosts
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _decider(self, head: str) -> tuple[int, str]:
        end = self.socket.fileno()
        talk = Handshake(end, end, head, lambda: None)
        try:
            talk.expect_shell(READY)
        except EOFError:
            raise self._problem(head) from None
        match = DECIDER.search(talk.noise.decode("utf-8", "replace"))
        if match is None:
            raise GpqError(f"{head} does not say who decides", "is gpq there as new as here?")
        return int(match[1]), match[2]

    def _problem(self, head: str) -> GpqError:
        """Of ssh, or of gpq there."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_PATIENCE)
        code, output = self._process.returncode, self._complaints.last()
        if code == 127:
            hint = "install gpq there, where a login finds it, or in ~/.local/bin"
            return GpqError(f"there is no gpq on {head}", hint)
        match = re.search(r"^gpq: (.*)(?:\nhint: (.*))?$", output, re.MULTILINE)
        if match is not None and code != 255:
            return GpqError(f"{head}: {match[1]}", match[2] or "")
        problem = ssh_errors.problem(output, head, self._target.shown)
        return (problem or ssh_errors.end_problem(head, code)).error()
