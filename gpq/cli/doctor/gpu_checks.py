"""`gpq doctor --gpu`: what the driver says of GPUs, and a trial of each, on this machine or on
several servers at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from gpq_agent import wire

from gpq import config
from gpq.cli.doctor import server_lines
from gpq.cli.doctor.server_lines import Told, errand, job_environment, side_by_side
from gpq.client.connection import call
from gpq.options import environment
from gpq.rpc import node_answers, requests

Lines = dict[str, list[wire.GpuLine]]


def report(names: Sequence[str], python: str, show: Callable[[str], None]) -> Lines:
    """The lines about each server, and about this machine ("") if no server is named. Raises
    GpqError if the daemon cannot be reached or does not know a server."""
    show("testing the GPUs")
    try:
        if not names:
            interpreter = environment.interpreter(python, dict(os.environ))
            answer = server_lines.here("gpu", wire.GPU_LIMIT, python=interpreter)
            return {"": _lines(answer)}
        nodes = call(requests.Nodes(list(names)), node_answers.NodeList).nodes
        configs = config.load().nodes

        def there(name: str) -> list[wire.GpuLine]:
            interpreter = environment.on_server(python, configs.get(name, config.NodeConfig()))
            return _lines(
                errand(name, "gpu", wire.GPU_LIMIT, python=interpreter, env=job_environment())
            )

        return side_by_side(there, [node.name for node in nodes])
    finally:
        show("")


def _lines(answer: Told) -> list[wire.GpuLine]:
    """One line that fails if there is no answer."""
    if "lines" in answer:
        return [wire.GpuLine(**row) for row in answer["lines"]]
    fix = "try nvidia-smi and sudo dmesg | grep -i nvrm, and reboot if nothing else helps"
    return [wire.GpuLine("report", "FAIL", str(answer.get("error", "no answer")), fix=fix)]
