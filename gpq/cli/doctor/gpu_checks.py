"""`gpq doctor --gpu`: what the driver says of GPUs, and a trial of each, on this machine or on
several servers at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence

from gpq_agent import wire

from gpq import config
from gpq.cli.doctor import gpu_looks
from gpq.cli.doctor.errands import errand, job_environment, side_by_side
from gpq.cli.doctor.server_lines import Told
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
            return {"": _here(environment.interpreter(python, dict(os.environ)))}
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


def _here(python: str) -> list[wire.GpuLine]:
    order = json.dumps({"python": python, "env": absolute(dict(os.environ))})
    return _lines(gpu_looks.reply("gpu_report", wire.GPU_LIMIT, order))


def absolute(env: dict[str, str]) -> dict[str, str]:
    """Makes PYTHONPATH absolute, because scripts run in another folder."""
    if env.get("PYTHONPATH"):
        env["PYTHONPATH"] = os.pathsep.join(
            os.path.abspath(entry or ".") for entry in env["PYTHONPATH"].split(":")
        )
    return env


def _lines(answer: Told) -> list[wire.GpuLine]:
    """One line that fails if there is no answer."""
    if "lines" in answer:
        return [wire.GpuLine(**row) for row in answer["lines"]]
    fix = "try nvidia-smi and sudo dmesg | grep -i nvrm, and reboot if nothing else helps"
    return [wire.GpuLine("report", "FAIL", str(answer.get("error", "no answer")), fix=fix)]
