"""`gpq doctor --gpu`: what the driver says of GPUs, and a trial of each, on this machine or on
several servers at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpq_agent import wire

from gpq import config
from gpq.cli.doctor.server_lines import Check, Told, errand, job_environment, side_by_side
from gpq.client.connection import call
from gpq.options import environment
from gpq.rpc import node_answers, requests

Lines = dict[str, list[wire.GpuLine]]
LIMIT = 60.0  # seconds. A driver without persistence mode is slow


def report(names: Sequence[str], python: str, show: Callable[[str], None]) -> Lines:
    """The lines about each server, and about this machine ("") if no server is named. Raises
    GpqError if the daemon cannot be reached or does not know a server."""
    show("testing the GPUs")
    try:
        if not names:
            interpreter = environment.interpreter(python, dict(os.environ))
            order = json.dumps({"python": interpreter, "env": absolute(dict(os.environ))})
            return {"": _lines(reply(("gpu_report",), wire.GPU_LIMIT, order))}
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


def gpus() -> Check:
    look = reply(("gpu_facts", "look"), LIMIT)
    if "gpus" not in look:
        fix = "try nvidia-smi and dmesg, and reboot if nothing else helps"
        return Check("gpus", "fail", f"no look at the GPUs: {look['error']}", fix)
    return verdict_of(look)


def reply(words: Sequence[str], limit: float, order: str = "") -> Told:
    """What a module of gpq_agent.node.doctor prints, or {"error"}. `words`: it and its arguments.

    It runs in a child process, because a broken driver may never answer, and in /, so that no
    file in the current folder counts as a module.
    """
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry or ".") for entry in sys.path),
    }
    try:
        process = subprocess.run(
            [sys.executable, "-m", f"gpq_agent.node.doctor.{words[0]}", *words[1:]], input=order,
            capture_output=True, text=True, errors="replace", timeout=limit, env=environ, cwd="/",
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {limit:.0f} s"}
    for line in process.stdout.splitlines():
        if line.startswith("gpq:"):
            answer: Told = json.loads(line[len("gpq:") :])
            return answer
    words = (process.stderr.strip().splitlines() or ["no output"])[-1]
    return {"error": f"exit {process.returncode}: {words}"}


def verdict_of(look: Mapping[str, Any]) -> Check:
    """`look`: as the agent prints it."""
    if look["error"]:
        return Check("gpus", "fail", look["error"], "sudo dmesg | grep -i nvrm says more")
    gpus = look["gpus"]
    faults = [f"{gpu['name'] or gpu['uuid']}: {gpu['problem']}" for gpu in gpus if gpu["problem"]]
    if faults:
        fix = "sudo dmesg | grep -i xid says more. A lost GPU needs a reboot"
        return Check("gpus", "fail", ", ".join(faults), fix)
    kinds = Counter(gpu["name"] for gpu in gpus)
    counts = [f"{count} x {kind}" for kind, count in kinds.items()]
    finding = "no NVIDIA GPU, so jobs run on CPU slots"
    if gpus:
        finding = f"{', '.join(counts)}, driver {look['driver']}"
    if look["notice"]:  # the driver answers but reports a problem
        finding += f", but {look['notice']}"
        if look["lost"]:
            return Check("gpus", "fail", finding, "nvidia-smi says more")
        return Check("gpus", "warn", finding, "" if gpus else "nvidia-smi says more")
    foreign_pids = {pid for gpu in gpus for pid, _ in gpu["processes"] if not _is_ours(pid)}
    if foreign_pids:
        processes = ", ".join(f"{pid} ({_program(pid)})" for pid in sorted(foreign_pids)[:5])
        finding += f", in use by others: pid {processes}"
        return Check("gpus", "warn", finding, "gpq leaves those GPUs alone")
    return Check("gpus", "ok", finding)


def _is_ours(pid: int) -> bool:
    """Is it part of a gpq job, or the MPS server? The clients of MPS show up separately."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            if b"GPQ_JOB" in stream.read():
                return True
    except OSError:
        pass
    return _program(pid).startswith("nvidia-cuda-mps")


def _program(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return "gone"
