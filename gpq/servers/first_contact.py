"""The first look at a new server: its host key, then send the agent, start it, ask what the server
has, and end the agent.

ssh asks about the host key, compares it with the keys that it knows and saves it, so this is right
through jump hosts as well. `-v` makes ssh print the key.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpq_agent import wire

from gpq import paths
from gpq.config import NodeConfig
from gpq.connectors import from_config, ssh_errors
from gpq.connectors.local import Channel
from gpq.connectors.ssh import Target
from gpq.errors import GpqError, Refused

REMARK_AFTER = 5.0  # seconds without an answer
PATIENCE = 75.0  # seconds for an answer, because a driver without persistence mode is slow
KEY_PATIENCE = 120.0  # seconds, because the user may have to touch a hardware key
# the ssh of a jump host does not print this
LOGGED_IN = re.compile(rb"^debug1: Sending command: ", re.MULTILINE)
KEY = re.compile(r"^debug1: Server host key: (\S+) (SHA256:\S+)", re.MULTILINE)
CHATTER = re.compile(
    r"^(?:debug1: |OpenSSH_|Authenticated to |Transferred: |Bytes per second).*\n?", re.MULTILINE
)
# These come before the user's own options. No prompt but the one about the key.
FIXED = (
    "-v", "-T", "-x", "-a",
    "-o", "NumberOfPasswordPrompts=0",
    "-o", "ControlPath=none",
    "-o", "ClearAllForwardings=yes",
    "-o", "PermitLocalCommand=no",
    "-o", "RemoteCommand=none",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Findings:
    """What the agent reports about its server."""

    host: str
    python: str
    cores: int
    memory_mib: int
    driver: str
    problem: str  # of the GPUs
    notice: str  # about the GPUs, though they work
    devices: list[dict[str, Any]]
    address: str

    @property
    def gpus(self) -> list[dict[str, Any]]:
        return [device for device in self.devices if device["kind"] == "cuda"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the agent keeps its files. Two names of one server have the same folder and the same
    boot."""

    boot_id: str
    folder: str
    # names of other servers that may be the same one
    beside: frozenset[str] = field(default=frozenset(), compare=False)


def meet(name: str, node: NodeConfig, talk: Talk) -> tuple[Findings, Place]:
    """What the server has, and its place. Raises GpqError, which names what the server lacks."""
    with tempfile.TemporaryDirectory() as folder:
        connector = from_config.ssh(node, Path(folder) / "errors")
        channel = connector.agent(
            from_config.ssh_arguments(name, node, paths.home()), _patiently(node.host, talk)
        )
        try:
            greeting = _answer(channel, node.host, 0)
            channel.writer.write(wire.encode({"v": wire.VERSION, "id": 1, "op": "probe"}))
            probe = _answer(channel, node.host, 1)
        finally:
            channel.close()
    place = Place(
        str(greeting["boot_id"]),
        os.path.dirname(str(greeting["path"])),
        frozenset(map(str, probe.get("beside", ()))),
    )
    return findings(greeting, probe), place


def findings(greeting: Mapping[str, Any], probe: Mapping[str, Any]) -> Findings:
    """Read the agent's two answers."""
    return Findings(
        host=str(greeting["host"]),
        python=str(greeting["python"]),
        cores=int(greeting["cores"]),
        memory_mib=int(greeting["memory_mib"]),
        driver=str(probe["driver"] or ""),
        problem=str(probe["error"] or ""),
        notice=str(probe.get("notice") or ""),
        devices=list(probe["devices"]),
        address=str(greeting["address"]),
    )


def _patiently(host: str, talk: Talk) -> Callable[[], None]:
    """Says once what gpq waits for."""
    says_at = [time.monotonic() + REMARK_AFTER]

    def waiting() -> None:
        if time.monotonic() > says_at[0]:
            says_at[0] = float("inf")
            talk.note(f"the login on {host} worked, but its login scripts or its Python are slow")

    return waiting


def other_name(name: str, place: Place, nodes: Mapping[str, NodeConfig], talk: Talk) -> str:
    """The name in `nodes` of the server at `place`, "" if there is none that answers."""
    behind_ssh = {candidate for candidate, node in nodes.items() if node.connector == "ssh"}
    for candidate in sorted(place.beside & behind_ssh - {name}):
        with contextlib.suppress(GpqError):  # it does not answer, so it is another server
            if meet(candidate, nodes[candidate], talk)[1] == place:
                return candidate
    return ""


def _answer(channel: Channel, host: str, number: int) -> dict[str, Any]:
    until = time.monotonic() + PATIENCE
    line = b""
    descriptor = channel.reader.fileno()
    while not line.endswith(b"\n"):
        if not select.select([descriptor], [], [], max(until - time.monotonic(), 0.0))[0]:
            raise GpqError(
                f"{host}: the agent did not answer within {PATIENCE:.0f} s",
                "check the server's load and disk",
            )
        # one request and one answer, so nothing else can be in it
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            raise GpqError(
                f"{host}: the agent ended: {channel.last_words() or 'it printed nothing'}", ""
            )
        line += piece
    message = wire.decode(line)
    if not message.get("ok") or message.get("id") != number:
        raise GpqError(
            f"{host}: the agent refused: {message.get('error', 'unexpected answer')}", ""
        )
    return message


def lines(name: str, findings: Findings) -> list[str]:
    """The findings as lines for a person."""
    server = (
        f"server    {name}: {findings.host}, Python {findings.python}, {findings.cores} cores,"
        f" {findings.memory_mib / 1024:.0f} GiB"
    )
    kinds = Counter(
        f"{device['type']} ({device['memory_mib'] / 1024:.0f} GiB)"
        if device["kind"] == "cuda"
        else "CPU slot"
        for device in findings.devices
    )
    offer = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    gpus = f"GPUs      {offer or 'no GPU, and no CPU slots requested'}"
    if findings.driver:
        gpus += f", driver {findings.driver}"
    remarks = [
        f"{label(device):<10}{device['state']}: {device['reason']}"
        for device in findings.devices
        if device["reason"]
    ]
    if findings.problem:
        remarks.append(f"problem   {findings.problem}")
    if findings.notice:
        remarks.append(f"note      {findings.notice}")
    return [server, gpus, *remarks]


def label(device: Mapping[str, Any]) -> str:
    """``GPU 3``."""
    return f"GPU {device['index']}" if device["kind"] == "cuda" else str(device["id"])


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
            "compare the fingerprint, then run `gpq nodes add` with --yes, or run"
            f" `{target.shown} {target.host}`",
        )
    if code == 255:
        problem = ssh_errors.problem(output, target.host, target.shown)
        problem = problem or ssh_errors.end_problem(target.host, code, target.shown)
        raise problem.error()
    return keys[-1][1] if keys else ""


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
    until = time.monotonic() + KEY_PATIENCE
    try:
        while not LOGGED_IN.search(output):
            patience = None if asks else max(until - time.monotonic(), 0.0)
            if not select.select([ssh.stderr], [], [], patience)[0]:
                hint = f"run `{target.shown} {target.host} true` to see why"
                raise GpqError(f"{target.host} took longer than {KEY_PATIENCE:.0f} s", hint)
            piece = os.read(ssh.stderr.fileno(), 1 << 16)
            if not piece:
                return ssh.wait(), output.decode("utf-8", "replace")
            output += piece
        return 0, output.decode("utf-8", "replace")
    finally:
        ssh.stderr.close()
        ssh.kill()
        with contextlib.suppress(ProcessLookupError):
            # with its jump hosts, if it does not share our group
            os.killpg(ssh.pid, signal.SIGKILL)
        ssh.wait()
