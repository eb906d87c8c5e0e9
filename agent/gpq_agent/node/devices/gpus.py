"""A look at the GPUs of this machine, by the best way there is. Runs in a child process: a sick
driver may never answer.

NVML first, and where that has nothing to say, or fails, `nvidia-smi`. Attributing processes to
attempts and judging a GPU is for devices.py.
"""

import shutil
from types import ModuleType
from typing import Optional, Sequence

from gpq_agent.node.devices import gpu_probe, nvml, smi
from gpq_agent.node.devices.gpu_probe import Probe


def binding() -> Optional[ModuleType]:
    """What `probe` asks NVML by, None where that cannot be asked."""
    return nvml.load()


def probe(binding: Optional[ModuleType], skip: Sequence[str] = ()) -> Probe:
    """All GPUs of this node; an empty answer without error where there is no driver. Of
    GPUs in `skip` (by UUID) NVML is asked for no more than their names."""
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
