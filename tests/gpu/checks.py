"""The table of checks, and how one of them runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import kernels, looks, memory, processes, replicas, restart, speed, steps
from .processes import CPU, SLACK, CheckFailed, CheckSkipped, Child, error_text


class Check(NamedTuple):
    """`work` gets a way to tell its parent a value, and devices: UUIDs of GPUs, or "cpu". It returns a figure."""

    work: Callable[[Any, list[str]], str]
    limit: float  # seconds


class Outcome(NamedTuple):
    verdict: str  # "PASS" | "FAIL" | "SKIP"
    figure: str  # the measurement, or why there is none


CHECKS = {
    "NVML and nvidia-smi": Check(looks.agreement, 45.0),
    "process seen and gone": Check(looks.process, 75.0),
    "matrix product": Check(kernels.products, 45.0),
    "wrong names": Check(kernels.wrong_names, 45.0),
    "events": Check(kernels.events, 45.0),
    "waits, SGD": Check(steps.sgd_syncs, 45.0),
    "waits, AdamW": Check(steps.adamw_syncs, 45.0),
    "waits, GradScaler": Check(steps.scaler_syncs, 45.0),
    "gradients": Check(steps.gradients, 75.0),
    "noise scale": Check(steps.noise, 75.0),
    "memory of samples": Check(memory.sampled_steps, 45.0),
    "out of memory": Check(memory.out_of_memory, 45.0),
    "resume": Check(restart.resume, 75.0),
    "restart phases": Check(restart.phases, 75.0),
    "overhead": Check(speed.overhead, 75.0),
    "gradients of two": Check(replicas.gradients, 55.0),
    "resize": Check(replicas.resize, 75.0),
    "failures": Check(replicas.failures, 100.0),
}


def outcome(check: Check, devices: list[str]) -> Outcome:
    """Run one check in its own fork. Whatever happens to it becomes its outcome."""
    processes.slack = SLACK if CPU in devices else 1.0
    try:
        return Outcome("PASS", str(Child(check.work, devices).next(check.limit)))
    except CheckSkipped as reason:
        return Outcome("SKIP", str(reason))
    except CheckFailed as error:
        return Outcome("FAIL", str(error))
    except Exception as error:
        return Outcome("FAIL", error_text(error))
