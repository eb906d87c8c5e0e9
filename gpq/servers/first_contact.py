"""The first look at a new server: send the agent, start it, ask what the server has, and end the
agent."""

from __future__ import annotations

import contextlib
import os
import select
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpq_agent import wire

from gpq import paths
from gpq.config import NodeConfig
from gpq.connectors import from_config
from gpq.connectors.local import Channel
from gpq.errors import GpqError
from gpq.servers.host_keys import Talk

REMARK_AFTER = 5.0  # seconds without an answer
PATIENCE = 75.0  # seconds for an answer, because a driver without persistence mode is slow


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
            f"{host}: the agent refused: {message.get('error', 'unexpected answer')}",
            "",
        )
    return message


def lines(name: str, findings: Findings) -> list[str]:
    """The findings as lines for a person."""
    server = (
        f"server    {name}: {findings.host}, Python {findings.python}, {findings.cores} cores,"
        f" {findings.memory_mib / 1024:.0f} GiB"
    )
    gpus = f"GPUs      {_offer(findings.devices)}"
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


def _offer(devices: Sequence[Mapping[str, Any]]) -> str:
    """``2 x A100 (80 GiB)``."""
    if not devices:
        return "no GPU, and no CPU slots requested"
    kinds = Counter(_kind(device) for device in devices)
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())


def _kind(device: Mapping[str, Any]) -> str:
    if device["kind"] != "cuda":
        return "CPU slot"
    return f"{device['type']} ({device['memory_mib'] / 1024:.0f} GiB)"


def label(device: Mapping[str, Any]) -> str:
    """``GPU 3``."""
    return f"GPU {device['index']}" if device["kind"] == "cuda" else str(device["id"])
