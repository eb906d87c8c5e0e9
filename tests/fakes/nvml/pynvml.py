"""A fake of nvidia-ml-py's `pynvml`: the same names, signatures, structs, errors and call order that the agent uses.

Its state is the JSON file named by FAKE_NVML_STATE. Each nvmlInit reads it again:

    {"mode": "ok" | "hang" | "mismatch" | "mismatch-later" | "no-driver" | "unknown",
     "driver": "550.54.14",
     "gpus": [{"uuid", "name", "total_mib", "used_mib", "utilisation", "processes": [{"pid", "mib"}],
               "lost": "" | "handle" | "query",           # GPU_IS_LOST when a handle is asked for, or only for queries
               "broken": false,                           # Unknown Error from every query
               "drawing": [{"pid", "mib"}], "compute_mode": 0,
               "ecc": null | uncorrectable errors, "remapped": null | [corrected, uncorrected, pending, failed],
               "mig": null | [{"uuid", "name", "total_mib", "used_mib", "processes"}]}]}

The list's order is the index order. As in the real module, every call before nvmlInit raises Uninitialized, and memory
is in bytes. A process's memory may be None, and a MIG device has no utilisation.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from typing import Any, ClassVar

NVML_SUCCESS = 0
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
NVML_ERROR_UNKNOWN = 999
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_DEVICE_MIG_DISABLE = 0x0
NVML_DEVICE_MIG_ENABLE = 0x1
nvmlMemory_v2 = 0x02000028

_TEXTS = {
    NVML_ERROR_UNINITIALIZED: "Uninitialized",
    NVML_ERROR_INVALID_ARGUMENT: "Invalid Argument",
    NVML_ERROR_NOT_SUPPORTED: "Not Supported",
    NVML_ERROR_NOT_FOUND: "Not Found",
    NVML_ERROR_DRIVER_NOT_LOADED: "Driver Not Loaded",
    NVML_ERROR_LIBRARY_NOT_FOUND: "NVML Shared Library Not Found",
    NVML_ERROR_GPU_IS_LOST: "GPU is lost",
    NVML_ERROR_LIB_RM_VERSION_MISMATCH: "RM has detected an NVML/RM version mismatch.",
    NVML_ERROR_UNKNOWN: "Unknown Error",
}
_MIB = 1 << 20
_state: dict[str, Any] | None = None


class NVMLError(Exception):
    """As in the real module: `value` is the code, and a known code has its own subclass."""

    _valClassMapping: ClassVar[dict[int, type[NVMLError]]] = {}
    value: int

    def __new__(cls, value: int = NVML_ERROR_UNKNOWN) -> NVMLError:
        kind = cls._valClassMapping.get(value, cls) if cls is NVMLError else cls
        error = Exception.__new__(kind)
        error.value = value
        return error

    def __str__(self) -> str:
        return _TEXTS.get(self.value, f"NVML Error with code {self.value}")


class NVMLError_GpuIsLost(NVMLError):
    pass


class NVMLError_LibRmVersionMismatch(NVMLError):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


NVMLError._valClassMapping = {
    NVML_ERROR_GPU_IS_LOST: NVMLError_GpuIsLost,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH: NVMLError_LibRmVersionMismatch,
    NVML_ERROR_LIBRARY_NOT_FOUND: NVMLError_LibraryNotFound,
}


class c_nvmlMemory_t(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class c_nvmlUtilization_t(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class nvmlFriendlyObject:
    def __init__(self, dictionary: dict[str, Any]) -> None:
        for name, value in dictionary.items():
            setattr(self, name, value)


class _Handle:
    """Stands for a struct_c_nvmlDevice_t pointer."""

    def __init__(self, facts: dict[str, Any], mig: bool) -> None:
        self.facts = facts
        self.mig = mig


def _ready() -> dict[str, Any]:
    if _state is None:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    return _state


def _query(handle: _Handle) -> dict[str, Any]:
    _ready()
    if not isinstance(handle, _Handle):
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    if handle.facts.get("lost"):
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    if handle.facts.get("broken"):
        raise NVMLError(NVML_ERROR_UNKNOWN)
    return handle.facts


def nvmlInit() -> None:
    global _state
    with open(os.environ["FAKE_NVML_STATE"]) as stream:
        state = json.load(stream)
    mode = state.get("mode", "ok")
    if mode == "hang":
        time.sleep(3600)
    codes = {
        "mismatch": NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        "no-driver": NVML_ERROR_LIBRARY_NOT_FOUND,
        "unknown": NVML_ERROR_UNKNOWN,
    }
    if mode in codes:
        raise NVMLError(codes[mode])
    _state = state


def nvmlShutdown() -> None:
    global _state
    _ready()
    _state = None


def nvmlSystemGetDriverVersion() -> str:
    return str(_ready().get("driver", "550.54.14"))


def nvmlDeviceGetCount() -> int:
    if _ready().get("mode") == "mismatch-later":
        raise NVMLError(NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    return len(_ready()["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> _Handle:
    gpus = _ready()["gpus"]
    if not 0 <= index < len(gpus):
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    if gpus[index].get("lost") == "handle":
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    return _Handle(gpus[index], mig=False)


def nvmlDeviceGetUUID(handle: _Handle) -> str:
    _ready()
    return str(handle.facts["uuid"])


def nvmlDeviceGetName(handle: _Handle) -> str:
    return str(_query(handle).get("name", "NVIDIA A100-SXM4-80GB"))


def nvmlDeviceGetMemoryInfo(handle: _Handle, version: Any = None) -> c_nvmlMemory_t:
    facts = _query(handle)
    total, used = facts.get("total_mib", 81920) * _MIB, facts.get("used_mib", 0) * _MIB
    return c_nvmlMemory_t(total, total - used, used)


def nvmlDeviceGetUtilizationRates(handle: _Handle) -> c_nvmlUtilization_t:
    facts = _query(handle)
    if handle.mig:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return c_nvmlUtilization_t(facts.get("utilisation", 0), 0)


def nvmlDeviceGetComputeRunningProcesses(handle: _Handle) -> list[nvmlFriendlyObject]:
    return [
        nvmlFriendlyObject(
            {
                "pid": one["pid"],
                "usedGpuMemory": None if one.get("mib") is None else one["mib"] * _MIB,
                "gpuInstanceId": 0xFFFFFFFF,
                "computeInstanceId": 0xFFFFFFFF,
            }
        )
        for one in _query(handle).get("processes", [])
    ]


def nvmlDeviceGetGraphicsRunningProcesses(handle: _Handle) -> list[nvmlFriendlyObject]:
    found = _query(handle).get("drawing", [])
    return [nvmlFriendlyObject({"pid": one["pid"], "usedGpuMemory": one["mib"] * _MIB}) for one in found]


def nvmlDeviceGetComputeMode(handle: _Handle) -> int:
    return int(_query(handle).get("compute_mode", 0))


def nvmlDeviceGetFieldValues(handle: _Handle, fieldIds: list[int]) -> list[nvmlFriendlyObject]:
    _query(handle)
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def _known(facts: dict[str, Any], name: str) -> Any:
    if facts.get(name) is None:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return facts[name]


def nvmlDeviceGetTotalEccErrors(handle: _Handle, errorType: int, counterType: int) -> int:
    return int(_known(_query(handle), "ecc"))


def nvmlDeviceGetRemappedRows(device: _Handle) -> tuple[int, int, int, int]:
    corrected, uncorrected, pending, failed = _known(_query(device), "remapped")
    return corrected, uncorrected, pending, failed


def nvmlDeviceGetMigMode(device: _Handle) -> list[int]:
    facts = _query(device)
    if "mig" not in facts:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    mode = NVML_DEVICE_MIG_DISABLE if facts["mig"] is None else NVML_DEVICE_MIG_ENABLE
    return [mode, mode]


def nvmlDeviceGetMaxMigDeviceCount(device: _Handle) -> int:
    return 7 if _query(device).get("mig") is not None else 0


def nvmlDeviceGetMigDeviceHandleByIndex(device: _Handle, index: int) -> _Handle:
    parts = _query(device).get("mig") or []
    if index >= len(parts):
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return _Handle(parts[index], mig=True)
