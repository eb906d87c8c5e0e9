"""A server behind ssh: one long-lived child of the user's own `ssh`, so that ~/.ssh/config, jump
hosts and keys apply.

The command that the server's login shell sees is a constant. Everything else goes over stdin. The
handshake passes the noise of login scripts and reads no byte beyond its last answer, because what
follows belongs to the agent. It never blocks for long.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpq import pace
from gpq.config_rules import HOST
from gpq.connectors import ssh_errors
from gpq.connectors.bundle import Bundle
from gpq.connectors.local import Channel, LocalChannel, start
from gpq.connectors.ssh_agents import VARIABLE, SshAgents
from gpq.errors import GpqError, Refused, UsageError

# The login shell may be any shell, so the command has no nested quotes, no backslash and no
# exclamation mark, and is one line. `sh` then reads one line, the wanted Python, into a variable.
# No shell ever parses what we send.
READY = "gpq-shell-5d1c0f2e"
NO_PYTHON = "gpq-no-python-5d1c0f2e"
REMOTE = (
    f'exec /bin/sh -c \'echo {READY}; IFS= read -r p; case "$p" in "~/"*) p="$HOME/${{p#"~/"}}";;'
    ' esac; if test -n "$p"; then set -- "$p"; else set -- python3 python3.13 python3.12'
    ' python3.11 python3.10 python3.9 python3.8; fi; for c; do if "$c" -E -c "import sys;'
    ' sys.exit(sys.version_info < (3, 8))" </dev/null >/dev/null 2>&1; then exec "$c" -E -c'
    ' "import sys; exec(bytes.fromhex(sys.stdin.buffer.raw.readline().decode()))"; fi; if command'
    ' -v "$c" >/dev/null 2>&1; then t="$t, $c is $("$c" -V 2>&1 </dev/null | head -n 1)"; fi;'
    f" done; echo {NO_PYTHON} $t'"
)
# These come before the user's own options, so that nothing overrides them. No question that nobody
# answers, no shared connection, no unknown host key, and only one pipe.
FIXED = (
    "-T", "-x", "-a",
    "-o", "BatchMode=yes",
    "-o", "StrictHostKeyChecking=yes",
    "-o", "ControlMaster=no",
    "-o", "ControlPath=none",
    "-o", "ClearAllForwardings=yes",
    "-o", "PermitLocalCommand=no",
    "-o", "RemoteCommand=none",
    "-o", "EscapeChar=none",
    "-o", "LogLevel=ERROR",
)  # fmt: skip
ALIVE = ("-o", f"ServerAliveInterval={pace.KEEPALIVE}", "-o", "ServerAliveCountMax=3")
# seconds that ssh has to end after its input was closed. A dead link would hold it for ever
CLOSE_PATIENCE = 0.5
NOISE = 64 << 10  # bytes that login scripts may print before
LOOK = 0.25  # seconds between two calls of `waiting`
LONGEST = 300.0 * pace.FACTOR  # seconds until the agent starts, whatever drips in meanwhile


@dataclass(frozen=True, slots=True)
class Target:
    """`host` is user@host or a name from ~/.ssh/config. `command` starts ssh, with the user's
    options."""

    host: str
    port: int = 0  # 0: ssh's configuration decides
    identity: str = ""
    command: tuple[str, ...] = ("ssh",)

    def __post_init__(self) -> None:
        if not HOST.fullmatch(self.host):
            raise UsageError(
                f"`{self.host}` is not a valid host for ssh",
                "use user@host, or a name from ~/.ssh/config",
            )

    def argv(self, *options: str) -> list[str]:
        """The command line without the remote command."""
        target_options: list[str] = []
        if self.port:
            target_options += ["-p", str(self.port)]
        if self.identity:
            target_options += ["-i", self.identity]
        return [self.command[0], *options, *self.command[1:], *target_options]

    @property
    def shown(self) -> str:
        """The same for a person."""
        return shlex.join(self.argv())


def environment_of(agents: SshAgents | None) -> dict[str, str]:
    """Of an ssh that has no terminal to ask on. `agents` as for `SshConnector`."""
    environment = {**os.environ, "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"}
    # from our interpreter, which may not fit the system's ssh
    environment.pop("LD_LIBRARY_PATH", None)
    if agents is not None:
        environment.pop(VARIABLE, None)
        agent = agents.answering()
        if agent:
            environment[VARIABLE] = agent
    return environment


class SshChannel(LocalChannel):
    """Pipes to ssh. Its complaints, and those of the other end, go to the file `errors`. Its end
    takes what it started (jump hosts) with it. The server notices, but jobs do not. `agentless`:
    there were ssh-agents, but none answered."""

    patience = CLOSE_PATIENCE

    def __init__(
        self, process: subprocess.Popen[bytes], target: Target, errors: Path, agentless: bool
    ) -> None:
        super().__init__(process, errors)
        self.target = target
        self.agentless = agentless

    def last_words(self) -> str:
        return str(self.problem() or "")

    def problem(self) -> ssh_errors.Problem | None:
        """The last words of ssh, or of the other end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(CLOSE_PATIENCE)  # its stdout ends a moment before its last words
        output = self.complaints.last()
        # 255 is ssh's own code. Complaints of the other end stay as they are.
        if self.process.returncode not in (255, None):
            return ssh_errors.last_problem(output)
        return ssh_errors.problem(
            output, self.target.host, self.target.shown, agentless=self.agentless
        )

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class SshConnector:
    """`python` is the path or name of the interpreter there. "" means the first one that is new
    enough. `agents` are the ones that ssh may ask. None means that of our own shell."""

    def __init__(
        self,
        target: Target,
        bundle: Bundle,
        *,
        errors: Path,
        python: str = "",
        agents: SshAgents | None = None,
    ) -> None:
        self.target = target
        self._agents = agents
        self.errors = errors
        self._bundle = bundle
        self._python = python
        self._timeout = pace.FIRST_TIMEOUT

    def agent(
        self, arguments: Sequence[str], waiting: Callable[[], None] = lambda: None
    ) -> Channel:
        channel = self._connect()
        target = self.target
        talk = Handshake(channel.reader.fileno(), channel.writer.fileno(), target.host, waiting)
        try:
            talk.expect_shell(READY)
            self._timeout = max(
                pace.LEAST_TIMEOUT, min(3 * int(talk.seconds + 1), pace.FIRST_TIMEOUT)
            )
            word = secrets.token_hex(16)
            source = self._bundle.bootstrap.encode("utf-8").hex().encode("ascii")
            talk.say(self._python.encode("utf-8") + b"\n" + source + b"\n")
            digest = self._bundle.digest
            request = {"word": word, "sha256": digest, "arguments": list(arguments)}
            talk.block(json.dumps(request).encode("utf-8"))
            if not talk.answer(word, NO_PYTHON, self._python)["have"]:
                talk.block(self._bundle.archive)
                talk.answer(word, NO_PYTHON, self._python)
            talk.over()
        except EOFError:
            raise self._refusal(channel, talk) from None
        except BaseException:
            channel.close()
            raise
        return channel

    def _refusal(self, channel: SshChannel, talk: Handshake) -> GpqError:
        """The problem of a connection that ended before the program there could start."""
        problem = None
        if not talk.seconds:  # something that is not a login shell says so here
            noise = talk.noise.decode("utf-8", "replace")
            problem = ssh_errors.known(noise, self.target.host)
        problem = problem or channel.problem()
        channel.close()
        if problem is None:
            code = channel.process.returncode
            problem = ssh_errors.end_problem(self.target.host, code, self.target.shown)
        return problem.error()

    def _connect(self) -> SshChannel:
        """gpq can end everything that ssh starts."""
        environment = environment_of(self._agents)
        argv = [
            *self.target.argv(*FIXED),
            *ALIVE,
            "-o",
            f"ConnectTimeout={self._timeout}",
            "--",
            self.target.host,
            REMOTE,
        ]
        process = start(argv, environment, self.errors, "install the OpenSSH client")
        agentless = self._agents is not None and self._agents.is_gone
        return SshChannel(process, self.target, self.errors, agentless)


