"""What NVML reports about each GPU for `gpq doctor --gpu`, in addition to the agent's own looks.

`python -m gpq_agent.node.doctor.gpu_facts` prints it, and with the argument `look` it prints one
look of the agent. It has its own process, because a faulty driver may never answer.
"""

import contextlib
import functools
import json
import sys
import time
from typing import Any, Callable, Dict, List

from gpq_agent.node.devices import looking, nvml
from gpq_agent.node.devices.gpu_probe import MIB

Fact = Dict[str, Any]  # {"value"}, {"unsupported": why} or {"error": why}
PAST = ("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION", "NVML_ERROR_FUNCTION_NOT_FOUND")


def asked(binding: Any, question: Callable[[], Any]) -> Fact:
    """The answer, or a note that this GPU, driver or library has none, or a fault."""
    try:
        return {"value": question()}
    except AttributeError:
        return {"unsupported": "nvidia-ml-py is too old to ask"}
    except binding.NVMLError as error:
        kind = (
            "unsupported" if error.value in [getattr(binding, name) for name in PAST] else "error"
        )
        return {kind: str(error)}
    except Exception as error:  # NVMLLibraryMismatchError is not an NVMLError
        return {"error": "{}: {}".format(type(error).__name__, error)}


def of_gpu(binding: Any, index: int) -> Dict[str, Fact]:
    """Everything about one GPU. Raises NVMLError if there is not even a handle."""
    handle = binding.nvmlDeviceGetHandleByIndex(index)

    def pids(name: str) -> List[int]:
        return sorted(int(process.pid) for process in getattr(binding, name)(handle))

    def memory(*version: Any) -> List[int]:
        info = binding.nvmlDeviceGetMemoryInfo(handle, *version)
        return [int(info.used) // MIB, int(getattr(info, "reserved", 0)) // MIB]

    def slices() -> Any:
        handles = nvml.slices_of(binding, handle)
        if handles is None:
            return None
        return [nvml.text(binding.nvmlDeviceGetUUID(part)) for part in handles]

    questions: Dict[str, Callable[[], Any]] = {
        "uuid": lambda: nvml.text(binding.nvmlDeviceGetUUID(handle)),
        "name": lambda: nvml.text(binding.nvmlDeviceGetName(handle)),
        "capability": lambda: list(binding.nvmlDeviceGetCudaComputeCapability(handle)),
        "persistence": lambda: int(binding.nvmlDeviceGetPersistenceMode(handle)),
        "compute mode": lambda: int(binding.nvmlDeviceGetComputeMode(handle)),
        "memory v1": lambda: memory(),
        "memory v2": lambda: memory(binding.nvmlMemory_v2),
        "processes": lambda: pids("nvmlDeviceGetComputeRunningProcesses"),
        "graphics": lambda: pids("nvmlDeviceGetGraphicsRunningProcesses"),
        "MPS": lambda: pids("nvmlDeviceGetMPSComputeRunningProcesses"),
        "MIG": slices,
        "recovery action": lambda: nvml.recovery(binding, handle),
        "ECC": lambda: int(
            binding.nvmlDeviceGetTotalEccErrors(
                handle, binding.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, binding.NVML_VOLATILE_ECC
            )
        ),
        "remapped rows": lambda: [
            int(number) for number in binding.nvmlDeviceGetRemappedRows(handle)
        ],
    }
    return {name: asked(binding, question) for name, question in questions.items()}


def everything() -> Dict[str, Any]:
    """{"error"} if NVML cannot be asked at all, "absent" if there is nothing to ask."""
    binding = nvml.load()
    if binding is None:
        return {"absent": "{} has no nvidia-ml-py: gpq uses nvidia-smi here".format(sys.executable)}
    try:
        binding.nvmlInit()
    except binding.NVMLError as error:
        absent = error.value in (
            binding.NVML_ERROR_LIBRARY_NOT_FOUND,
            binding.NVML_ERROR_DRIVER_NOT_LOADED,
        )
        return {"absent" if absent else "error": "NVML: {}".format(error)}
    from importlib import metadata  # which takes long, and the agent does not need it

    version = "unknown"
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version("nvidia-ml-py")
    return {
        "nvml": version,
        "driver": asked(binding, lambda: nvml.text(binding.nvmlSystemGetDriverVersion())),
        "cuda": asked(binding, lambda: int(binding.nvmlSystemGetCudaDriverVersion())),
        "gpus": [
            asked(binding, functools.partial(of_gpu, binding, index))
            for index in range(binding.nvmlDeviceGetCount())
        ],
    }


def look() -> Dict[str, Any]:
    """One look at the GPUs like those of the agent."""
    begin = time.monotonic()
    probe = looking.probe(looking.binding())
    notice = probe.describe(round(time.monotonic() - begin, 1))
    return dict(probe._asdict(), notice=notice, gpus=[gpu._asdict() for gpu in probe.gpus])


if __name__ == "__main__":
    try:
        facts = look() if sys.argv[1:] == ["look"] else everything()
    except Exception as error:
        facts = {"error": "{}: {}".format(type(error).__name__, error)}
    sys.stdout.write("gpq:" + json.dumps(facts) + "\n")
