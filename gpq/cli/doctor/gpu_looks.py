"""What `gpq doctor` says about this machine's GPUs and who uses them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gpq.cli.doctor.server_lines import Told
from gpq.cli.doctor.verdicts import Check

LIMIT = 60.0  # seconds. A driver without persistence mode is slow


def gpus() -> Check:
    look = reply("gpu_looks", LIMIT)
    if "gpus" not in look:
        fix = "try nvidia-smi and dmesg, and reboot if nothing else helps"
        return Check("gpus", "fail", f"no look at the GPUs: {look['error']}", fix)
    return verdict_of(look)


def reply(module: str, limit: float, order: str = "") -> Told:
    """What this module of gpq_agent.node.doctor prints, or {"error"}.

    It runs in a child process, because a broken driver may never answer, and in /, so that no
    file in the current folder counts as a module.
    """
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry or ".") for entry in sys.path),
    }
    try:
        process = subprocess.run(
            [sys.executable, "-m", f"gpq_agent.node.doctor.{module}"], input=order,
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
    finding = _equipment(look)
    if look["notice"]:
        return _notice(look, finding)
    foreign_pids = _foreign_pids(gpus)
    if foreign_pids:
        processes = ", ".join(f"{pid} ({_program(pid)})" for pid in foreign_pids[:5])
        finding += f", in use by others: pid {processes}"
        return Check("gpus", "warn", finding, "gpq leaves those GPUs alone")
    return Check("gpus", "ok", finding)


def _equipment(look: Mapping[str, Any]) -> str:
    kinds = [gpu["name"] for gpu in look["gpus"]]
    if not kinds:
        return "no NVIDIA GPU, so jobs run on CPU slots"
    counts = [f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)]
    return f"{', '.join(counts)}, driver {look['driver']}"


def _notice(look: Mapping[str, Any], finding: str) -> Check:
    """For a driver that answers but reports a problem."""
    finding += f", but {look['notice']}"
    if look["lost"]:
        return Check("gpus", "fail", finding, "nvidia-smi says more")
    return Check("gpus", "warn", finding, "" if look["gpus"] else "nvidia-smi says more")


def _foreign_pids(gpus: Sequence[Mapping[str, Any]]) -> list[int]:
    return sorted({pid for gpu in gpus for pid, _ in gpu["processes"] if not _is_ours(pid)})


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
