"""When the end of an attempt may be told: once its GPUs are seen to be free of it."""

import time
from typing import Dict, List, Optional

from gpq_agent import wire
from gpq_agent.node.devices.devices import Devices

NOTE_AFTER, RELEASE_AFTER = 30.0, 60.0  # seconds that an ended attempt may still show on its GPU


class Release:
    """Holds back the news that an attempt has ended until its GPUs are seen to be free, for a
    minute at most.

    After that minute the end is reported: the GPU itself is then quarantined or "foreign", and
    nobody gets it.
    """

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self._ended: Dict[str, float] = {}
        self._released: Dict[str, bool] = {}
        self._lost: Dict[str, str] = {}  # what is said of GPUs that were lost, by attempt

    def holding(self, key: str) -> bool:
        """Does this ended attempt still have its GPUs?"""
        return key in self._ended and key not in self._released

    def since(self) -> Optional[float]:
        """When the last of the attempts ended that are held back; None when none is."""
        return max(
            (end_time for key, end_time in self._ended.items() if key not in self._released),
            default=None,
        )

    def filter(self, key: str, info: wire.AttemptInfo, devices: List[str]) -> wire.AttemptInfo:
        """The attempt as it may be reported; "running" while it is held back."""
        if info.state != "exited" or not self.devices.with_gpus or _only_slots(devices):
            return info
        if key in self._released:
            return self._blamed(info, devices)
        end_time = self._ended.setdefault(key, time.monotonic())
        seconds = time.monotonic() - end_time
        use = (
            self.devices.still_used_by(key, devices)
            if self.devices.probed_from >= end_time
            else "its GPUs have not been checked yet"
        )
        is_free = bool(self.devices.error) or not use  # with such an error nobody gets them
        if is_free or seconds > RELEASE_AFTER:
            self._released[key] = True
            if use and not is_free:
                self.devices.left_by(key, devices)
            return self._blamed(info, devices)
        note = "it has ended, but {}".format(use) if seconds > NOTE_AFTER else ""
        return info._replace(
            state="running", exit=dict(info.exit or {}, note=note) if note else None
        )

    def _blamed(self, info: wire.AttemptInfo, devices: List[str]) -> wire.AttemptInfo:
        """With a word on GPUs of a failed attempt that are lost. Said the same each time it is
        asked."""
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
