"""How CUDA_VISIBLE_DEVICES names the GPUs of a job: by UUID, or by index for programs that read
only integers."""

from typing import List

from gpq_agent import wire

UUIDS, INDEXES = "uuid", "index"


def list_names(devices: List[wire.DeviceInfo], names: str) -> str:
    """`names`: UUIDS or INDEXES. A MIG device has no index, so it keeps its UUID."""
    return ",".join(
        str(device.index) if names == INDEXES and not device.id.startswith("MIG") else device.id
        for device in devices
    )
