"""The table of checks. Runs the checks of one part in order."""

import json
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple

from gpq_agent import wire

from . import kernels, memory, replicas, restart, speed, steps
from .processes import CheckFailed, CheckSkipped, Child, error_text


class Check(NamedTuple):
    work: Callable[[Any, List[str]], str]
    limit: float  # seconds


CHECKS: Dict[str, Dict[str, Check]] = {
    "kernels": {
        "matrix product": Check(kernels.products, 45.0),
        "wrong names": Check(kernels.wrong_names, 45.0),
        "events": Check(kernels.events, 45.0),
    },
    "training": {
        "waits, SGD": Check(steps.sgd_syncs, 45.0),
        "waits, AdamW": Check(steps.adamw_syncs, 45.0),
        "waits, GradScaler": Check(steps.scaler_syncs, 45.0),
        "gradients": Check(steps.gradients, 75.0),
        "noise scale": Check(steps.noise, 75.0),
        "memory of samples": Check(memory.sampled_steps, 45.0),
        "out of memory": Check(memory.out_of_memory, 45.0),
    },
    "restart": {
        "resume": Check(restart.resume, 75.0),
        "restart phases": Check(restart.phases, 75.0),
        "overhead": Check(speed.overhead, 75.0),
    },
    "replicas": {
        "gradients of two": Check(replicas.gradients, 55.0),
        "resize": Check(replicas.resize, 75.0),
        "failures": Check(replicas.failures, 100.0),
    },
}


def made(name: str, check: Check, devices: List[str]) -> wire.GpuLine:
    """Run one check in its own fork. Whatever happens to it becomes its line."""
    begin = time.monotonic()
    try:
        verdict, figure = "PASS", str(Child(check.work, devices).next(check.limit))
    except CheckSkipped as reason:
        verdict, figure = "SKIP", str(reason)
    except CheckFailed as error:
        verdict, figure = "FAIL", str(error)
    except Exception as error:
        verdict, figure = "FAIL", error_text(error)
    return wire.GpuLine(name, verdict, figure, round(time.monotonic() - begin, 1))


def main() -> None:
    """Arguments: the part, and the devices. Each line is written at once, so a later check that
    hangs loses no line."""
    part, devices = sys.argv[1], sys.argv[2:]
    for name, check in CHECKS[part].items():
        line = made(name, check, devices)
        sys.stdout.write("gpq:" + json.dumps(line._asdict()) + "\n")
        sys.stdout.flush()
