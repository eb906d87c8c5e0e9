"""The checks of `gpq doctor --gpu`."""

from typing import Dict, NamedTuple, Tuple


class GpuPart(NamedTuple):
    """Checks that one errand makes, in order, within two minutes. `limit`: seconds."""

    section: str
    limit: float
    names: Tuple[str, ...]


# A checks the driver, B one replica, C several replicas.
GPU_PARTS: Dict[str, GpuPart] = {
    "driver": GpuPart(
        "A",
        112.0,
        (
            "versions", "architectures", "looks by NVML", "looks by nvidia-smi", "same answers",
            "persistence", "idle memory",
            "MIG", "compute mode", "recovery action", "ECC", "remapped rows", "MPS", "graphics",
        ),
    ),
    "holder": GpuPart("A", 105.0, ("process seen", "process gone", "looks beside work")),
    "kernels": GpuPart("B", 75.0, ("matrix product", "wrong names", "events")),
    "training": GpuPart(
        "B",
        115.0,
        (
            "waits, SGD", "waits, AdamW", "waits, GradScaler", "gradients", "noise scale",
            "memory of samples",
            "out of memory",
        ),
    ),
    "restart": GpuPart("B", 115.0, ("resume", "restart phases", "overhead")),
    "replicas": GpuPart("C", 115.0, ("gradients of two", "resize", "failures")),
}  # fmt: skip
GPU_VERDICTS = ("PASS", "FAIL", "SKIP")


class GpuLine(NamedTuple):
    """One check. `figure`: the measurement, or why there is none."""

    name: str
    verdict: str  # one of GPU_VERDICTS
    figure: str
    seconds: float = 0.0  # duration of the check
