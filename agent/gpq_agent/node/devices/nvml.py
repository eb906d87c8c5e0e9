"""What the driver's own library, NVML, says of its GPUs, raw. Asked by way of NVIDIA's binding
`pynvml` (nvidia-ml-py).

The binding travels with an agent that gpq ships. It may be newer or older than the driver: what it
cannot ask in the newest form is asked in an older one, and where that fails too the two are
`Unfit`. Error codes are those of nvml.h.
"""

import _ctypes
import contextlib
import ctypes
import importlib
from types import ModuleType
from typing import Any, Callable, List, Optional, Sequence, Tuple

from gpq_agent.node.devices import gpu_probe
from gpq_agent.node.devices.gpu_probe import MIB, Probe, RawGpu

LIBRARY = "libnvidia-ml.so.1"
SHIPPED = "gpq_agent.node.pynvml"  # of an agent that gpq has brought here
INSTALLED = "pynvml"

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, NOT_LOADED, NO_LIBRARY = 3, 4, 6, 9, 12
NO_FUNCTION, LOST, VERSION_MISMATCH, OTHER_ARGUMENT, DEPRECATED = 13, 15, 18, 25, 26
# the question is of another version than the driver
OUTDATED = (NO_FUNCTION, OTHER_ARGUMENT, DEPRECATED)
PROHIBITED = 2  # compute mode
RECOVERY = 230  # field: what the driver asks for so that the GPU works again
RECOVERIES = {
    1: "the driver asks for a reset of this GPU (nvidia-smi --gpu-reset)",
    2: "the driver asks for a reboot",
    3: "the driver asks to end everything on its peers, and for a reset",
    4: "the driver asks to end everything on this GPU, and for a reset",
}


class Unfit(Exception):
    """Binding and driver do not go together."""


def load() -> Optional[ModuleType]:
    """The binding that came with this agent, else the one that is installed. None where neither can
    be used."""
    for name in (SHIPPED, INSTALLED) if has_library() else (INSTALLED,):
        try:
            module = importlib.import_module(name)
        except Exception:  # not there, or of Python 2
            continue
        if hasattr(module, "nvmlInit"):
            return module
    return None


def has_library() -> bool:
    """Without the driver's library the binding, which takes its time to load, is of no use."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    _ctypes.dlclose(library._handle)  # a driver may be updated while the agent lives
    return True


def look(nvml: Any, skip: Sequence[str] = ()) -> Probe:
    """Of the GPUs in `skip` (by UUID) no more than the name is asked. Raises Unfit, and nothing of
    NVML's."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value in (NO_LIBRARY, NOT_LOADED):
            return Probe([])  # a node without (a working) NVIDIA driver simply has no GPUs
        return Probe([], error=explained(error))
    except Exception as error:
        raise Unfit("{}: {}".format(type(error).__name__, error)) from error
    try:
        return _over_all(nvml, skip)
    except nvml.NVMLError as error:
        if error.value in OUTDATED:
            raise Unfit(explained(error)) from error
        return Probe([], error=explained(error))
    except Unfit:
        raise
    except Exception as error:
        raise Unfit("{}: {}".format(type(error).__name__, error)) from error
    finally:
        with contextlib.suppress(Exception):  # the process ends anyway
            nvml.nvmlShutdown()


def explained(error: Any) -> str:
    """An NVMLError as a sentence."""
    return gpu_probe.MISMATCH if error.value == VERSION_MISMATCH else "NVML: {}".format(error)


def _over_all(nvml: Any, skip: Sequence[str]) -> Probe:
    answer = Probe([], text(nvml.nvmlSystemGetDriverVersion()), "", [], [], [])
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError as error:
            if error.value == VERSION_MISMATCH or error.value in OUTDATED:
                raise
            (answer.hidden if error.value == NO_PERMISSION else answer.lost).append(index)
            continue
        if uuid in skip:
            answer.gpus.append(RawGpu(uuid, index, "", 0, 0, None, [], gpu_probe.SKIPPED))
        else:
            _add(nvml, answer, handle, uuid, index)
    return answer


def _add(nvml: Any, answer: Probe, handle: Any, uuid: str, index: int) -> None:
    """The GPU itself or, where it is partitioned, its MIG devices (then the whole cannot be
    used)."""
    try:
        slices = slices_of(nvml, handle)
        if slices is None:
            whole = _device(nvml, handle, uuid, index)
            answer.gpus.append(
                whole if whole.problem else whole._replace(problem=_ban(nvml, handle))
            )
            return
        answer.partitioned.append(uuid)
        parts = [(text(nvml.nvmlDeviceGetUUID(part)), part) for part in slices]
        answer.gpus.extend(
            _device(nvml, part, name, index)._replace(parent=uuid) for name, part in parts
        )
    except nvml.NVMLError as error:
        if error.value in OUTDATED:
            raise
        answer.gpus.append(_faulty(uuid, index, error))


def _device(nvml: Any, handle: Any, uuid: str, index: int) -> RawGpu:
    """All of one device, or what is wrong with it."""
    try:
        return _read(nvml, handle, uuid, index)
    except nvml.NVMLError as error:
        return _faulty(uuid, index, error)


