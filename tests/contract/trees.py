"""Copies the files of a job from one real agent to another, as the daemon does, and shows what a folder then holds."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpq_agent import wire

from gpq.daemon.files.transfer import Gauge, NodeSource, Transfer
from gpq.daemon.nodes.link import _decode
from gpq.errors import GpqError
from tests.agent.node.harness import NodeAgent

JOB = 7
LARGE = 100_000


def seen(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below a folder: kind, permissions, time, content."""
    found: dict[str, tuple[Any, ...]] = {}
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(place, name)
            status = os.lstat(path)
            content: Any = None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                content = status.st_size, _data(path)
            found[os.path.relpath(path, folder)] = oct(status.st_mode), status.st_mtime_ns, content
    return found


def _data(path: str) -> bytes:
    """The part that is not zero at the beginning. The rest of a long file is a hole."""
    with open(path, "rb") as stream:
        return stream.read(2 * LARGE)


def bring(source: NodeAgent, target: NodeAgent) -> Gauge:
    """As the daemon does it, with what it reads on its line. Raises GpqError with the reason why they stay."""

    def asking(node: NodeAgent) -> Callable[[str, Mapping[str, Any], float], Mapping[str, Any]]:
        def ask(operation: str, fields: Mapping[str, Any], patience: float) -> Mapping[str, Any]:
            return _decode(wire.encode(node.ask(operation, **fields)))

        return ask

    answer = asking(source)("files", {"job": JOB}, 60.0)
    if answer["stays"]:
        raise GpqError(answer["stays"])
    gauge = Gauge()
    Transfer({"job": JOB}, answer["files"], NodeSource(asking(source), JOB), asking(target), lambda: True, gauge).run()
    return gauge
