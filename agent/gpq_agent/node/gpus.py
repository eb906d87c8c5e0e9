"""What the NVIDIA driver says of its GPUs, raw. Runs in a child process, because a sick driver may never answer.

NVML where the Python module `pynvml` can be imported, else `nvidia-smi`, which every driver brings along. Attributing
processes to attempts and judging a GPU is for devices.py.
"""

import contextlib
import os
import re
import shutil
import subprocess
from types import ModuleType
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from gpq_agent.node import procs

MIB = 1 << 20
SMI_FIELDS = (
    "index,uuid,name,memory.total,memory.used,utilization.gpu,driver_version,mig.mode.current,"
    "ecc.errors.uncorrected.volatile.total"
)
SKIPPED = "not asked"  # a GPU that is out of use and not to be looked at yet
REMAP = "a part of its memory is to be remapped: reset it (nvidia-smi --gpu-reset) or reboot"
REMAP_FAILED = "a faulty part of its memory could not be remapped: it needs a repair"
MISMATCH = "the NVIDIA driver was updated and no longer fits its library; this server must reboot"
LOST = "the GPU is lost (it fell off the bus); this server must reboot"


class RawGpu(NamedTuple):
    """One GPU, or one MIG device."""

    uuid: str
    number: int  # the index that NVML counts it at, of the whole GPU for a MIG device
    name: str
    memory_mib: int
    used_mib: int
    utilisation: Optional[int]
    processes: List[Tuple[int, int]]  # (pid, MiB)
    problem: str = ""  # "lost", SKIPPED or a sentence; "" = none
    ecc: Optional[int] = None  # uncorrectable memory errors since the driver was loaded


class Probe(NamedTuple):
    """One look at all GPUs. `error`: none of them can be used for something new, and why."""

    gpus: List[RawGpu]
    driver: str = ""
    error: str = ""
    lost: List[int] = []  # indexes of GPUs that cannot even be named


def load_nvml() -> Optional[ModuleType]:
    """The module `pynvml` of nvidia-ml-py, None where it is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml if hasattr(pynvml, "nvmlInit") else None


def probe(nvml: Optional[ModuleType], skip: Sequence[str] = ()) -> Probe:
    """All GPUs of this node; an empty answer without error where there is no driver. Of those in `skip` (by UUID) NVML is
    asked for no more than their names."""
    if nvml is not None:
        return probe_nvml(nvml, skip)
    if shutil.which("nvidia-smi"):
        return probe_smi()
    return Probe([])


# -- NVML


def probe_nvml(nvml: Any, skip: Sequence[str] = ()) -> Probe:
    """Through the library. Raises nothing of NVML's: every error becomes part of the answer."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
            return Probe([])  # a node without (a working) NVIDIA driver simply has no GPUs
        return Probe([], error=_explain(nvml, error))
    driver = ""
    gpus: List[RawGpu] = []
    lost: List[int] = []
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                gpus.extend(_devices_of(nvml, handle, index, skip))
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
                    raise
                lost.append(index)
    except nvml.NVMLError as error:
        return Probe([], driver, _explain(nvml, error))
    finally:
        with contextlib.suppress(nvml.NVMLError):  # the process ends anyway
            nvml.nvmlShutdown()
    return Probe(gpus, driver, "", lost)


def _explain(nvml: Any, error: Any) -> str:
    if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return MISMATCH
    return "NVML: {}".format(error)


def _devices_of(nvml: Any, handle: Any, index: int, skip: Sequence[str]) -> List[RawGpu]:
    """The GPU itself or, where it is partitioned, its MIG devices (then the whole cannot be used)."""
    uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    if uuid in skip:
        return [RawGpu(uuid, index, "", 0, 0, None, [], SKIPPED)]
    try:
        partitioned = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            return [RawGpu(uuid, index, "", 0, 0, None, [], "lost")]
        partitioned = False  # a GPU that knows no MIG
    if not partitioned:
        return [_read_device(nvml, handle, uuid, index)]
    parts = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            parts.append(_read_device(nvml, part, _text(nvml.nvmlDeviceGetUUID(part)), index))
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_NOT_FOUND:
                raise
    return parts


