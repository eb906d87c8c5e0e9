"""The lines of `gpq doctor --gpu`."""

from typing import NamedTuple

GPU_LIMIT = 110.0  # seconds for all lines about one server


class GpuLine(NamedTuple):
    """One check."""

    name: str
    verdict: str  # "PASS" | "FAIL" | "SKIP"
    figure: str  # the measurement, or why there is none
    seconds: float = 0.0  # duration of the check
    fix: str = ""  # what to do about a FAIL
