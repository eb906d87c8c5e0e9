"""What the driver's own library, NVML, reports about its GPUs, raw. Uses NVIDIA's binding `pynvml`
(nvidia-ml-py).

An agent that gpq ships brings the binding along. The binding may be newer or older than the driver.
If it cannot ask a question in the newest form, it asks in an older one. If that fails too, the two
are `Unfit`. Error codes are those of nvml.h.
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
SHIPPED = "gpq_agent.node.pynvml"  # the binding of an agent that gpq shipped
INSTALLED = "pynvml"

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, NOT_LOADED, NO_LIBRARY = 3, 4, 6, 9, 12
NO_FUNCTION, LOST, VERSION_MISMATCH, OTHER_ARGUMENT, DEPRECATED = 13, 15, 18, 25, 26
# the driver does not know this version of the question
OUTDATED = (NO_FUNCTION, OTHER_ARGUMENT, DEPRECATED)
PROHIBITED = 2  # compute mode
RECOVERY = 230  # field: what the driver wants so that the GPU works again
RECOVERIES = {
    1: "the driver asks for a reset of this GPU (nvidia-smi --gpu-reset)",
    2: "the driver asks for a reboot",
    3: "the driver asks for a reset after everything on its peers has ended",
    4: "the driver asks for a reset after everything on this GPU has ended",
}


class Unfit(Exception):
    """Binding and driver do not match."""


def load() -> Optional[ModuleType]:
    """The binding that came with this agent, otherwise the installed one. None if neither works."""
    for name in (SHIPPED, INSTALLED) if has_library() else (INSTALLED,):
        try:
            module = importlib.import_module(name)
        except Exception:  # missing, or for Python 2
            continue
        if hasattr(module, "nvmlInit"):
            return module
    return None


def has_library() -> bool:
    """Is the driver's library there? Without it the binding is useless, and loading the binding
    takes time."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    _ctypes.dlclose(library._handle)  # a driver may be updated while the agent lives
    return True


def look(nvml: Any, skip: Sequence[str] = ()) -> Probe:
    """Look at all GPUs. For the GPUs in `skip` (by UUID) ask only for the name. Raises Unfit, and
    no error of NVML."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value in (NO_LIBRARY, NOT_LOADED):
            return Probe([])  # a server without a working NVIDIA driver simply has no GPUs
        return Probe([], error=explain(error))
    except Exception as error:
        raise Unfit("{}: {}".format(type(error).__name__, error)) from error
    try:
        return _over_all(nvml, skip)
    except nvml.NVMLError as error:
        if error.value in OUTDATED:
            raise Unfit(explain(error)) from error
        return Probe([], error=explain(error))
    except Unfit:
        raise
    except Exception as error:
        raise Unfit("{}: {}".format(type(error).__name__, error)) from error
    finally:
        with contextlib.suppress(Exception):  # the process ends anyway
            nvml.nvmlShutdown()


def explain(error: Any) -> str:
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
    """Add the GPU itself or, if it is partitioned, its MIG devices (the whole GPU is then
    unusable)."""
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
    """All facts of one device, or what is wrong with it."""
    try:
        return _read(nvml, handle, uuid, index)
    except nvml.NVMLError as error:
        return _faulty(uuid, index, error)


def _faulty(uuid: str, index: int, error: Any) -> RawGpu:
    problem = "lost" if error.value == LOST else explain(error)
    return RawGpu(uuid, index, "", 0, 0, None, [], problem)


def slices_of(nvml: Any, handle: Any) -> Optional[List[Any]]:
    """Handles of the MIG devices of a GPU, None if it is not partitioned. Raises NVMLError."""
    mode = answer_or(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0], 0)
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
    """Read one device. What it does not support is unknown. Raises NVMLError if a query fails that
    every device supports."""
    name = text(answer_or(nvml, lambda: nvml.nvmlDeviceGetName(handle), "GPU"))
    total_mib, used_mib = memory(nvml, handle)
    compute_processes = processes(nvml, handle, "Compute")
    pids = {pid for pid, _ in compute_processes}
    mps_clients = [
        client for client in processes(nvml, handle, "MPSCompute") if client[0] not in pids
    ]
    graphics_processes = [
        client for client in processes(nvml, handle, "Graphics") if client[0] not in pids
    ]
    utilisation = answer_or(
        nvml, lambda: gpu_probe.plausible(nvml.nvmlDeviceGetUtilizationRates(handle).gpu), None
    )
    problem, errors = _health(nvml, handle)
    users = sorted([*compute_processes, *mps_clients])
    return RawGpu(
        uuid, index, name, total_mib, used_mib, utilisation, users, problem, errors,
        sorted(graphics_processes),
    )  # fmt: skip


def answer_or(nvml: Any, question: Callable[[], Any], otherwise: Any) -> Any:
    """The answer, or `otherwise` if this GPU, driver or account has none. Raises NVMLError for a
    fault."""
    try:
        return question()
    except AttributeError:  # the binding is too old to ask
        return otherwise
    except nvml.NVMLError as error:
        if error.value in (NOT_SUPPORTED, NO_PERMISSION, *OUTDATED):
            return otherwise
        raise
    except Exception as error:  # NVMLLibraryMismatchError, which is not an NVMLError
        if type(error).__name__ != "NVMLLibraryMismatchError":
            raise
        return otherwise


def memory(nvml: Any, handle: Any) -> Tuple[int, int]:
    """(total, in use), MiB, without the driver's own memory if the driver reports it separately. A
    GPU without memory of its own shares the machine's, and does not report how much it uses."""
    info = answer_or(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2), None)
    if info is None:
        info = answer_or(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle), None)
    if info is None:
        return gpu_probe.shared_memory_mib(), 0
    return int(info.total) // MIB, int(info.used) // MIB


def processes(nvml: Any, handle: Any, kind: str) -> List[Tuple[int, int]]:
    """(pid, MiB) of all processes of one kind: "Compute", "Graphics" or "MPSCompute". Empty if the
    GPU does not support that. Raises Unfit if the driver knows no form of the query for compute
    processes."""
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
    """(a lasting fault, uncorrectable errors since the driver was loaded), as far as this GPU and
    its driver know them."""
    problem, errors = "", None
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        # GPUs before Ampere do not remap rows
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
    """Why nothing may or can start on a GPU that is not broken, "" for no reason."""
    if answer_or(nvml, lambda: nvml.nvmlDeviceGetComputeMode(handle), 0) == PROHIBITED:
        return gpu_probe.BANNED
    action = recovery(nvml, handle)
    if action:
        return RECOVERIES.get(action, "the driver asks for recovery action {}".format(action))
    return ""


def recovery(nvml: Any, handle: Any) -> int:
    """The action that the driver (570 and later) wants, 0 for none."""
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        [field] = nvml.nvmlDeviceGetFieldValues(handle, [RECOVERY])
        return int(field.value.uiVal) if field.nvmlReturn == 0 else 0
    return 0


def text(value: Any) -> str:
    """Old bindings answer with bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
