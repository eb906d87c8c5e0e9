"""The server at the latest look: its attempts, who holds which device, and what has changed.
Reports the end of an attempt once its GPUs are free."""

import functools
import hashlib
import json
import time
from typing import Any, Dict, List, Optional

from gpq_agent import wire
from gpq_agent.node.attempts import Attempts
from gpq_agent.node.devices.devices import Devices
from gpq_agent.node.devices.yield_files import Yielding
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.spool.shapes import statement
from gpq_agent.node.states import LIVE
from gpq_agent.node.trials import Trials

NOTE_AFTER, RELEASE_AFTER = 30.0, 60.0  # seconds that an ended attempt may still show on its GPU

Message = Dict[str, Any]


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
        has_gpu = any(not device.startswith("slot-") for device in devices)
        if info.state != "exited" or not self.devices.with_gpus or not has_gpu:
            return info
        if key in self._released:
            return self._blame(info, devices)
        end_time = self._ended.setdefault(key, time.monotonic())
        seconds = time.monotonic() - end_time
        use = "its GPUs have not been checked yet"
        if self.devices.probed_from >= end_time:
            use = self.devices.still_used_by(key, devices)
        # no job gets the GPUs while there is such an error
        is_free = bool(self.devices.error) or not use
        if is_free or seconds > RELEASE_AFTER:
            self._released[key] = True
            if not is_free:
                self.devices.left_by(key, devices)
            return self._blame(info, devices)
        record = None
        if seconds > NOTE_AFTER:
            record = dict(info.exit or {}, note="it has ended, but {}".format(use))
        return info._replace(state="running", exit=record)

    def _blame(self, info: wire.AttemptInfo, devices: List[str]) -> wire.AttemptInfo:
        """Add a note about lost GPUs to a failed attempt. The note stays the same for every
        request."""
        key = wire.attempt_key(info.job, info.attempt)
        if key not in self._lost:
            lost = {gpu.id for gpu in self.devices.current() if gpu.state == "lost"}
            names = ", ".join(name for name in devices if name in lost)
            self._lost[key] = "GPU lost: {}".format(names) if names else ""
        record = info.exit or {}
        if not self._lost[key] or record.get("code") == 0 or record.get("stopped"):
            return info
        note = "; ".join(filter(None, (self._lost[key], record.get("note"))))
        return info._replace(exit=dict(record, note=note))


class Survey:
    """The survey of one agent. `devices` asks it who holds them."""

    def __init__(self, attempts: Attempts, yielding: Yielding) -> None:
        self.attempts = attempts
        self.yielding = yielding
        self.holders: Dict[str, str] = {}  # attempts by device
        self.changed_at = time.monotonic()
        self.digest = ""
        self.least_lease = 0.0  # seconds, the shortest of the living attempts. 0: none has a lease

    def attach(self, devices: Devices, release: Release, trials: Trials) -> None:
        """Connect the parts that hear about each attempt."""
        self.devices = devices
        self.release = release
        self.trials = trials

    def refresh(self) -> List[wire.AttemptInfo]:
        """Look at every attempt again."""
        infos = []
        holders: Dict[str, str] = {}
        stuck: Dict[str, str] = {}
        attempts = self.attempts.all()
        self.attempts.tend(attempts)
        for info in attempts:
            key = wire.attempt_key(info.job, info.attempt)
            order = self.attempts.files.order(key)
            devices = order.devices if order else []
            info = self.release.filter(key, info, devices)
            infos.append(info)
            if info.state == "exited":
                folder = self.attempts.spool.folder(key)
                error = functools.partial(statement, folder, wire.FIRST_ERROR)
                self.trials.hear(info, devices, error)
            if info.state in LIVE or self.release.holding(key):
                holders.update(dict.fromkeys(devices, key))
            if info.state in LIVE and info.exit is not None:
                # only a process that cannot be killed leaves a note this early
                words = "attempt {}: {}".format(key, info.exit.get("note", ""))
                stuck.update(dict.fromkeys(devices, words))
        self.holders = holders
        self.devices.stuck = {**stuck, **self.trials.suspects()}
        self.least_lease = min(
            (info.lease for info in infos if info.state in LIVE and info.lease > 0), default=0.0
        )
        digest = _digest(infos, self.devices.current(), self.yielding.users())
        if digest != self.digest:
            self.digest = digest
            self.touch()
        return infos

    def touch(self) -> None:
        """Something is happening, so another change is likely soon."""
        self.changed_at = time.monotonic()

    def attempt(self, key: str) -> Message:
        """Look at one attempt again. Raises SpoolError if there is none."""
        for info in self.refresh():
            if wire.attempt_key(info.job, info.attempt) == key:
                return self.attempts.count([info])[0]._asdict()
        attempt = self.attempts.look(key)  # forgotten, so no longer reported
        if attempt is None:
            raise SpoolError("no attempt {} on this server".format(key))
        return attempt._asdict()

    def device_list(self) -> List[Message]:
        """The devices, as reported. Others may start any number of processes on them."""
        most = wire.LENGTHS["processes"]
        return [
            device._replace(processes=device.processes[:most])._asdict()
            for device in self.devices.current()
        ]


def _digest(
    infos: List[wire.AttemptInfo], devices: List[wire.DeviceInfo], yields: List[str]
) -> str:
    """Changes with every state, but not with memory in use, utilisation or the number of
    processes."""
    state = [
        [
            [info.job, info.attempt, info.state, info.pid, (info.exit or {}).get("note")]
            for info in infos
        ],
        [
            [
                device.id,
                device.state,
                [process["pid"] for process in device.processes if not process["attempt"]],
            ]
            for device in devices
        ],
        yields,
    ]
    return hashlib.sha256(json.dumps(state).encode("utf-8")).hexdigest()[:16]
