"""`gpq doctor --gpu` on the server itself: what the driver and torch say, and a trial of each GPU
that nobody uses. gpq holds their locks in the meantime.

`python -m gpq_agent.node.doctor.gpu_report` reads {"python", "env"} from stdin and prints
{"lines"}.
"""

import contextlib
import os
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from gpq_agent.node.devices import cuda_trial, gpu_locks
from gpq_agent.node.devices.gpu_probe import LOST
from gpq_agent.node.devices.nvml import RECOVERIES
from gpq_agent.node.doctor import errand_process, gpu_facts
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.wire import GpuLine

Facts = Dict[str, Any]
Judgement = Tuple[bool, str]
IDLE_MIB = 256  # memory that an idle GPU may use in addition to the driver's own
DRIVER_FIX = "nvidia-smi and sudo dmesg | grep -i nvrm say more"
LIBRARY_FIX = (
    "install the driver's CUDA library. In a container, set NVIDIA_DRIVER_CAPABILITIES to "
    "compute,utility"
)
RESET = "reset it when it is free: sudo nvidia-smi --gpu-reset. If it comes back, it needs repair"
FIXES = {
    "architectures": "install a torch that was built for this GPU",
    "persistence": "sudo nvidia-smi -pm 1, or enable nvidia-persistenced",
    "idle memory": "sudo nvidia-smi shows who uses it. If nobody does, reset the GPU",
    "MIG": "create a MIG device, or turn MIG off: sudo nvidia-smi -mig 0",
    "compute mode": "sudo nvidia-smi -c 0",
    "recovery action": "do what the driver asks for. gpq starts nothing there before",
    "ECC": RESET,
    "remapped rows": RESET,
    "trial": "sudo dmesg | grep -i xid says more. A GPU that stays like this needs a reboot",
}
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}

FACTS_LIMIT = 20.0  # seconds, as all limits. Together they are below wire.GPU_LIMIT
TORCH_LIMIT = 25.0
LOOK_LIMIT = 12.0
TRIAL_LIMIT = 45.0
# share of a GPU's memory that may be in use without a visible process, because drivers keep some
IN_USE = 0.05

LOOK_AT_TORCH = """
import json, platform
import torch
try:
    architectures = torch.cuda.get_arch_list()
except Exception:
    architectures = []
print("gpq:" + json.dumps({"python": platform.python_version(), "torch": str(torch.__version__),
    "cuda": str(torch.version.cuda or ""), "architectures": architectures}))
"""


def of_facts(facts: Facts, torch: Facts, mps: List[int]) -> List[GpuLine]:
    """All lines that need no looks. `mps`: pids of MPS servers on this machine."""
    names: Dict[str, Callable[[Facts], Judgement]] = {
        "persistence": _persistence, "idle memory": _idle, "MIG": _slices, "compute mode": _mode,
        "recovery action": _recovery, "ECC": _errors, "remapped rows": _remapped_rows,
        "MPS": lambda gpu: _mps(gpu, mps), "graphics": _graphics,
    }  # fmt: skip
    missing = unasked(facts)
    if missing is not None:
        return [missing._replace(name=name) for name in ("versions", "architectures", *names)]
    return [
        versions(facts, torch), architectures(facts, torch),
        *(over_gpus(name, _by_number(facts), judge) for name, judge in names.items()),
    ]  # fmt: skip


def _by_number(facts: Facts) -> List[Tuple[str, Facts]]:
    return [(str(number), gpu) for number, gpu in enumerate(facts["gpus"])]


def unasked(facts: Facts) -> Optional[GpuLine]:
    """The line to use if nothing could be asked, None if something was."""
    if "absent" in facts:
        return GpuLine("", "SKIP", facts["absent"])
    if "error" in facts:
        return GpuLine("", "FAIL", facts["error"], fix=DRIVER_FIX)
    return None if facts["gpus"] else GpuLine("", "SKIP", "the driver shows no GPU")


class Unsupported(Exception):
    """This GPU or driver has no answer to this question."""


class Faulty(Exception):
    """NVML failed."""


def value(gpu: Facts, name: str) -> Any:
    """Raises Unsupported and Faulty."""
    fact = gpu[name]
    if "unsupported" in fact:
        raise Unsupported(fact["unsupported"])
    if "error" in fact:
        raise Faulty(fact["error"])
    return fact["value"]


def over_gpus(
    name: str, gpus: List[Tuple[str, Facts]], judge: Callable[[Any], Judgement]
) -> GpuLine:
    """One line for all GPUs, given with their numbers: FAIL if one fails, SKIP if none has an
    answer."""
    texts: Dict[str, List[str]] = {}
    verdicts = set()
    fix = ""
    for number, gpu in gpus:
        try:
            ok, text = judge(value({"gpu": gpu}, "gpu"))
            verdicts.add("PASS" if ok else "FAIL")
            fix = fix if ok else FIXES[name]
        except Unsupported as reason:
            verdicts.add("SKIP")
            text = str(reason)
        except Faulty as error:
            verdicts.add("FAIL")
            text = str(error)
            fix = fix or DRIVER_FIX
        texts.setdefault(text, []).append(number)
    figure = "; ".join(
        "GPU {}: {}".format(", ".join(numbers), text) for text, numbers in texts.items()
    )
    verdict = next(verdict for verdict in ("FAIL", "PASS", "SKIP") if verdict in verdicts)
    return GpuLine(name, verdict, figure, fix=fix)


