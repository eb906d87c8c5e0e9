"""A look at the GPUs of this machine, in the best available way. Runs in a child process, because a
faulty driver may never answer.

It asks NVML first. If NVML reports nothing or fails, it asks `nvidia-smi`. devices.py attributes
processes to attempts and gives the verdict on each GPU.
"""

import shutil
from types import ModuleType
from typing import Optional, Sequence

from gpq_agent.node.devices import gpu_probe, nvml, smi
from gpq_agent.node.devices.gpu_probe import Probe


def binding() -> Optional[ModuleType]:
    """The binding with which `probe` asks NVML, None if there is none."""
    return nvml.load()


def probe(binding: Optional[ModuleType], skip: Sequence[str] = ()) -> Probe:
    """All GPUs of this server. Without a driver the answer is empty and has no error. For GPUs in
    `skip` (by UUID) NVML is asked only for their names."""
    answer = Probe([])
    if binding is not None:
        try:
            answer = nvml.look(binding, skip)
        except nvml.Unfit as reason:
            answer = Probe([], error="NVML: {}".format(reason))
    if not _says_something(answer) and shutil.which("nvidia-smi"):
        smi_answer = smi.look()
        answer = smi_answer if _says_something(smi_answer) or not answer.error else answer
    if answer.gpus or answer.error or answer.notice:
        return answer
    return answer._replace(notice=gpu_probe.unused_hardware())


def _says_something(answer: Probe) -> bool:
    return bool(answer.gpus or answer.lost or answer.hidden or answer.partitioned)
