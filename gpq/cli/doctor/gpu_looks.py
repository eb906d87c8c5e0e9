"""What `gpq doctor` says of this machine's GPUs, and of who is on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gpq.cli.doctor.verdicts import Check

LIMIT = 60.0  # seconds of a look: a driver without persistence mode takes its time


def gpus() -> Check:
    """Asks in a child process: a sick driver may never answer."""
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry or ".") for entry in sys.path),
    }
    command = [sys.executable, "-m", "gpq_agent.node.doctor.gpu_looks", "any"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT, env=environ, check=False
        )
    except subprocess.TimeoutExpired:
        finding = f"the NVIDIA driver did not answer within {LIMIT:.0f} s"
        return Check("gpus", "fail", finding, "nvidia-smi; dmesg; at last a reboot")
    try:
        look: dict[str, Any] = json.loads(answer.stdout)
    except ValueError:
        finding = f"the look ended: {answer.stderr.strip()[-200:]}"
        return Check("gpus", "fail", finding, "nvidia-smi shows what the driver says")
    return verdict_of(look)


def verdict_of(look: Mapping[str, Any]) -> Check:
    """A look as the agent prints it."""
    if look["error"]:
        return Check("gpus", "fail", look["error"], "sudo dmesg | grep -i nvrm says more")
    gpus = look["gpus"]
    faults = [f"{gpu['name'] or gpu['uuid']}: {gpu['problem']}" for gpu in gpus if gpu["problem"]]
    if faults:
        fix = "sudo dmesg | grep -i xid says more; a lost GPU needs a reboot"
        return Check("gpus", "fail", "; ".join(faults), fix)
    finding = _equipment(look)
    if look["notice"]:
        return _notice(look, finding)
    foreign_pids = _foreign_pids(gpus)
    if foreign_pids:
        processes = ", ".join(f"{pid} ({_program(pid)})" for pid in foreign_pids[:5])
        finding += f"; others use them: pid {processes}"
        return Check("gpus", "warn", finding, "gpq leaves those GPUs alone")
    return Check("gpus", "ok", finding)


def _equipment(look: Mapping[str, Any]) -> str:
    kinds = [gpu["name"] for gpu in look["gpus"]]
    if not kinds:
        return "no NVIDIA GPU: jobs run on CPU slots"
    counts = [f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)]
    return f"{', '.join(counts)}, driver {look['driver']}"


def _notice(look: Mapping[str, Any], finding: str) -> Check:
    """Of a driver that answers, and says that something is the matter."""
    finding += f"; {look['notice']}"
    if look["lost"]:
        return Check("gpus", "fail", finding, "nvidia-smi says more")
    return Check("gpus", "warn", finding, "" if look["gpus"] else "nvidia-smi says more")


def _foreign_pids(gpus: Sequence[Mapping[str, Any]]) -> list[int]:
    return sorted({pid for gpu in gpus for pid, _ in gpu["processes"] if not _is_ours(pid)})


def _is_ours(pid: int) -> bool:
    """Is the process part of a job of gpq's, or the server of MPS, whose clients are seen by
    themselves?"""
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