def _persistence(gpu: Facts) -> Judgement:
    if value(gpu, "persistence"):
        return True, "on"
    return False, "off: every look initialises the driver again"


def _idle(gpu: Facts) -> Judgement:
    if value(gpu, "processes") or value(gpu, "graphics"):
        raise Unsupported("in use")
    used_v1, _ = value(gpu, "memory v1")
    if "value" not in gpu["memory v2"]:
        return used_v1 < IDLE_MIB, "{} MiB by v1, v2 is unknown".format(used_v1)
    used_v2, reserved = gpu["memory v2"]["value"]
    text = "{} MiB by v1, {} MiB by v2, {} MiB reserved".format(used_v1, used_v2, reserved)
    return used_v2 < IDLE_MIB, text


def _slices(gpu: Facts) -> Judgement:
    try:
        slices = value(gpu, "MIG")
    except Unsupported:
        return True, "not supported by this GPU"
    if slices is None:
        return True, "off"
    return bool(slices), (
        "{} devices".format(len(slices)) if slices else "on, but without a device: nothing can run"
    )


def _mode(gpu: Facts) -> Judgement:
    mode = value(gpu, "compute mode")
    return mode in (0, 3), COMPUTE_MODES.get(mode, str(mode))


def _recovery(gpu: Facts) -> Judgement:
    action = value(gpu, "recovery action")
    return not action, RECOVERIES.get(action, "action {}".format(action)) if action else "none"


def _errors(gpu: Facts) -> Judgement:
    errors = value(gpu, "ECC")
    return errors == 0, "{} uncorrectable errors".format(errors)


def _remapped_rows(gpu: Facts) -> Judgement:
    corrected, uncorrected, pending, failed = value(gpu, "remapped rows")
    text = "{} remapped{}".format(corrected + uncorrected, ", a reset is needed" if pending else "")
    return not pending and not failed, text + (", one remap failed" if failed else "")


def _mps(gpu: Facts, servers: List[int]) -> Judgement:
    clients: List[int] = []
    with contextlib.suppress(Unsupported):
        clients = value(gpu, "MPS")
    if servers or clients:
        pids = ", ".join(map(str, servers)) or "not visible"
        return True, "server {}, clients {}: a fault in one client ends all of them".format(
            pids, clients or "none"
        )
    return True, "off"


def _graphics(gpu: Facts) -> Judgement:
    pids = value(gpu, "graphics")
    return True, "pid {} draws on it".format(", ".join(map(str, pids))) if pids else "none"


