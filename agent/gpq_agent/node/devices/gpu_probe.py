"""The result of one look at the GPUs of a machine, whichever way it was made."""

import contextlib
import os
from typing import Any, List, NamedTuple, Optional, Tuple

MIB = 1 << 20
SKIPPED = "not asked"  # a GPU that is out of use and must not be queried yet
REMAP = "part of its memory must be remapped: reset it (nvidia-smi --gpu-reset) or reboot"
REMAP_FAILED = "the driver could not remap a faulty part of its memory: it needs repair"
MISMATCH = "the NVIDIA driver was updated and no longer matches its library: reboot this server"
LOST = "the GPU is lost (it fell off the bus): reboot this server"
BANNED = "its compute mode is Prohibited, so nothing can run on it (allow it: sudo nvidia-smi -c 0)"
SLOW = 3.0  # seconds, the duration of a look that deserves a note
PCI = "/sys/bus/pci/devices"
NVIDIA, AMD, INTEL = "0x10de", "0x1002", "0x8086"
DISPLAYS = ("0x0300", "0x0302", "0x0380")  # PCI classes: VGA, 3D and other display controllers
ACCELERATORS = ("0x0302", "0x0380", "0x1200")  # that drive no screen


class RawGpu(NamedTuple):
    """One GPU, or one MIG device."""

    uuid: str
    number: int  # the index in NVML. A MIG device has that of its GPU
    name: str
    memory_mib: int
    used_mib: int
    utilisation: Optional[int]
    processes: List[Tuple[int, int]]  # (pid, MiB) of processes that compute
    problem: str = ""  # "lost", SKIPPED or a sentence. "" = none
    ecc: Optional[int] = None  # uncorrectable memory errors since the driver was loaded
    drawing: List[Tuple[int, int]] = []  # (pid, MiB) of processes that only draw, such as a desktop
    parent: str = ""  # of a MIG device, the UUID of its GPU


class Probe(NamedTuple):
    """One look at all GPUs. `error`: why none of them can be used for anything new."""

    gpus: List[RawGpu]
    driver: str = ""
    error: str = ""
    lost: List[int] = []  # indexes of GPUs without even a name
    # indexes of GPUs that a container or a cgroup hides from this account
    hidden: List[int] = []
    partitioned: List[str] = []  # UUIDs of GPUs that are split into MIG devices
    notice: str = ""  # a note, although nothing is wrong

    def describe(self, seconds: float) -> str:
        """Notes about GPUs that are not among the devices, and about a look that took this long. ""
        for none."""
        notices = [self.notice]
        if self.lost:
            notices.append("{} lost: reboot this server".format(_number_text(self.lost)))
        if self.hidden:
            notices.append("{} off limits to this account".format(_number_text(self.hidden)))
        parents = {gpu.parent for gpu in self.gpus}
        empty = [uuid for uuid in self.partitioned if uuid not in parents]
        if empty:
            notices.append(
                "{}: partitioned (MIG), but without a MIG device".format(", ".join(empty))
            )
        if seconds > SLOW:
            notices.append(
                "querying the GPUs takes {:.0f} s: persistence mode keeps the driver initialised"
                " (sudo nvidia-smi -pm 1)".format(seconds)
            )
        return "; ".join(filter(None, notices))


def _number_text(numbers: List[int]) -> str:
    """``GPU 1 is`` or ``GPUs 1, 3 are``."""
    list_text = ", ".join(map(str, numbers))
    return "GPU {} is".format(list_text) if len(numbers) == 1 else "GPUs {} are".format(list_text)


def plausible(value: Any) -> Optional[int]:
    """Per cent, or None. Drivers have reported 37,100 %."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number <= 100 else None


def shared_memory_mib() -> int:
    """Memory of the machine, MiB, which is what a GPU without memory of its own uses."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB


def unused_hardware() -> str:
    """A line about GPUs in this machine that no driver reports, "" for none."""
    cards: List[Tuple[str, str]] = []  # (vendor, class) of each PCI device
    with contextlib.suppress(OSError):
        cards = [(_line(name, "vendor"), _line(name, "class")[:6]) for name in os.listdir(PCI)]
    nvidia = sum(1 for vendor, kind in cards if vendor == NVIDIA and kind in DISPLAYS)
    if nvidia:
        words = (
            "{} NVIDIA GPU{} in this server, but no driver answers: it is not loaded, or not"
            " passed on to this container (nvidia-smi says more)"
        )
        return words.format(nvidia, "s are" if nvidia > 1 else " is")
    if os.path.exists("/dev/kfd"):
        return (
            "gpq does not support AMD GPUs (ROCm) yet: it leaves them alone and sets no"
            " HIP_VISIBLE_DEVICES"
        )
    if any(vendor == INTEL and kind in ACCELERATORS for vendor, kind in cards):
        return "gpq does not support Intel GPUs yet: it leaves them alone"
    return ""


def _line(device: str, name: str) -> str:
    path = os.path.join(PCI, device, name)
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as stream:
        return stream.read().strip()
    return ""
