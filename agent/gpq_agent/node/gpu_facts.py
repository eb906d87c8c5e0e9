"""What NVML says of each GPU for `gpq doctor --gpu`, beyond what a look of the agent asks.

`python -m gpq_agent.node.gpu_facts` prints it; a process of its own, because a sick driver may never answer.
"""

import functools
import json
import sys
from typing import Any, Callable, Dict, List

from gpq_agent.node import gpus

Fact = Dict[str, Any]  # {"value"}, {"unsupported": why} or {"error": why}
PAST = ("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION", "NVML_ERROR_FUNCTION_NOT_FOUND")


def asked(nvml: Any, question: Callable[[], Any]) -> Fact:
    """The answer, or whether it is this GPU, driver or library that has none, or a fault."""
    try:
        return {"value": question()}
    except AttributeError:
        return {"unsupported": "nvidia-ml-py is too old to ask"}
    except nvml.NVMLError as error:
        kind = "unsupported" if error.value in [getattr(nvml, name) for name in PAST] else "error"
        return {kind: str(error)}
    except Exception as error:  # NVMLLibraryMismatchError is no NVMLError
        return {"error": "{}: {}".format(type(error).__name__, error)}


def of_gpu(nvml: Any, index: int) -> Dict[str, Fact]:
    """Everything of one GPU. Raises NVMLError where not even a handle can be had."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def pids(name: str) -> List[int]:
        return sorted(int(one.pid) for one in getattr(nvml, name)(handle))

    def memory(version: Any) -> List[int]:
        taken = nvml.nvmlDeviceGetMemoryInfo(handle, version) if version else nvml.nvmlDeviceGetMemoryInfo(handle)
        return [int(taken.used) // gpus.MIB, int(getattr(taken, "reserved", 0)) // gpus.MIB]

    def slices() -> Any:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return None
        return [one.uuid for one in gpus._devices_of(nvml, handle, index, ())]

    questions: Dict[str, Callable[[], Any]] = {
        "uuid": lambda: gpus._text(nvml.nvmlDeviceGetUUID(handle)),
        "name": lambda: gpus._text(nvml.nvmlDeviceGetName(handle)),
        "capability": lambda: list(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "persistence": lambda: int(nvml.nvmlDeviceGetPersistenceMode(handle)),
        "compute mode": lambda: int(nvml.nvmlDeviceGetComputeMode(handle)),
        "memory v1": lambda: memory(None),
        "memory v2": lambda: memory(nvml.nvmlMemory_v2),
        "processes": lambda: pids("nvmlDeviceGetComputeRunningProcesses"),
        "graphics": lambda: pids("nvmlDeviceGetGraphicsRunningProcesses"),
        "MPS": lambda: pids("nvmlDeviceGetMPSComputeRunningProcesses"),
        "MIG": slices,
        "ECC": lambda: int(
            nvml.nvmlDeviceGetTotalEccErrors(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        ),
        "remapped rows": lambda: [int(number) for number in nvml.nvmlDeviceGetRemappedRows(handle)],
    }
    return {name: asked(nvml, question) for name, question in questions.items()}


def everything() -> Dict[str, Any]:
    """{"error"} where NVML cannot be asked at all, "absent" where there is nothing to ask."""
    nvml = gpus.load_nvml()
    if nvml is None:
        return {"absent": "{} has no nvidia-ml-py: gpq asks nvidia-smi here".format(sys.executable)}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        absent = error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return {"absent" if absent else "error": "NVML: {}".format(error)}
    return {
        "nvml": _version(),
        "driver": asked(nvml, lambda: gpus._text(nvml.nvmlSystemGetDriverVersion())),
        "cuda": asked(nvml, lambda: int(nvml.nvmlSystemGetCudaDriverVersion())),
        "gpus": [asked(nvml, functools.partial(of_gpu, nvml, index)) for index in range(nvml.nvmlDeviceGetCount())],
    }


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("nvidia-ml-py")
    except metadata.PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    try:
        facts = everything()
    except Exception as error:
        facts = {"error": "{}: {}".format(type(error).__name__, error)}
    sys.stdout.write("gpq:" + json.dumps(facts) + "\n")
