"""The looks of gpq's agent at GPUs: NVML and nvidia-smi agree, and a look shows who uses a GPU."""

from __future__ import annotations

import shutil
import time
from typing import Any

import torch
from gpq_agent.node.devices import looking, nvml, smi

from .processes import CPU, CheckFailed, CheckSkipped, Child, wait_for_word
from .trainings import enter

OPEN = 40.0  # seconds
HELD_MIB = 2048
LOOKS = 2  # in which a process must show
GONE = 10.0  # seconds in which it must be gone after its kill


def agreement(tell: Any, devices: list[str]) -> str:
    """Compare a look by NVML with one by nvidia-smi."""
    _need_gpu(devices)
    binding = looking.binding()
    if binding is None or shutil.which("nvidia-smi") is None:
        raise CheckSkipped("needs nvidia-ml-py and nvidia-smi")
    by_nvml, by_smi = ({gpu.uuid: gpu for gpu in probe.gpus} for probe in (nvml.look(binding), smi.look()))
    differences = []
    for uuid in sorted(by_nvml.keys() | by_smi.keys()):
        pair = [
            (gpu.number, gpu.name, sorted(dict(gpu.processes)), gpu.memory_mib) if gpu else None
            for gpu in (by_nvml.get(uuid), by_smi.get(uuid))
        ]
        first, second = pair
        if not first or not second or first[:3] != second[:3] or abs(first[3] - second[3]) > 1:
            differences.append(f"{uuid}: {first} by NVML, {second} by nvidia-smi")
    if differences:
        raise CheckFailed("; ".join(differences))
    return f"the same number, name, processes and memory of {len(by_nvml)} devices"


def process(tell: Any, devices: list[str]) -> str:
    """Let a process hold memory. Looks must show it, and no longer once it is killed."""
    _need_gpu(devices)
    holder = Child(hold, devices[0])
    holder.next(OPEN)
    memory = max(_memory(holder.pid, devices[0]) for _ in range(LOOKS))
    if memory < HELD_MIB:
        raise CheckFailed(f"a process holds {HELD_MIB} MiB, but {LOOKS} looks show {memory} MiB (-1: no process)")
    holder.end()
    begin = time.monotonic()
    while _memory(holder.pid, devices[0]) >= 0:
        if time.monotonic() - begin > GONE:
            raise CheckFailed(f"a process is still there {GONE:g} s after its kill")
    return f"a process with {memory} MiB, gone {time.monotonic() - begin:.1f} s after its kill"


def hold(tell: Any, device: str) -> None:
    enter(device)
    block = torch.ones(HELD_MIB << 20, dtype=torch.uint8, device="cuda")
    tell(block.numel())
    wait_for_word()


def _memory(pid: int, device: str) -> int:
    """MiB of the process on this GPU, -1 if the look does not show it."""
    probe = looking.probe(looking.binding())
    return max((dict(gpu.processes).get(pid, -1) for gpu in probe.gpus if gpu.uuid == device), default=-1)


def _need_gpu(devices: list[str]) -> None:
    if devices[0] == CPU:
        raise CheckSkipped("needs a GPU to look at")