def _faulty(uuid: str, index: int, error: Any) -> RawGpu:
    problem = "lost" if error.value == LOST else explained(error)
    return RawGpu(uuid, index, "", 0, 0, None, [], problem)


def slices_of(nvml: Any, handle: Any) -> Optional[List[Any]]:
    """Handles of the MIG devices of a GPU, None where it is not partitioned. Raises NVMLError."""
    mode = supported(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0], 0)
    if mode != 1:
        return None
    slices = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            slices.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
        except nvml.NVMLError as error:
            if error.value not in (NOT_FOUND, NO_PERMISSION):
                raise
    return slices


def _read(nvml: Any, handle: Any, uuid: str, index: int) -> RawGpu:
    """What a device does not support is unknown. Raises NVMLError where it fails in what all
    support."""
    name = text(supported(nvml, lambda: nvml.nvmlDeviceGetName(handle), "GPU"))
    total_mib, used_mib = memory(nvml, handle)
    compute_processes = processes(nvml, handle, "Compute")
    pids = {pid for pid, _ in compute_processes}
    mps_clients = [
        client for client in processes(nvml, handle, "MPSCompute") if client[0] not in pids
    ]
    graphics_processes = [
        client for client in processes(nvml, handle, "Graphics") if client[0] not in pids
    ]
    utilisation = supported(
        nvml, lambda: gpu_probe.plausible(nvml.nvmlDeviceGetUtilizationRates(handle).gpu), None
    )
    problem, errors = _health(nvml, handle)
    users = sorted([*compute_processes, *mps_clients])
    return RawGpu(
        uuid,
        index,
        name,
        total_mib,
        used_mib,
        utilisation,
        users,
        problem,
        errors,
        sorted(graphics_processes),
    )


def supported(nvml: Any, question: Callable[[], Any], otherwise: Any) -> Any:
    """The answer, `otherwise` where this GPU, this driver or this account has none. Raises
    NVMLError for a fault."""
    try:
        return question()
    except AttributeError:  # the binding is too old to ask
        return otherwise
    except nvml.NVMLError as error:
        if error.value in (NOT_SUPPORTED, NO_PERMISSION, *OUTDATED):
            return otherwise
        raise
    except Exception as error:  # NVMLLibraryMismatchError, which is no NVMLError
        if type(error).__name__ != "NVMLLibraryMismatchError":
            raise
        return otherwise


def memory(nvml: Any, handle: Any) -> Tuple[int, int]:
    """(total, in use), MiB, without what the driver keeps for itself where it tells that apart. A
    GPU that has no memory of its own shares the machine's, and does not tell how much of it is in
    use."""
    info = supported(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2), None)
    if info is None:
        info = supported(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle), None)
    if info is None:
        return gpu_probe.shared_memory_mib(), 0
    return int(info.total) // MIB, int(info.used) // MIB


def processes(nvml: Any, handle: Any, kind: str) -> List[Tuple[int, int]]:
    """(pid, MiB) of all of one kind: "Compute", "Graphics" or "MPSCompute". Empty where that is not
    supported. Raises Unfit where compute processes can be asked for in no way that the driver
    knows."""
    base = "nvmlDeviceGet{}RunningProcesses".format(kind)
    for name in (base, base + "_v3", base + "_v2"):
        try:
            running = getattr(nvml, name)(handle)
        except AttributeError:
            continue
        except nvml.NVMLError as error:
            if error.value in (NOT_SUPPORTED, NO_PERMISSION):
                return []
            if error.value in OUTDATED:
                continue
            raise
        except Exception as error:
            if type(error).__name__ != "NVMLLibraryMismatchError":
                raise
            continue
        return [(int(process.pid), int(process.usedGpuMemory or 0) // MIB) for process in running]
    if kind == "Compute":
        raise Unfit("this nvidia-ml-py cannot ask this driver which processes use a GPU")
    return []


def _health(nvml: Any, handle: Any) -> Tuple[str, Optional[int]]:
    """(a fault that lasts, uncorrectable errors since the driver was loaded), as far as this GPU
    and its driver know them."""
    problem, errors = "", None
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        # before Ampere rows were not remapped
        _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
        problem = gpu_probe.REMAP if pending else ""
        if failed:
            problem = gpu_probe.REMAP_FAILED
    with contextlib.suppress(nvml.NVMLError, AttributeError):  # no ECC
        errors = int(
            nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        )
    return problem, errors


def _ban(nvml: Any, handle: Any) -> str:
    """Why nothing may or can begin on a GPU that is not broken, "" for nothing."""
    if supported(nvml, lambda: nvml.nvmlDeviceGetComputeMode(handle), 0) == PROHIBITED:
        return gpu_probe.BANNED
    action = recovery(nvml, handle)
    return (
        RECOVERIES.get(action, "the driver asks for recovery action {}".format(action))
        if action
        else ""
    )


def recovery(nvml: Any, handle: Any) -> int:
    """The action that the driver (570 and later) asks for, 0 for none."""
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        [field] = nvml.nvmlDeviceGetFieldValues(handle, [RECOVERY])
        return int(field.value.uiVal) if field.nvmlReturn == 0 else 0
    return 0


def text(value: Any) -> str:
    """Old bindings answer in bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