class Handshake:
    """Raises EOFError if the pipe ends, GpqError if the data is invalid, and whatever `waiting`
    raises."""

    def __init__(self, source: int, sink: int, host: str, waiting: Callable[[], None]) -> None:
        self._source = source
        self._sink = sink
        self._host = host
        self._waiting = waiting
        self._began = time.monotonic()
        self.noise = b""  # output before the server's shell was ready
        self.seconds = 0.0  # until the server's shell was ready
        os.set_blocking(sink, False)

    def expect_shell(self, ready: str) -> None:
        """Skip what login scripts print. The shell then waits for us, so nothing can follow its
        word."""
        heard = b""
        word = ready.encode("ascii") + b"\n"
        while not heard.endswith(word):
            if len(heard) > NOISE:
                raise GpqError(
                    f"{self._host}: the login scripts print more than {NOISE >> 10} KiB",
                    "make .bashrc (.cshrc, config.fish) print nothing in non-interactive shells",
                )
            heard += self._read(1 << 12, pace.LOGIN_PATIENCE)
            self.noise = heard[-NOISE:]
        self.seconds = time.monotonic() - self._began

    def block(self, content: bytes) -> None:
        self.say(b"%08x" % len(content) + content)

    def say(self, data: bytes) -> None:
        buffer = memoryview(data)
        poller = select.poll()
        poller.register(self._sink, select.POLLOUT)
        while buffer:
            self._poll(poller, pace.SHELL_PATIENCE)
            try:
                buffer = buffer[os.write(self._sink, buffer[: 1 << 14]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:  # the answer says why, or there is no answer
                return

    def answer(self, word: str, no_python: str, python: str) -> Mapping[str, Any]:
        """The next line that begins with `word`. Raises GpqError for a refusal."""
        noise = 0
        while noise <= NOISE:
            line = b""
            while not line.endswith(b"\n") and len(line) <= NOISE:
                line += self._read(1, pace.SHELL_PATIENCE)
            noise += len(line)
            first_word, _, content = line.decode("utf-8", "replace").rstrip("\n").partition(" ")
            if first_word == no_python:
                versions = content.strip(" ,")
                if python:
                    raise Refused(
                        f"{self._host}: {versions or f'there is no {python}'}, but gpq needs Python"
                        " 3.8 or newer",
                        "correct `python` of that server",
                    )
                raise Refused(
                    f"{self._host}: no Python 3.8 or newer was found"
                    + (f" ({versions})" if versions else ""),
                    'install one, or name it: `python = "/path/to/python3"` of that server',
                )
            if first_word != word:
                continue
            answer: Mapping[str, Any] = json.loads(content)
            if not answer["ok"]:
                raise GpqError(f"{self._host}: {answer['error']}", str(answer.get("hint", "")))
            return answer
        raise GpqError(
            f"{self._host}: Python there prints text when it starts",
            "check sitecustomize and PYTHONSTARTUP",
        )

    def over(self) -> None:
        os.set_blocking(self._sink, True)

    def _read(self, size: int, patience: float) -> bytes:
        poller = select.poll()
        poller.register(self._source, select.POLLIN)
        self._poll(poller, patience)
        data = os.read(self._source, size)
        if not data:
            raise EOFError
        return data

    def _poll(self, poller: select.poll, patience: float) -> None:
        if time.monotonic() - self._began > LONGEST:
            raise GpqError(
                f"{self._host}: gpq could not start its agent within {LONGEST:.0f} s",
                "make login scripts shorter, or check the network",
            )
        until = time.monotonic() + patience
        while not poller.poll(LOOK * 1000):
            self._waiting()
            if time.monotonic() > until:
                raise GpqError(
                    f"{self._host}: logged in, but heard nothing for {patience:.0f} s",
                    f"`ssh {self._host} true` must end on its own: a login script may be waiting"
                    " for input",
                )
