"""Defects for checks to find, each planted in the fork of one check."""

from __future__ import annotations

import ctypes
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpq_agent.train as gpq
import torch
from gpq_agent.train.checkpoints import store as checkpoint
from gpq_agent.train.data import sampler
from gpq_agent.train.gradients import noise_scale
from gpq_agent.train.gradients.step_gate import StepGate
from gpq_agent.train.loop.boundary import StepBoundary
from gpq_agent.train.process import shutdown as stopping
from gpq_agent.train.process.timing import StepClock

from . import kernels, looks, memory, replicas, restart, speed, steps
from .checks import Check
from .processes import wait_for_word

Work = Callable[[Any, list[str]], str]
FAKES = Path(__file__).resolve().parents[1] / "fakes"
STUBS = [f"GPU-0000000{number}-0000-0000-0000-000000000000" for number in (0, 1)]


def products_off() -> None:
    plain = torch.mm
    torch.mm = lambda first, second: plain(first, second) * 1.001


def nothing_refused() -> None:
    module = importlib.import_module("gpq_agent.train.loop.init")  # gpq.init is the function
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
    plain = sampler.shape_step

    def shape_step(*arguments: Any, **options: Any) -> Any:
        step = plain(*arguments, **options)
        return step._replace(micros=[micro._replace(weight=1.0 / len(step.micros)) for micro in step.micros])

    sampler.shape_step = shape_step


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


def stubbed_gpus() -> None:
    """Two GPUs, as tests/fakes/libnvml shows them to NVML and tests/fakes/smi to nvidia-smi."""
    folder = tempfile.mkdtemp()
    library = f"{folder}/libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, str(FAKES / "libnvml/nvml.c")]
    subprocess.run(command, check=True)
    ctypes.CDLL(library)  # from now on, nvidia-ml-py finds this one
    shown = {"name": "Stub", "total_mib": 81920, "used_mib": 1, "processes": []}
    state = Path(folder, "smi.json")
    state.write_text(json.dumps({"gpus": [{"uuid": uuid, **shown} for uuid in STUBS]}))
    os.environ.update(
        X_PIDS=f"{folder}/pids", FAKE_NVML_STATE=str(state), PATH=f"{FAKES / 'smi'}:{os.environ['PATH']}",
    )  # fmt: skip


def other_name() -> None:
    stubbed_gpus()
    os.environ["X_NAME"] = "Other"


def holder_of(mib: int, **more: str) -> Callable[[], None]:
    """A process that NVML shows with this much memory."""

    def hold(tell: Any, device: str) -> None:
        Path(os.environ["X_PIDS"]).write_text(f"{os.getpid()} {mib}\n")
        tell(mib)
        wait_for_word()

    def plant() -> None:
        stubbed_gpus()
        os.environ.update(more)
        looks.hold = hold
        looks.GONE = 1.0

    return plant


def of_stub(work: Work) -> Work:
    return lambda tell, devices: work(tell, STUBS)


def planted(work: Work, plant: Callable[[], None]) -> Check:
    """The check, after `plant` in its fork."""

    def flawed(tell: Any, devices: list[str]) -> str:
        plant()
        return work(tell, devices)

    return Check(flawed, 100.0)


PLANTS = {
    "same looks": planted(of_stub(looks.agreement), stubbed_gpus),
    "other name": planted(of_stub(looks.agreement), other_name),
    "process of 2500 MiB": planted(of_stub(looks.process), holder_of(2500)),
    "process of 100 MiB": planted(of_stub(looks.process), holder_of(100)),
    "ghost": planted(of_stub(looks.process), holder_of(2500, X_GHOSTS="1")),
    "product off": planted(kernels.products, products_off),
    "nothing refused": planted(kernels.wrong_names, nothing_refused),
    "events off": planted(kernels.events, events_off),
    "hidden wait": planted(steps.sgd_syncs, lambda: wait_hidden_in(StepGate, "enter")),
    "designed wait": planted(steps.sgd_syncs, lambda: wait_hidden_in(StepBoundary, "_compare_notes")),
    "weights forgotten": planted(steps.gradients, weights_forgotten),
    "noise off": planted(steps.noise, noise_off),
    "memory unknown": planted(memory.out_of_memory, memory_unknown),
    "momentum lost": planted(restart.resume, momentum_lost),
    "init fails": planted(speed.overhead, init_fails),
    "weights of two forgotten": planted(replicas.gradients, weights_forgotten),
    "checkpoints lost": planted(replicas.resize, checkpoints_lost),
    "survivor stays": planted(replicas.failures, survivor_stays),
    "crash": Check(crash, 100.0),
    "hang": Check(hang, 1.0),
}
