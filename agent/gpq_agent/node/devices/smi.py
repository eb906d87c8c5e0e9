"""What `nvidia-smi`, which comes with every driver, reports about the GPUs, raw. Used when NVML
cannot be asked."""

import os
import re
import subprocess
from typing import Dict, List, Optional, Tuple

from gpq_agent.node.devices import gpu_probe
from gpq_agent.node.devices.gpu_probe import Probe, RawGpu
from gpq_agent.node.host import procs

GPUS = (
    "--query-gpu=index,uuid,name,memory.total,memory.used,utilization.gpu,driver_version,"
    "mig.mode.current,ecc.errors.uncorrected.volatile.total,compute_mode"
)
APPS = "--query-compute-apps=gpu_uuid,pid,used_gpu_memory"
AS_CSV = "--format=csv,noheader,nounits"
Processes = Dict[str, List[Tuple[int, int]]]  # (pid, MiB) by UUID


def look() -> Probe:
    """Look at all GPUs. If one of them makes the whole command fail, ask the others one by one."""
    names: List[str] = []
    code, first_output = _query(GPUS, names)
    output = first_output
    if code != 0:
        # UUIDs of the GPUs that have a name, although another has none
        names = re.findall(r"^GPU \d+: .*\(UUID: (\S+)\)", _run("-L")[1], re.MULTILINE)
        code, output = _query(GPUS, names) if names else (code, first_output)
        if code != 0:
            return _failure(first_output)
    code, apps = _query(APPS, names)
    if code != 0:
        return _failure(apps)
    processes: Processes = {}
    for uuid, pid, memory in _rows(apps, 3):
        if pid.isdecimal():
            processes.setdefault(uuid, []).append((int(pid), _number(memory) or 0))
    return _read(output, processes)._replace(notice=_failure(first_output).error if names else "")


def _query(question: str, names: List[str]) -> Tuple[int, str]:
    """(exit code, rows) of all GPUs at once. With `names`, of each of them, and code 0 if one has
    answered."""
    if not names:
        return _run(question, AS_CSV)
    answers = [_run(question, AS_CSV, "-i", name) for name in names]
    rows = [output for code, output in answers if code == 0]
    return (0, "".join(rows)) if rows else answers[0]


def _read(output: str, processes: Processes) -> Probe:
    answer = Probe([], "", "", [], [], [])
    for row in _rows(output, 10):
        index, uuid, name, total_mib, used_mib, utilisation, driver, mig, ecc, mode = row
        answer = answer._replace(driver=driver)
        if mig == "Enabled":
            answer.partitioned.append(uuid)
            answer.gpus.extend(_slices(uuid, int(index), processes))
            continue
        if "lost" in ",".join(row).lower():
            answer.gpus.append(RawGpu(uuid, int(index), "", 0, 0, None, [], "lost"))
            continue
        processes_here = sorted(processes.get(uuid, []))
        memory = (_number(total_mib) or gpu_probe.shared_memory_mib(), _number(used_mib) or 0)
        problem = gpu_probe.BANNED if mode == "Prohibited" else ""
        gpu = RawGpu(
            uuid, int(index), name, *memory, gpu_probe.plausible(utilisation), processes_here,
            problem, _number(ecc),
        )  # fmt: skip
        answer.gpus.append(gpu)
    return answer


def _slices(parent: str, index: int, processes: Processes) -> List[RawGpu]:
    """MIG devices as ``nvidia-smi -L`` lists them below their GPU. The profile's name gives the
    memory. Some drivers show a process on its slice, others on the whole GPU. A process on the
    whole GPU may be on any slice."""
    code, listing = _run("-L")
    slices: List[RawGpu] = []
    is_of_parent = False
    for line in listing.splitlines() if code == 0 else []:
        gpu = re.match(r"GPU \d+: .*\(UUID: (\S+)\)", line)
        part = re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)", line)
        if gpu:
            is_of_parent = gpu.group(1) == parent
        elif part and is_of_parent:
            profile, uuid = part.groups()
            size = re.search(r"(\d+)gb", profile)
            total_mib = int(size.group(1)) * 1024 if size else 0
            slice_processes = sorted([*processes.get(uuid, []), *processes.get(parent, [])])
            used_mib = sum(mib for _, mib in processes.get(uuid, []))
            name, sizes = "MIG " + profile, (total_mib, used_mib)
            slices.append(RawGpu(uuid, index, name, *sizes, None, slice_processes, parent=parent))
    return slices


def _run(*arguments: str) -> Tuple[int, str]:
    parent = os.getpid()
    process = subprocess.run(
        ("nvidia-smi", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(os.environ, LC_ALL="C"),
        preexec_fn=lambda: procs.die_with_parent(parent),  # only a single thread forks here
        check=False,
    )
    return process.returncode, process.stdout.decode("utf-8", "replace")


def _failure(output: str) -> Probe:
    first_line = (output.strip().splitlines() or ["it failed without output"])[0].strip()
    if "version mismatch" in output.lower():
        return Probe([], error=gpu_probe.MISMATCH)
    if "couldn't communicate with the NVIDIA driver" in output or "No devices were found" in output:
        return Probe([])
    return Probe([], error="nvidia-smi: {}".format(first_line))


def _rows(output: str, fields: int) -> List[List[str]]:
    rows = ([field.strip() for field in line.split(",")] for line in output.splitlines())
    return [row for row in rows if len(row) == fields]


def _number(text: str) -> Optional[int]:
    """Digits only: missing values appear as ``[N/A]`` or ``[Unknown Error]``."""
    return int(text) if text.isdecimal() else None