def _read_device(nvml: Any, handle: Any, uuid: str, index: int) -> RawGpu:
    name = ""
    try:
        name = _text(nvml.nvmlDeviceGetName(handle))
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError as error:
        lost = error.value == nvml.NVML_ERROR_GPU_IS_LOST
        return RawGpu(uuid, index, name, 0, 0, None, [], "lost" if lost else _explain(nvml, error))
    try:
        utilisation = plausible(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except nvml.NVMLError:
        utilisation = None  # MIG devices have none
    processes = sorted((int(one.pid), int(one.usedGpuMemory or 0) // MIB) for one in running)
    problem, ecc = _memory_health(nvml, handle)
    return RawGpu(uuid, index, name, memory.total // MIB, memory.used // MIB, utilisation, processes, problem, ecc)


def _memory_health(nvml: Any, handle: Any) -> Tuple[str, Optional[int]]:
    """(a fault that lasts, uncorrectable errors since the driver was loaded), as far as this GPU and its driver know them."""
    problem, errors = "", None
    with contextlib.suppress(nvml.NVMLError):  # before Ampere rows were not remapped
        _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
        problem = REMAP_FAILED if failed else REMAP if pending else ""
    with contextlib.suppress(nvml.NVMLError):  # no ECC
        errors = int(
            nvml.nvmlDeviceGetTotalEccErrors(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        )
    return problem, errors


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def plausible(value: Any) -> Optional[int]:
    """Per cent, or None: drivers have been seen to say 37,100 %."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number <= 100 else None


# -- nvidia-smi


def probe_smi() -> Probe:
    """Through the command, as csv."""
    code, output = _smi("--query-gpu=" + SMI_FIELDS, "--format=csv,noheader,nounits")
    if code != 0:
        return _smi_failure(output)
    apps_code, apps = _smi("--query-compute-apps=gpu_uuid,pid,used_gpu_memory", "--format=csv,noheader,nounits")
    if apps_code != 0:
        return _smi_failure(apps)
    processes: Dict[str, List[Tuple[int, int]]] = {}
    for row in _rows(apps, 3):
        processes.setdefault(row[0], []).append((int(row[1]), _number(row[2]) or 0))
    gpus: List[RawGpu] = []
    driver = ""
    for row in _rows(output, 9):
        index, uuid, name, total, used, utilisation, driver, mig, ecc = row
        if mig == "Enabled":
            gpus.extend(_smi_parts(uuid, int(index), processes))
            continue
        problem = "lost" if "lost" in ",".join(row).lower() else ""
        gpus.append(
            RawGpu(
                uuid,
                int(index),
                name,
                _number(total) or 0,
                _number(used) or 0,
                plausible(utilisation),
                sorted(processes.get(uuid, [])),
                problem,
                _number(ecc),
            )
        )
    return Probe(gpus, driver)


def _smi(*arguments: str) -> Tuple[int, str]:
    parent = os.getpid()
    done = subprocess.run(
        ("nvidia-smi", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(os.environ, LC_ALL="C"),
        preexec_fn=lambda: procs.die_with_parent(parent),  # a single thread forks here
        check=False,
    )
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _smi_failure(output: str) -> Probe:
    first = (output.strip().splitlines() or ["nvidia-smi failed and said nothing"])[0].strip()
    if "version mismatch" in output.lower():
        return Probe([], error=MISMATCH)
    if "couldn't communicate with the NVIDIA driver" in output or "No devices were found" in output:
        return Probe([])
    return Probe([], error="nvidia-smi: {}".format(first))


def _rows(output: str, fields: int) -> List[List[str]]:
    rows = ([field.strip() for field in line.split(",")] for line in output.splitlines())
    return [row for row in rows if len(row) == fields]


def _number(text: str) -> Optional[int]:
    """Digits only: absent values come as ``[N/A]`` or ``[Unknown Error]``."""
    return int(text) if text.isdigit() else None


def _smi_parts(parent: str, index: int, processes: Dict[str, List[Tuple[int, int]]]) -> List[RawGpu]:
    """MIG devices as ``nvidia-smi -L`` lists them below their GPU; the profile's name tells the memory."""
    code, listing = _smi("-L")
    parts: List[RawGpu] = []
    inside = False
    for line in listing.splitlines() if code == 0 else []:
        gpu = re.match(r"GPU \d+: .*\(UUID: (\S+)\)", line)
        part = re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)", line)
        if gpu:
            inside = gpu.group(1) == parent
        elif part and inside:
            profile, uuid = part.groups()
            size = re.search(r"(\d+)gb", profile)
            memory = int(size.group(1)) * 1024 if size else 0
            running = sorted(processes.get(uuid, []))
            parts.append(RawGpu(uuid, index, "MIG " + profile, memory, sum(one[1] for one in running), None, running))
    return parts
