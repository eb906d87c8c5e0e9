"""When to report the end of an attempt: once its GPUs are free of it."""

import time
from typing import Dict, List, Optional

from gpq_agent import wire
from gpq_agent.node.devices.devices import Devices

NOTE_AFTER, RELEASE_AFTER = 30.0, 60.0  # seconds that an ended attempt may still show on its GPU


class Release:
    """Holds back the end of an attempt until its GPUs are free, for a minute at most.

    After that minute the agent reports the end. The GPU is then quarantined or "foreign", so no job
    gets it.
    """

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self._ended: Dict[str, float] = {}
        self._released: Dict[str, bool] = {}
        self._lost: Dict[str, str] = {}  # notes about lost GPUs, by attempt

    def holding(self, key: str) -> bool:
        """Does this ended attempt still have its GPUs?"""
        return key in self._ended and key not in self._released

    def since(self) -> Optional[float]:
        """When the latest of the attempts ended that are held back. None if there is none."""
        return max(
            (end_time for key, end_time in self._ended.items() if key not in self._released),
            default=None,
        )

    def filter(self, key: str, info: wire.AttemptInfo, devices: List[str]) -> wire.AttemptInfo:
        """The attempt as the agent may report it: "running" while it is held back."""
        if info.state != "exited" or not self.devices.with_gpus or _only_slots(devices):
            return info
        if key in self._released:
            return self._blame(info, devices)
        end_time = self._ended.setdefault(key, time.monotonic())
        seconds = time.monotonic() - end_time
        use = (
            self.devices.still_used_by(key, devices)
            if self.devices.probed_from >= end_time
            else "its GPUs have not been checked yet"
        )
        # no job gets the GPUs while there is such an error
        is_free = bool(self.devices.error) or not use
        if is_free or seconds > RELEASE_AFTER:
            self._released[key] = True
            if use and not is_free:
                self.devices.left_by(key, devices)
            return self._blame(info, devices)
        note = "it has ended, but {}".format(use) if seconds > NOTE_AFTER else ""
        return info._replace(
            state="running", exit=dict(info.exit or {}, note=note) if note else None
        )

    def _blame(self, info: wire.AttemptInfo, devices: List[str]) -> wire.AttemptInfo:
        """Add a note about lost GPUs to a failed attempt. The note stays the same for every
        request."""
        key = wire.attempt_key(info.job, info.attempt)
        if key not in self._lost:
            lost_gpus = [
                gpu for gpu in self.devices.current() if gpu.id in devices and gpu.state == "lost"
            ]
            self._lost[key] = (
                "GPU lost: {}".format(", ".join(gpu.id for gpu in lost_gpus)) if lost_gpus else ""
            )
        record = info.exit or {}
        if not self._lost[key] or record.get("code") == 0 or record.get("stopped"):
            return info
        note = "; ".join(part for part in (self._lost[key], record.get("note")) if part)
        return info._replace(exit=dict(record, note=note))


def _only_slots(devices: List[str]) -> bool:
    return all(device.startswith("slot-") for device in devices)
