"""Facts of NVML and torch -> lines of `gpq doctor --gpu`. Pure."""

from typing import Any, Callable, Dict, List, Optional, Tuple

from gpq_agent.node.devices.nvml import RECOVERIES
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


def of_facts(facts: Facts, torch: Facts, mps: List[int]) -> List[GpuLine]:
    """All lines that need no looks. `mps`: pids of MPS servers on this machine."""
    names: Dict[str, Callable[[Facts], Judgement]] = {
        "persistence": _persistence, "idle memory": _idle, "MIG": _slices, "compute mode": _mode,
        "recovery action": _recovery, "ECC": _errors, "remapped rows": _rows,
        "MPS": lambda gpu: _mps(gpu, mps), "graphics": _graphics,
    }  # fmt: skip
    missing = unasked(facts)
    if missing is not None:
        return [missing._replace(name=name) for name in ("versions", "architectures", *names)]
    return [
        versions(facts, torch), architectures(facts, torch),
        *(over_gpus(name, _numbered(facts), judge) for name, judge in names.items()),
    ]  # fmt: skip


def _numbered(facts: Facts) -> List[Tuple[str, Facts]]:
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


def _rows(gpu: Facts) -> Judgement:
    corrected, uncorrected, pending, failed = value(gpu, "remapped rows")
    text = "{} remapped{}".format(corrected + uncorrected, ", a reset is needed" if pending else "")
    return not pending and not failed, text + (", one remap failed" if failed else "")


def _mps(gpu: Facts, servers: List[int]) -> Judgement:
    try:
        clients = value(gpu, "MPS")
    except Unsupported:
        clients = []
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
    driver_cuda = (
        "{}.{}".format(cuda["value"] // 1000, cuda["value"] % 1000 // 10)
        if "value" in cuda
        else "unknown"
    )
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

    return over_gpus("architectures", _numbered(facts), judge)


def runs_on(architectures: List[str], major: int, minor: int) -> bool:
    """sm_86 runs on 8.6 and 8.9, compute_80 on everything from 8.0. A letter at the end restricts
    it to one generation."""
    for architecture in architectures:
        kind, _, text = architecture.partition("_")
        digits = "".join(sign for sign in text if sign.isdigit())
        if not digits:
            continue
        number = (int(digits[:-1]), int(digits[-1]))
        if kind == "compute" and number <= (major, minor) and digits == text:
            return True
        if kind == "sm" and number[0] == major and number[1] <= minor:
            return True
    return False