def versions(facts: Facts, torch: Facts) -> GpuLine:
    """The driver must know the CUDA that torch was built for: the same major version or a later
    one."""
    driver, cuda = facts["driver"], facts["cuda"]
    if "value" not in driver:
        return GpuLine("versions", "FAIL", str(next(iter(driver.values()))), fix=DRIVER_FIX)
    driver_cuda = "unknown"
    if "value" in cuda:
        driver_cuda = "{}.{}".format(cuda["value"] // 1000, cuda["value"] % 1000 // 10)
    text = "driver {} for CUDA {}, nvidia-ml-py {}".format(
        driver["value"], driver_cuda, facts["nvml"]
    )
    if "error" in torch:
        return GpuLine("versions", "SKIP", "{}, no torch: {}".format(text, torch["error"]))
    text += ", torch {} for CUDA {}, Python {}".format(
        torch["torch"], torch["cuda"] or "none", torch["python"]
    )
    if not torch["cuda"]:
        fix = "install a torch that was built for CUDA"
        return GpuLine("versions", "FAIL", text + ": torch was built for CPUs only", fix=fix)
    if driver_cuda != "unknown" and _major(driver_cuda) < _major(torch["cuda"]):
        fix = "install a newer driver, or a torch that was built for CUDA {}".format(driver_cuda)
        return GpuLine("versions", "FAIL", text + ": the driver is too old for torch", fix=fix)
    return GpuLine("versions", "PASS", text)


def _major(version: str) -> int:
    return int(version.split(".")[0])


def architectures(facts: Facts, torch: Facts) -> GpuLine:
    """torch must have kernels of the GPU's generation, or kernels that the driver can compile for
    it."""
    if "error" in torch or not torch.get("architectures"):
        return GpuLine("architectures", "SKIP", str(torch.get("error", "torch reports none")))

    def judge(gpu: Facts) -> Judgement:
        major, minor = value(gpu, "capability")
        name = "{} needs sm_{}{}".format(value(gpu, "name"), major, minor)
        return runs_on(torch["architectures"], major, minor), "{}, torch has {}".format(
            name, " ".join(torch["architectures"])
        )

    return over_gpus("architectures", _by_number(facts), judge)


def runs_on(architectures: List[str], major: int, minor: int) -> bool:
    """sm_86 runs on 8.6 and 8.9, compute_80 on everything from 8.0. A letter at the end restricts
    it to one generation."""
    for architecture in architectures:
        kind, _, text = architecture.partition("_")
        digits = "".join(filter(str.isdigit, text))
        if not digits:
            continue
        number = (int(digits[:-1]), int(digits[-1]))
        if kind == "compute" and number <= (major, minor) and digits == text:
            return True
        if kind == "sm" and number[0] == major and number[1] <= minor:
            return True
    return False


def lines(python: str, env: Dict[str, str]) -> List[GpuLine]:
    """`python`: interpreter of scripts. `env`: variables of the jobs."""
    facts = _reply(FACTS_LIMIT)
    torch = errand_process.run(
        [python, "-c", LOOK_AT_TORCH], {**env, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, TORCH_LIMIT
    )
    return [*of_facts(facts, torch, mps_servers()), trial()]


def _reply(limit: float, *arguments: str) -> Dict[str, Any]:
    """What `gpu_facts` prints, in its own process, because a faulty driver may never answer."""
    return errand_process.run(
        [sys.executable, "-m", gpu_facts.__name__, *arguments], dict(os.environ), limit
    )


def mps_servers() -> List[int]:
    """Pids of the processes of NVIDIA's multi-process service."""
    pids = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open("/proc/{}/comm".format(entry), "rb") as stream:
            if stream.read().startswith(b"nvidia-cuda-mps"):
                pids.append(int(entry))
    return pids


def trial() -> GpuLine:
    """CUDA writes to the memory of each GPU that nobody uses, of all at the same time."""
    look = _reply(LOOK_LIMIT, "look")
    if look.get("error"):
        return GpuLine("trial", "FAIL", look["error"], fix=DRIVER_FIX)
    rows = [(str(number), {"error": LOST}) for number in look["lost"]]
    if not look["gpus"] and not rows:
        return GpuLine("trial", "SKIP", look["notice"] or "no NVIDIA GPU here")
    begin = time.monotonic()
    free, facts = free_gpus(look["gpus"])
    try:
        processes = {uuid: cuda_trial.begin(uuid) for uuid in free}
        for uuid, process in processes.items():
            facts[uuid] = _fact(process, max(begin + TRIAL_LIMIT - time.monotonic(), 0.1))
    finally:
        gpu_locks.close([lock for locks in free.values() for lock in locks])
    for gpu in look["gpus"]:
        number = "{number} ({uuid})" if gpu["parent"] else "{number}"
        rows.append((number.format(**gpu), facts[gpu["uuid"]]))
    line = over_gpus("trial", rows, lambda judgement: judgement)
    if any(process.returncode == cuda_trial.NO_LIBRARY for process in processes.values()):
        line = line._replace(fix=LIBRARY_FIX)
    return line._replace(seconds=round(time.monotonic() - begin, 1))


def _fact(process: "subprocess.Popen[bytes]", limit: float) -> gpu_facts.Fact:
    """The verdict on one GPU, as `over_gpus` judges it."""
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver can keep it from ending
            process.communicate(timeout=1.0)
        return {"value": (False, "CUDA did not answer within {:.0f} s".format(TRIAL_LIMIT))}
    if process.returncode == cuda_trial.USABLE:
        return {"value": (True, "CUDA wrote to its memory")}
    words = output.decode("utf-8", "replace").partition("\n")[0]
    if process.returncode == cuda_trial.BUSY:
        return {"unsupported": words}
    return {"value": (False, words or "exit {}".format(process.returncode))}


def free_gpus(gpus: List[Dict[str, Any]]) -> Tuple[Dict[str, List[int]], Dict[str, gpu_facts.Fact]]:
    """The GPUs that nobody uses, by UUID, with their locks, so that no gpq starts a job there in
    the meantime. For each of the others, why not."""
    free: Dict[str, List[int]] = {}
    facts: Dict[str, gpu_facts.Fact] = {}
    guard = gpu_locks.Locks()
    for gpu in gpus:
        uuid = gpu["uuid"]
        if gpu["problem"]:
            facts[uuid] = {"error": gpu["problem"]}
        elif gpu["processes"]:
            facts[uuid] = {"unsupported": "pid {} uses it".format(gpu["processes"][0][0])}
        elif gpu["used_mib"] > IN_USE * gpu["memory_mib"]:
            facts[uuid] = {"unsupported": "{} MiB are in use".format(gpu["used_mib"])}
        else:
            try:
                free[uuid] = guard.take([uuid], 0, 0)
            except SpoolError as error:
                facts[uuid] = {"unsupported": error.message}
    return free, facts


def errand(place: errand_process.Place, fields: Dict[str, Any], pipe: int) -> None:
    """The errand `gpu`, like those in checks.py: {"python", "env"} -> {"lines"}."""
    env = {**place.base, **fields.get("env", {})}
    rows = [line._asdict() for line in lines(str(fields["python"]), env)]
    errand_process.tell(pipe, {"lines": rows})
