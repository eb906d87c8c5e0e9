"""Runs checks of `gpq doctor --gpu` on the CPU, each with a defect planted in its fork, and prints their lines.

`python -m tests.agent.gpucheck.planted` reads names from PLANTS, or names of checks, which run unchanged.
"""

import importlib
import itertools
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import gpq_agent.train as gpq
import torch
from gpq_agent.gpucheck import checks, kernels, memory, replicas, restart, speed, steps
from gpq_agent.gpucheck.checks import Check
from gpq_agent.train.checkpoints import store as checkpoint
from gpq_agent.train.data import batches
from gpq_agent.train.engine.boundary import StepBoundary
from gpq_agent.train.noise import noise_scale
from gpq_agent.train.optim.step_gate import StepGate
from gpq_agent.train.runtime import shutdown as stopping
from gpq_agent.train.telemetry.timing import StepClock

from tests.support.ports import free_port

Work = Callable[[Any, list[str]], str]


def products_off() -> None:
    plain = torch.mm
    torch.mm = lambda first, second: plain(first, second) * 1.001


def nothing_refused() -> None:
    module = importlib.import_module("gpq_agent.train.job.init")  # gpq.init is the function
    module.open_device = lambda environment: torch.device("cpu")  # type: ignore[attr-defined]


def events_off() -> None:
    plain = StepClock.seconds
    StepClock.seconds = lambda self, begin, end: 0.9 * plain(self, begin, end)  # type: ignore[method-assign]


def wait_hidden_in(kind: Any, name: str) -> None:
    plain = getattr(kind, name)

    def waiting(self: Any, *arguments: Any, **options: Any) -> Any:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        return plain(self, *arguments, **options)

    waiting.__name__ = name
    waiting.__code__ = waiting.__code__.replace(co_name=name, co_filename="gpq_agent/train/planted.py")
    setattr(kind, name, waiting)


def weights_forgotten() -> None:
    batches.Step.weight = lambda self, index, replicas: 1.0 / len(self.counts)  # type: ignore[method-assign]


def noise_off() -> None:
    """In the first of the two processes."""
    plain, number = steps.Child, itertools.count()

    def child(*arguments: Any) -> Any:
        return plain(*arguments, environ={"PLANTED": str(next(number))})

    steps.Child = child  # type: ignore[assignment, misc]
    exact = noise_scale.NoiseScale.noise_scale
    factor = property(lambda self: exact.fget(self) * (1.05 if os.environ["PLANTED"] == "0" else 1.0))  # type: ignore
    noise_scale.NoiseScale.noise_scale = factor  # type: ignore[assignment]


def memory_unknown() -> None:
    stopping.OUT_OF_MEMORY = ()  # type: ignore[assignment]


def momentum_lost() -> None:
    torch.optim.SGD.load_state_dict = lambda self, state: None  # type: ignore[method-assign]


def checkpoints_lost() -> None:
    checkpoint.CheckpointStore.newest = lambda self, notice: None  # type: ignore[method-assign]


def survivor_stays() -> None:
    replicas.GONE = 2.0
    replicas.FAULTS = {"raises": replicas.FAULTS["raises"]}
    plain = replicas.as_a_script

    def stays(work: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until the library starts its own, and after that
        try:
            work()
        except RuntimeError:
            time.sleep(60.0 * (os.environ["RANK"] == "0"))
            plain(lambda: sys.exit(1))

    replicas.as_a_script = stays  # type: ignore[assignment]


def init_fails() -> None:
    def init(**_: Any) -> Any:
        raise ValueError("planted")

    gpq.init = init  # type: ignore[assignment]


def crash(tell: Any, devices: list[str]) -> str:
    os.kill(os.getpid(), signal.SIGSEGV)
    return ""


def hang(tell: Any, devices: list[str]) -> str:
    time.sleep(60.0)
    return ""


def nothing() -> None:
    pass


PLANTS: dict[str, tuple[Work, Callable[[], None]]] = {
    "product off": (kernels.products, products_off),
    "nothing refused": (kernels.wrong_names, nothing_refused),
    "events off": (kernels.events, events_off),
    "hidden wait": (steps.sgd_syncs, lambda: wait_hidden_in(StepGate, "enter")),
    "designed wait": (steps.sgd_syncs, lambda: wait_hidden_in(StepBoundary, "_compare_notes")),
    "weights forgotten": (steps.gradients, weights_forgotten),
    "noise off": (steps.noise, noise_off),
    "memory unknown": (memory.out_of_memory, memory_unknown),
    "momentum lost": (restart.resume, momentum_lost),
    "init fails": (speed.overhead, init_fails),
    "weights of two forgotten": (replicas.gradients, weights_forgotten),
    "checkpoints lost": (replicas.resize, checkpoints_lost),
    "survivor stays": (replicas.failures, survivor_stays),
    "crash": (crash, nothing),
    "hang": (hang, nothing),
}


def main() -> None:
    speed.TURNS = 4
    replicas._port = free_port  # gpq picks its own from the ports of other tests' connections
    whole = {name: check.work for part in checks.CHECKS.values() for name, check in part.items()}
    for name in map(str.strip, sys.stdin):
        work, plant = PLANTS.get(name, (whole.get(name), nothing))

        def planted(tell: Any, devices: list[str], work: Any = work, plant: Any = plant) -> Any:
            plant()
            return work(tell, devices)

        line = checks.made(name, Check(planted, 1.0 if name == "hang" else 100.0), ["cpu", "cpu"])
        sys.stdout.write(json.dumps(line._asdict()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
